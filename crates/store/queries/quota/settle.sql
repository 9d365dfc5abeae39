-- leasehold_store::Store::settle_quota
SELECT quota_settle($1, $2::float8 * interval '1 second', $3, $4)
