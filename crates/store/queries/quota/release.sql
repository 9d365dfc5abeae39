-- leasehold_store::Store::release_quota_slots
SELECT quota_release($1, $2, $3)
