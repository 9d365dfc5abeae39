-- leasehold_store::Store::take_quota_rate
SELECT granted, extract(epoch FROM retry_after)::float8 FROM quota_take($1, $2, $3::float8 * interval '1 second')
