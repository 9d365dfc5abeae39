-- leasehold_store::Store::quota_budget
SELECT quota_budget($1)
