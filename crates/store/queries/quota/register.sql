-- leasehold_store::Store::register_quota_holder
SELECT quota_register($1, $2::float8 * interval '1 second')
