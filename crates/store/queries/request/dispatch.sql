-- leasehold_store::Store::dispatch
SELECT * FROM dispatch($1, $2, $3, $4, false, false)
