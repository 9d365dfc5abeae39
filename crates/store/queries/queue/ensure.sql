-- leasehold_store::Store::ensure_queue
SELECT ensure_queue($1)
