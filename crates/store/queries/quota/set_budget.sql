-- leasehold_store::Store::set_quota_budget
SELECT quota_set_budget($1, $2)
