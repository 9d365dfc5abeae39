-- leasehold_store::Store::renew_quota_holder
SELECT quota_renew($1, $2::float8 * interval '1 second')
