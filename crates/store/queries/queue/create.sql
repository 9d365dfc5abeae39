-- leasehold_store::Store::create_queue
SELECT create_queue($1, $2)
