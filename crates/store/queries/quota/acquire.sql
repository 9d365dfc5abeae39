-- leasehold_store::Store::acquire_quota_slots, exchange_quota_slots
SELECT quota_acquire($1, $2, $3, $4, $5, $6)
