-- leasehold_store::Store::request_status
SELECT token, queue, state, seq, partition_id, owner, deliveries, cancelled, route, enqueued_at, dispatched_at, due_at,
    deadline
FROM request_status($1)
