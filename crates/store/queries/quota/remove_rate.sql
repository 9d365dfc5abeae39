-- leasehold_store::Store::remove_quota_rate
SELECT quota_remove_rate($1)
