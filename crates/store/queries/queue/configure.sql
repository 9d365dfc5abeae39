-- leasehold_store::Store::configure_queue
SELECT configure_queue($1, $2)
