-- What dispatchers call, besides the statements they bring themselves.

-- Stamps up to `max` pending requests of the owner's partitions, earliest deadline first, then lowest seq.
-- The rows come in no order. `generation` must be the one of the owner's last heartbeat or reconciliation: a
-- poll given up by its caller, and run by the server ever so late, then stamps nothing.
--
-- The transaction has its id before the statement that reads the fence has its snapshot (each statement of
-- this function takes a new one). So once every transaction older than a takeover's commit has ended, no
-- stamp of the former owner can appear any more: that is what lets a new owner call its reset final. The same
-- holds for a poll of an earlier generation.
--
-- One ordered index scan per owned partition, merged lazily: a poll costs its batch and one descent per
-- partition, whatever the backlog. The branches are a correlated subquery, since a LATERAL one cannot be
-- merged in order. Otherwise candidates are not locked: the update's recheck of `epoch = 0` is enough.
--
-- `ended_only` takes those alone whose outcome is certain: past their deadline, or cancelled before they were
-- dispatched (their deadline is then -infinity). It needs no room anywhere.
--
-- A poll waits for a candidate that another transaction holds (a cancel that is not committed, say). `past_locked`
-- steps over up to 1000 such rows instead, at the cost of a lock for each row stamped: for use after a wait.
--
-- A deadline beyond the year 9999 is returned as none: a client whose clock cannot show it would fail on the
-- whole batch, for ever.
--
-- Attempts are the clock's microseconds and ten random bits. A sequence would repeat itself after a crash,
-- which forgets its last values together with the stamps: their commit does not wait for the disk, as losing
-- one means no more than a redelivery.
CREATE FUNCTION dispatch(queue_id int, owner text, max int, generation bigint,
    ended_only boolean DEFAULT false, past_locked boolean DEFAULT false)
RETURNS TABLE (seq bigint, id text, token text, attempt bigint, epoch bigint, partition_id smallint, deliveries int,
    cancelled boolean, expired boolean, deadline timestamptz, enqueued_at timestamptz, dispatched_at timestamptz,
    route text, headers jsonb, metadata jsonb, payload bytea)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    xid xid8 := pg_current_xact_id();
    drawn bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1024 + (random() * 1023)::bigint;
    latest timestamptz := CASE WHEN ended_only THEN clock_timestamp() ELSE 'infinity' END;
    candidates int := CASE WHEN past_locked THEN max + 1000 ELSE max END;
    heads tid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    heads := (
        SELECT ARRAY(SELECT head.ctid FROM (
            (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[1] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[2] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[3] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[4] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[5] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[6] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[7] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[8] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[9] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[10] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[11] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[12] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[13] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[14] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[15] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[16] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[17] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[18] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[19] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[20] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[21] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[22] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[23] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[24] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[25] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[26] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[27] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[28] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[29] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[30] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[31] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[32] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[33] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[34] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[35] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[36] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[37] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[38] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[39] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[40] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[41] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[42] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[43] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[44] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[45] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[46] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[47] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[48] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[49] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[50] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[51] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[52] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[53] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[54] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[55] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[56] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[57] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[58] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[59] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[60] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[61] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[62] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[63] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[64] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            ) AS head ORDER BY head.deadline, head.seq LIMIT candidates)
        FROM (SELECT array_agg(o.partition_id ORDER BY o.partition_id) AS ids FROM partitions o
            WHERE o.queue_id = $1 AND o.owner = $2 AND NOT o.draining AND o.lease_expires_at > clock_timestamp()
                AND EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = $1 AND d.owner = $2 AND d.generation = $4)
            ) AS owned);
    IF past_locked THEN
        heads := ARRAY(SELECT c.ctid FROM requests c WHERE c.ctid = ANY (heads) AND c.ready AND c.epoch = 0
            ORDER BY c.deadline, c.seq LIMIT $3 FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY
    UPDATE requests r
    SET epoch = p.epoch, attempt = drawn, deliveries = r.deliveries + 1, dispatched_at = clock_timestamp()
    FROM partitions p
    WHERE r.ctid = ANY (heads)
        AND r.ready AND r.epoch = 0
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2 AND NOT p.draining
        AND p.lease_expires_at > clock_timestamp()
    RETURNING r.seq, r.id, r.token, r.attempt, r.epoch, r.partition_id, r.deliveries, r.cancelled,
        r.deadline <= clock_timestamp() AND isfinite(r.deadline),
        CASE WHEN isfinite(r.deadline) AND r.deadline < '9999-12-30' THEN r.deadline END, r.enqueued_at,
        r.dispatched_at, r.route, r.headers, r.metadata, r.payload;
END
$$;

-- A dispatcher's own way to make sure of its queue; returns its number.
CREATE FUNCTION ensure_queue(queue text) RETURNS int
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT (open_queue(queue)).queue_id
$$;
