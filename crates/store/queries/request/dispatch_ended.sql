-- leasehold_store::Store::dispatch_ended
SELECT * FROM dispatch($1, $2, $3, $4, true, true)
