-- leasehold_store::Store::in_flight
--
-- Each row carries the snapshot's xmin, and an id above that of every transaction that had one by then: the
-- snapshot's own xmax would not do, since what still runs may lie above it. Where nothing is in flight, one row
-- carries nothing else.
WITH stamped AS MATERIALIZED ( -- of tenants, whose index knows no partitions: read once
    SELECT r.id, r.token, r.attempt, r.partition_id, r.epoch FROM requests r
    WHERE r.queue_id = $1 AND r.ready AND r.tenant <> '' AND r.epoch <> 0
)
SELECT f.id, f.token, f.attempt, f.partition_id, f.epoch, pg_snapshot_xmin(pg_current_snapshot())::text,
    pg_current_xact_id()::text
FROM (SELECT) AS one
LEFT JOIN (
    SELECT r.id, r.token, r.attempt, p.partition_id, p.epoch FROM partitions p
    JOIN requests r ON r.queue_id = p.queue_id AND r.partition_id = p.partition_id AND r.ready AND r.tenant = '' AND r.epoch = p.epoch
    WHERE p.queue_id = $1 AND p.owner = $2
    UNION ALL
    SELECT s.* FROM stamped s JOIN partitions p ON p.queue_id = $1 AND p.partition_id = s.partition_id AND p.epoch = s.epoch
    WHERE p.owner = $2
) AS f ON true
