-- leasehold_store::Store::set_quota_rate
SELECT quota_set_rate($1, $2, $3::float8 * interval '1 second')
