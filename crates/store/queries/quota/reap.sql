-- leasehold_store::Store::reap_quota
SELECT quota_reap($1)
