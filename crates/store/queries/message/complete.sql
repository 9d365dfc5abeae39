-- leasehold_store::Store::complete
SELECT complete($1, $2, $3, $4::bytea, $5, $6)
