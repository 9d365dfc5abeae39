-- leasehold_store::Store::status
--
-- One look at every queue. It reads $1 rows of each at most, so that a page never counts a table of millions.
SELECT q.name, q.queue_id, ready.pending, ready.in_flight, ready.oldest_seconds, (
        SELECT count(*) FROM (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND NOT r.ready LIMIT $1) x) AS parked
FROM queues q, LATERAL (
    SELECT count(*) FILTER (WHERE x.epoch = 0) AS pending, count(*) FILTER (WHERE x.epoch <> 0) AS in_flight,
        extract(epoch FROM now() - min(x.enqueued_at) FILTER (WHERE x.epoch = 0))::float8 AS oldest_seconds
    FROM (
        (SELECT r.epoch, r.enqueued_at FROM requests r WHERE r.queue_id = q.queue_id AND r.ready AND r.tenant = '' LIMIT $1)
        UNION ALL
        (SELECT r.epoch, r.enqueued_at FROM requests r WHERE r.queue_id = q.queue_id AND r.ready AND r.tenant <> '' LIMIT $1)
        LIMIT $1
    ) x) AS ready
ORDER BY q.name
