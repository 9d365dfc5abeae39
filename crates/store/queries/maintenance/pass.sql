-- leasehold_store::Store::maintain
SELECT maintain($1)
