-- leasehold_store::Store::dispatch_arrived
SELECT * FROM dispatch_arrived($1, $2, $3, $4, $5)
