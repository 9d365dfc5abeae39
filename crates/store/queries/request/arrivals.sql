-- leasehold_store::Store::arrivals
SELECT * FROM arrivals($1, $2, $3, $4, $5)
