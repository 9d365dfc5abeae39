-- leasehold_store::Store::complete_batch
SELECT complete_batch($1, $2, $3)
