-- leasehold_store::Store::pending
SELECT * FROM pending($1, $2, $3)
