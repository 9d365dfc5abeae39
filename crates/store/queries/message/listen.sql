-- leasehold_store::Store::listen_queue
SELECT listen_queue($1)
