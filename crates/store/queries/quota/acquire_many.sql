-- leasehold_store::Store::exchange_slots_of_many
SELECT quota_acquire_many($1, $2, $3, $4, $5, $6)
