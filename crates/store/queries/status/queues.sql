-- leasehold_store::Store::status
--
-- One look at every queue. Counts stop at a bound, so that a page never counts a table of millions.
SELECT q.name, q.queue_id,
    (SELECT count(*) FROM (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND r.ready AND r.epoch = 0 LIMIT $1) x) AS pending,
    (SELECT count(*) FROM (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND r.ready AND r.epoch <> 0 LIMIT $1) x) AS in_flight,
    (SELECT count(*) FROM (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND NOT r.ready LIMIT $1) x) AS parked,
    (SELECT extract(epoch FROM now() - min(x.enqueued_at))::float8 FROM (
        SELECT r.enqueued_at FROM requests r WHERE r.queue_id = q.queue_id AND r.ready AND r.epoch = 0 LIMIT $1) x)
        AS oldest_seconds
FROM queues q ORDER BY q.name
