-- leasehold_store::Store::in_flight
--
-- A page of each partition, as reset_stale reads them. Each row carries the snapshot's xmin, and an id above that of every
-- transaction that had one by then: the snapshot's own xmax would not do, since what still runs may lie above it. Rows without
-- an id tell where the next page begins; where nothing is in flight, one row carries nothing else.
WITH owned AS MATERIALIZED (
    SELECT p.partition_id, p.epoch FROM partitions p WHERE p.queue_id = $1 AND p.owner = $2 AND p.partition_id = ANY ($3::smallint[])
), stamped AS MATERIALIZED ( -- of tenants, whose index knows no partitions: read once
    SELECT r.ctid AS tid, r.partition_id, r.epoch FROM requests r
    WHERE $7::boolean AND r.queue_id = $1 AND r.ready AND r.tenant <> '' AND r.epoch > 0
), page AS MATERIALIZED (
    SELECT f.* FROM (
        SELECT array_agg(a.partition_id) AS partitions, array_agg(a.deadline) AS deadlines, array_agg(a.seq) AS seqs
        FROM unnest($3::smallint[], $4::timestamptz[], $5::bigint[]) AS a (partition_id, deadline, seq)
        WHERE a.partition_id IN (SELECT o.partition_id FROM owned o)) AS b,
    LATERAL flights($1, b.partitions, b.deadlines, b.seqs, $6::int) f
), ours AS MATERIALIZED (
    SELECT s.tid FROM owned p, (
        SELECT f.tid, f.partition_id, f.epoch FROM page f WHERE f.epoch > 0 UNION ALL SELECT x.* FROM stamped x) AS s
    WHERE s.partition_id = p.partition_id AND s.epoch = p.epoch
)
SELECT a.id, a.token, a.attempt, a.partition_id, a.epoch, pg_snapshot_xmin(pg_current_snapshot())::text,
    pg_current_xact_id()::text, a.deadline, a.seq
FROM (SELECT) AS one
LEFT JOIN (
    SELECT r.id, r.token, r.attempt, r.partition_id, r.epoch, NULL::timestamptz AS deadline, NULL::bigint AS seq
    FROM requests r WHERE r.ctid = ANY (ARRAY(SELECT o.tid FROM ours o)) AND r.epoch > 0
    UNION ALL
    SELECT NULL, NULL, NULL, l.partition_id, NULL, l.deadline, l.seq FROM page l WHERE l.is_last
) AS a ON true
