-- leasehold_store::Store::status
--
-- One look at every queue. It reads $1 rows of each kind at most, so that a page never counts a table of millions.
-- A lock that has lapsed is none; who waits behind another of its group is pending.
SELECT q.name, q.queue_id, q.receivers, live.pending, live.in_flight, live.locked, live.deferred, live.parked, live.oldest_seconds, (
        SELECT count(*) FROM (SELECT FROM dead_letters d WHERE d.queue_id = q.queue_id LIMIT $1) x) AS dead
FROM queues q, LATERAL (
    SELECT least(count(*) FILTER (WHERE s.state = 'pending'), $1) AS pending, count(*) FILTER (WHERE s.state = 'in flight') AS in_flight,
        count(*) FILTER (WHERE s.state = 'locked') AS locked, count(*) FILTER (WHERE s.state = 'deferred') AS deferred,
        count(*) FILTER (WHERE s.state = 'parked') AS parked,
        extract(epoch FROM now() - min(s.enqueued_at) FILTER (WHERE s.state = 'pending'))::float8 AS oldest_seconds
    FROM (
        SELECT x.enqueued_at, CASE
            WHEN x.epoch > 0 THEN 'in flight'
            WHEN x.locked_until > now() THEN 'locked'
            WHEN x.ready OR x.held = 'g' THEN 'pending'
            WHEN x.held = 'd' THEN 'deferred'
            ELSE 'parked' END AS state
        FROM (
            ((SELECT r.ready, r.epoch, r.locked_until, r.held, r.enqueued_at FROM requests r
                WHERE r.queue_id = q.queue_id AND r.ready AND r.tenant = '' LIMIT $1)
            UNION ALL
            (SELECT r.ready, r.epoch, r.locked_until, r.held, r.enqueued_at FROM requests r
                WHERE r.queue_id = q.queue_id AND r.ready AND r.tenant <> '' LIMIT $1)
            LIMIT $1)
            UNION ALL
            (SELECT r.ready, r.epoch, r.locked_until, r.held, r.enqueued_at FROM requests r
                WHERE r.queue_id = q.queue_id AND NOT r.ready LIMIT $1)
        ) x) s) AS live
WHERE q.kind = 'queue'
ORDER BY q.name
