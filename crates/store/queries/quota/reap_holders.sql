-- leasehold_store::Store::reap_quota_holders
SELECT quota_reap_holders($1::float8 * interval '1 second', $2)
