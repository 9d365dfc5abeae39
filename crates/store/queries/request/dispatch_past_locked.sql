-- leasehold_store::Store::dispatch_past_locked
SELECT * FROM dispatch($1, $2, $3, $4, false, true)
