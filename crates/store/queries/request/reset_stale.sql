-- leasehold_store::Store::reset_stale
--
-- A page of each partition, after the given place in the order of dispatch; `last_*` tell where the next one begins.
-- Rows that another transaction holds are skipped, and counted as left over: they must be looked at again.
-- One that was cancelled in flight comes first from now on, as one cancelled while it is pending does: see cancel.
-- `xmax` lies above every transaction that had its id by then, which a snapshot's own xmax does not.
WITH owned AS MATERIALIZED (
    SELECT p.partition_id, p.epoch FROM partitions p WHERE p.queue_id = $1 AND p.owner = $2 AND p.partition_id = ANY ($3::smallint[])
), stamped AS MATERIALIZED ( -- of tenants, whose index knows no partitions: read once
    SELECT r.ctid AS tid, r.partition_id, r.epoch FROM requests r
    WHERE $7::boolean AND r.queue_id = $1 AND r.ready AND r.tenant <> '' AND r.epoch > 0
), page AS MATERIALIZED (
    SELECT f.* FROM flights($1, $3::smallint[], $4::timestamptz[], $5::bigint[], $6::int) f
), stale AS MATERIALIZED (
    SELECT s.tid FROM owned p, (
        SELECT f.tid, f.partition_id, f.epoch FROM page f WHERE f.epoch > 0 UNION ALL SELECT x.* FROM stamped x) AS s
    WHERE s.partition_id = p.partition_id AND s.epoch < p.epoch
), held AS MATERIALIZED (
    SELECT r.ctid FROM requests r WHERE r.ctid = ANY (ARRAY(SELECT tid FROM stale)) AND r.ready AND r.epoch > 0
    FOR UPDATE SKIP LOCKED
), reset AS (
    UPDATE requests r SET epoch = 0, attempt = 0, arrival = DEFAULT,
        deadline = CASE WHEN r.cancelled THEN '-infinity' ELSE r.deadline END
    FROM partitions p
    WHERE r.ctid = ANY (ARRAY(SELECT ctid FROM held)) AND r.ready AND r.epoch > 0 AND r.epoch < p.epoch
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2
    RETURNING 1
)
SELECT (SELECT count(*) FROM reset) AS reset, (SELECT count(*) FROM stale) AS found,
    pg_snapshot_xmin(pg_current_snapshot())::text AS xmin, pg_current_xact_id()::text AS xmax,
    array_agg(l.partition_id) AS last_partitions, array_agg(l.deadline) AS last_deadlines, array_agg(l.seq) AS last_seqs
FROM page l WHERE l.is_last
