-- leasehold_store::Store::result_depth
SELECT result_depth($1)
