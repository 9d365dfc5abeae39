-- leasehold_store::Store::now
SELECT clock_timestamp()
