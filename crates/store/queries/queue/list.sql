-- leasehold_store::Store::list_queues
SELECT queue, kind, topic, config FROM list_queues()
