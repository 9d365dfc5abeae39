-- Settling: anyone with queue, sequence number and current token. A token that is wrong, empty, lapsed or spent changes
-- nothing. What has succeeded succeeds again for 30 minutes, if it is repeated as it was.

CREATE FUNCTION lost(q queues, seq bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'LH006',
        MESSAGE = format('message %s of queue "%s" is not locked with this token', coalesce(seq::text, 'null'), q.name);
END
$$;

-- Raises unless the same settlement has succeeded.
CREATE FUNCTION settled_before(q queues, seq bigint, lock_token text, verb text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    IF NOT EXISTS (SELECT FROM receipts p WHERE p.seq = settled_before.seq AND p.lock_token::text = settled_before.lock_token
            AND p.queue_id = q.queue_id AND p.verb = settled_before.verb
            AND p.settled_at > clock_timestamp() - interval '30 minutes') THEN
        PERFORM lost(q, seq);
    END IF;
END
$$;

-- The locked row, held by the caller from now on; raises where there is none, unless the same settlement has succeeded:
-- then the row is NULL.
CREATE FUNCTION hold_locked(q queues, seq bigint, lock_token text, verb text, OUT tid tid, OUT exhausted boolean,
    OUT cancelled boolean, OUT group_id text)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    SELECT r.ctid, r.deliveries >= q.max_deliveries, r.cancelled, r.group_id INTO tid, exhausted, cancelled, group_id FROM requests r
        WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready AND r.seq = hold_locked.seq AND r.epoch = -1
            AND r.lock_token::text = hold_locked.lock_token AND r.locked_until > clock_timestamp()
            AND r.deadline > clock_timestamp()
        FOR UPDATE;
    IF FOUND THEN
        INSERT INTO receipts (seq, lock_token, settled_at, queue_id, verb)
            VALUES (hold_locked.seq, hold_locked.lock_token::uuid, clock_timestamp(), q.queue_id, hold_locked.verb);
    ELSE
        PERFORM settled_before(q, seq, lock_token, verb);
    END IF;
END
$$;

CREATE FUNCTION complete(queue text, seq bigint, lock_token text, body bytea DEFAULT NULL, content_type text DEFAULT NULL,
    status int DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    q queues := find_receivers(queue);
    verb text := 'complete';
    gone record;
BEGIN
    IF status NOT BETWEEN 100 AND 599 THEN
        PERFORM fail('LH001', format('status must be from 100 to 599, not %s', status));
    ELSIF body IS NOT NULL OR content_type IS NOT NULL OR status IS NOT NULL THEN
        verb := format('complete %s %s %s', md5(body), md5(content_type), status);
    END IF;
    DELETE FROM requests r
        WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready AND r.seq = complete.seq AND r.epoch = -1
            AND r.lock_token::text = complete.lock_token AND r.locked_until > clock_timestamp() AND r.deadline > clock_timestamp()
        RETURNING r.id, r.token, r.route, r.enqueued_at, r.dispatched_at, r.deliveries, r.answered, r.group_id, r.lock_token
        INTO gone;
    IF NOT FOUND THEN
        PERFORM settled_before(q, seq, lock_token, verb);
        RETURN;
    END IF;
    INSERT INTO receipts (seq, lock_token, settled_at, queue_id, verb)
        VALUES (complete.seq, gone.lock_token, clock_timestamp(), q.queue_id, verb);
    IF gone.answered THEN
        PERFORM record_result(q.queue_id, q.result_ttl, gone.id, gone.token, gone.route, gone.enqueued_at, gone.dispatched_at,
            gone.deliveries, status, NULL, NULL, content_type, body);
    END IF;
    IF gone.group_id IS NOT NULL THEN
        PERFORM free_group(q.queue_id, gone.group_id);
    END IF;
END
$$;

-- One transaction; whether each was completed, now or by the same call before. Rows are locked in order.
CREATE FUNCTION complete_batch(queue text, seqs bigint[], lock_tokens text[]) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    q queues := find_receivers(queue);
    tids tid[];
    freed text[];
    recorded bigint;
BEGIN
    PERFORM check_pairs(seqs, lock_tokens);
    -- Locked in a subquery of its own: as a join, a table without statistics makes it read the queue for each pair.
    tids := ARRAY(SELECT h.tid FROM (SELECT u.seq, u.lock_token FROM unnest(seqs, lock_tokens) AS u (seq, lock_token)
            ORDER BY u.seq OFFSET 0) AS w,
        LATERAL (SELECT r.ctid AS tid FROM requests r
            WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready AND r.seq = w.seq AND r.epoch = -1
                AND r.lock_token::text = w.lock_token AND r.locked_until > clock_timestamp() AND r.deadline > clock_timestamp()
            FOR UPDATE) AS h);
    WITH gone AS (
        DELETE FROM requests r WHERE r.ctid = ANY (tids) AND r.epoch = -1
        RETURNING r.seq, r.lock_token, r.id, r.token, r.route, r.enqueued_at, r.dispatched_at, r.deliveries, r.answered, r.group_id
    ), noted AS (
        INSERT INTO receipts (seq, lock_token, settled_at, queue_id, verb)
        SELECT g.seq, g.lock_token, clock_timestamp(), q.queue_id, 'complete' FROM gone g
    ), recorded AS (
        SELECT record_result(q.queue_id, q.result_ttl, g.id, g.token, g.route, g.enqueued_at, g.dispatched_at, g.deliveries, NULL,
            NULL, NULL, NULL, NULL) FROM gone g WHERE g.answered
    )
    SELECT array_agg(DISTINCT g.group_id) FILTER (WHERE g.group_id IS NOT NULL), (SELECT count(*) FROM recorded)
        INTO freed, recorded FROM gone g;
    PERFORM free_groups(q.queue_id, freed);
    RETURN ARRAY(SELECT EXISTS (SELECT FROM receipts p WHERE p.seq = w.seq AND p.lock_token::text = w.lock_token
            AND p.queue_id = q.queue_id AND p.verb = 'complete' AND p.settled_at > clock_timestamp() - interval '30 minutes')
        FROM unnest(seqs, lock_tokens) WITH ORDINALITY AS w (seq, lock_token, n) ORDER BY w.n);
END
$$;

CREATE FUNCTION check_pairs(seqs bigint[], lock_tokens text[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF seqs IS NULL OR lock_tokens IS NULL OR cardinality(seqs) <> cardinality(lock_tokens) THEN
        PERFORM fail('LH001', 'seqs and lock_tokens must not be null, and have as many elements');
    END IF;
END
$$;

-- Gives a message back: at once, or after a delay, for which its group waits. At the last delivery it is dead.
CREATE FUNCTION abandon(queue text, seq bigint, lock_token text, delay interval DEFAULT '0') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := find_receivers(queue);
    held record;
    later boolean;
BEGIN
    IF delay IS NULL OR delay NOT BETWEEN '0' AND '100 years' THEN
        PERFORM fail('LH001', 'delay must be from 0 to 100 years');
    END IF;
    SELECT * INTO held FROM hold_locked(q, seq, lock_token, format('abandon %s', extract(epoch FROM delay)));
    IF held.tid IS NULL THEN
        RETURN;
    ELSIF held.exhausted OR held.cancelled THEN
        PERFORM bury(q, ARRAY[held.tid]);
        RETURN;
    END IF;
    later := delay > '0';
    UPDATE requests r SET epoch = 0, locked_until = NULL, lock_token = NULL, ready = NOT later,
            due_at = CASE WHEN later THEN least(clock_timestamp() + delay, r.deadline) END
        WHERE r.ctid = held.tid;
    IF held.group_id IS NOT NULL THEN
        PERFORM free_group(q.queue_id, held.group_id); -- one with a smaller number may have come due
    END IF;
    PERFORM ring_queue(q.queue_id, NULL), ring_receivers(q.queue_id);
END
$$;

CREATE FUNCTION reject(queue text, seq bigint, lock_token text, reason text DEFAULT 'AppRequested',
    description text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := find_receivers(queue);
    held record;
BEGIN
    reason := coalesce(reason, 'AppRequested');
    IF octet_length(reason) NOT BETWEEN 1 AND 4096 THEN
        PERFORM fail('LH001', format('reason must have 1 to 4096 bytes, not %s', octet_length(reason)));
    ELSIF octet_length(description) > 65536 THEN
        PERFORM fail('LH001', format('description must have at most 65536 bytes, not %s', octet_length(description)));
    END IF;
    SELECT * INTO held FROM hold_locked(q, seq, lock_token,
        format('reject %s %s', md5(reason), md5(description)));
    IF held.tid IS NOT NULL THEN
        PERFORM bury(q, ARRAY[held.tid], reason, description);
    END IF;
END
$$;

-- Puts a message aside until somebody asks for it by its number. Its group waits.
CREATE FUNCTION defer(queue text, seq bigint, lock_token text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := find_receivers(queue);
    held record;
BEGIN
    SELECT * INTO held FROM hold_locked(q, seq, lock_token, 'defer');
    IF held.tid IS NULL THEN
        RETURN;
    ELSIF held.cancelled THEN
        PERFORM bury(q, ARRAY[held.tid]);
        RETURN;
    END IF;
    UPDATE requests r SET epoch = 0, locked_until = NULL, lock_token = NULL, ready = false, held = 'd'
        WHERE r.ctid = held.tid;
    IF held.group_id IS NOT NULL THEN
        PERFORM free_group(q.queue_id, held.group_id); -- one with a smaller number may have come due
    END IF;
END
$$;

-- Never shortens a lock, and never revives one.
CREATE FUNCTION renew(queue text, seq bigint, lock_token text) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := find_receivers(queue);
    until timestamptz := (renew_locks(q, ARRAY[seq], ARRAY[lock_token]))[1];
BEGIN
    IF until IS NULL THEN
        PERFORM lost(q, seq);
    END IF;
    RETURN until;
END
$$;

-- Until when each is locked now; NULL where the lock is lost.
CREATE FUNCTION renew_batch(queue text, seqs bigint[], lock_tokens text[]) RETURNS timestamptz[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues := find_receivers(queue);
BEGIN
    PERFORM check_pairs(seqs, lock_tokens);
    RETURN renew_locks(q, seqs, lock_tokens);
END
$$;

CREATE FUNCTION renew_locks(q queues, seqs bigint[], lock_tokens text[]) RETURNS timestamptz[]
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    tids tid[];
    untils timestamptz[];
BEGIN
    -- Locked in a subquery of its own: as a join, a table without statistics makes it read the queue for each pair.
    tids := ARRAY(SELECT h.tid FROM (SELECT u.seq, u.lock_token FROM unnest(seqs, lock_tokens) AS u (seq, lock_token)
            ORDER BY u.seq OFFSET 0) AS w,
        LATERAL (SELECT r.ctid AS tid FROM requests r
            WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready AND r.seq = w.seq AND r.epoch = -1
                AND r.lock_token::text = w.lock_token AND r.locked_until > clock_timestamp() AND r.deadline > clock_timestamp()
            FOR UPDATE) AS h);
    WITH renewed AS (
        UPDATE requests r SET locked_until = greatest(r.locked_until, clock_timestamp() + q.lock_time)
        WHERE r.ctid = ANY (tids) AND r.epoch = -1 RETURNING r.seq, r.lock_token::text AS lock_token, r.locked_until
    )
    SELECT array_agg(r.locked_until ORDER BY w.n) INTO untils
        FROM unnest(seqs, lock_tokens) WITH ORDINALITY AS w (seq, lock_token, n)
        LEFT JOIN renewed r ON r.seq = w.seq AND r.lock_token = w.lock_token;
    RETURN coalesce(untils, '{}');
END
$$;

-- Returns the channel to LISTEN on for messages of a queue, and asks for it to be rung for the next minute. Call it again
-- before that; look (receive) after LISTEN and whenever it rings, when next_receivable says so, and every few seconds in any
-- case.
CREATE FUNCTION listen_queue(queue text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues := find_receivers(queue);
BEGIN
    INSERT INTO waits AS w (queue_id, awaited_until) VALUES (q.queue_id, clock_timestamp() + interval '1 minute')
        ON CONFLICT (queue_id) DO UPDATE SET awaited_until = excluded.awaited_until
        WHERE w.awaited_until < excluded.awaited_until - interval '5 seconds';
    RETURN channel('messages', q.queue_id);
END
$$;

-- How long until a message becomes receivable by the mere passing of time: it comes due, or its lock lapses (of the 1,000
-- first of the queue). 0: one may be already. NULL: nothing is known to.
CREATE FUNCTION next_receivable(queue text) RETURNS interval
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    q queues := find_receivers(queue);
    soonest timestamptz;
BEGIN
    soonest := least(
        (SELECT r.due_at FROM requests r WHERE r.queue_id = q.queue_id AND NOT r.ready AND r.due_at IS NOT NULL
            ORDER BY r.due_at LIMIT 1),
        (SELECT min(CASE WHEN h.epoch = 0 THEN clock_timestamp() ELSE h.locked_until END) FROM (
            SELECT r.epoch, r.locked_until FROM requests r WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready
            ORDER BY r.queue_id, r.ready, r.seq LIMIT 1000) AS h));
    RETURN CASE WHEN soonest IS NOT NULL THEN greatest(soonest - clock_timestamp(), interval '0') END;
END
$$;
