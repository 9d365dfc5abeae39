-- leasehold_store::Store::listen_results
SELECT listen_results($1)
