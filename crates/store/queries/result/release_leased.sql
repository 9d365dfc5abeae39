-- leasehold_store::Store::release_results
SELECT * FROM release_results($1, $2, $3)
