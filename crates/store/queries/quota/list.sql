-- leasehold_store::Store::list_quotas
SELECT key, extract(epoch FROM window_length)::float8 AS window_seconds, used, max, set_max, refused_at,
    extract(epoch FROM clock_timestamp() - refused_at)::float8 AS refused_seconds
FROM quota_list($1, $2)
