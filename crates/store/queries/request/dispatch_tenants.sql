-- leasehold_store::Store::dispatch_tenants
SELECT * FROM dispatch_tenants($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
