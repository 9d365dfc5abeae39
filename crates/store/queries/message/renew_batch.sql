-- leasehold_store::Store::renew_batch
SELECT renew_batch($1, $2, $3)
