-- leasehold_store::Store::status
SELECT key, extract(epoch FROM window_length)::float8 AS window_seconds, used, max,
    extract(epoch FROM clock_timestamp() - refused_at)::float8 AS refused_seconds, saturated_keys
FROM quota_saturated($1::float8 * interval '1 second', $2)
