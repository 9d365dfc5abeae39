-- leasehold_store::Store::set_quota_limit
SELECT quota_set($1, $2, $3::float8 * interval '1 second')
