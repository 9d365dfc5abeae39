-- Messages are received under a lock, and settled by whoever has its token.

-- The queue of a receiver.
CREATE FUNCTION find_receivers(queue text) RETURNS queues
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    q queues;
BEGIN
    SELECT * INTO q FROM queues t WHERE t.name = find_receivers.queue;
    IF NOT FOUND THEN
        PERFORM find_queue(queue); -- raises
    ELSIF q.kind = 'topic' THEN
        PERFORM fail('LH002', format('"%s" is a topic: receive from one of its subscriptions', queue));
    ELSIF NOT q.receivers THEN
        PERFORM fail('LH001', format('queue "%s" is for dispatchers: set "receivers" with configure_queue', queue));
    END IF;
    RETURN q;
END
$$;

-- Marks the rows of a queue that was without receivers. A transaction that read the queue before may still put
-- unmarked ones in. It had its id before it read: so none is left to come when all that are older than an id
-- drawn after the change have ended.
CREATE FUNCTION adopt(q queues) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    is_last boolean := q.adopting > '0' AND pg_snapshot_xmin(pg_current_snapshot()) >= q.adopting;
BEGIN
    UPDATE requests r SET receivable = true WHERE r.queue_id = q.queue_id AND r.ready AND r.tenant = '' AND NOT r.receivable;
    UPDATE requests r SET receivable = true WHERE r.queue_id = q.queue_id AND r.ready AND r.tenant <> '' AND NOT r.receivable;
    UPDATE requests r SET receivable = true WHERE r.queue_id = q.queue_id AND NOT r.ready AND NOT r.receivable;
    UPDATE queues t SET adopting = CASE WHEN is_last THEN NULL WHEN t.adopting = '0' THEN pg_current_xact_id() ELSE t.adopting END
        WHERE t.queue_id = q.queue_id AND t.adopting = q.adopting;
END
$$;

-- The outcome of a request that ends outside of a dispatcher, on its route.
CREATE FUNCTION record_result(queue_id int, result_ttl interval, id text, token text, route text, enqueued_at timestamptz,
    dispatched_at timestamptz, deliveries int, status int, code text, message text, content_type text, body bytea)
RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    is_text boolean := false;
BEGIN
    IF body IS NOT NULL THEN
        BEGIN
            is_text := convert_from(body, 'UTF8') IS NOT NULL;
        EXCEPTION WHEN OTHERS THEN
            NULL; -- bytes
        END;
    END IF;
    INSERT INTO results (enqueued_at, dispatched_at, finished_at, expires_at, attempt, queue_id, deliveries, status,
            body_is_text, route, id, token, code, message, content_type, body)
        VALUES (enqueued_at, dispatched_at, clock_timestamp(), clock_timestamp() + result_ttl, 0, queue_id, deliveries, status,
            is_text, coalesce(route, 'default'), id, token, code, message, content_type, body);
    PERFORM pg_notify(channel('route', w.route_id), '') FROM routes w
        WHERE w.route = coalesce(record_result.route, 'default') AND w.awaited_until > now();
END
$$;

-- Whether the lock of the last delivery lapses before the message expires: then it has died of that, whenever it is swept.
CREATE FUNCTION lapsed_last(r requests, max_deliveries int) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(r.deliveries >= max_deliveries AND r.locked_until <= r.deadline, false)
$$;

-- What is said of a message that died by itself.
CREATE FUNCTION describe_end(why text, deliveries int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE why WHEN 'TTLExpired' THEN 'it had expired'
        WHEN 'MaxDeliveryCountExceeded' THEN format('delivered %s times without success', deliveries) END
$$;

-- Ends requests that the caller has locked: rejected with a reason, or cancelled, expired, or delivered too often,
-- which each row tells. The queue says what it keeps. Says how many.
CREATE FUNCTION bury(q queues, tids tid[], reason text DEFAULT NULL, description text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    buried bigint;
    left_groups text[];
BEGIN
    IF tids = '{}' THEN
        RETURN 0; -- of thousands of queues most have none, at every sweep
    END IF;
    WITH gone AS (
        DELETE FROM requests r WHERE r.ctid = ANY (tids)
        RETURNING r.*, CASE WHEN r.cancelled THEN 'Cancelled'
            WHEN r.deadline <= clock_timestamp() AND NOT lapsed_last(r, q.max_deliveries) THEN 'TTLExpired'
            WHEN bury.reason IS NOT NULL THEN 'Rejected' ELSE 'MaxDeliveryCountExceeded' END AS why
    ), kept AS (
        INSERT INTO dead_letters (seq, queue_id, dead_at, enqueued_at, visible_at, expires_at, deliveries, answered, id, token,
            group_id, group_given, route, correlation_id, subject, content_type, reason, description, ttl, headers, metadata,
            payload)
        SELECT g.seq, g.queue_id, CASE g.why WHEN 'TTLExpired' THEN g.deadline
                WHEN 'MaxDeliveryCountExceeded' THEN least(g.locked_until, clock_timestamp()) ELSE clock_timestamp() END, g.enqueued_at, coalesce(g.due_at, g.visible_at, g.enqueued_at),
            CASE WHEN isfinite(g.deadline) THEN g.deadline END, g.deliveries, g.answered, g.id, g.token, g.group_id,
            g.group_given, g.route, g.correlation_id, g.subject, g.content_type,
            CASE g.why WHEN 'Rejected' THEN bury.reason ELSE g.why END, CASE g.why
                WHEN 'Rejected' THEN bury.description
                ELSE describe_end(g.why, g.deliveries) END,
            g.ttl, g.headers, g.metadata, g.payload
        FROM gone g
        WHERE q.dead_letters AND g.why <> 'Cancelled' AND (g.why <> 'TTLExpired' OR q.dead_letter_on_expiry)
    ), recorded AS (
        SELECT record_result(g.queue_id, q.result_ttl, g.id, g.token, g.route, g.enqueued_at, g.dispatched_at, g.deliveries,
            NULL, CASE g.why WHEN 'Cancelled' THEN 'CANCELLED' WHEN 'TTLExpired' THEN 'DEADLINE_EXCEEDED'
                WHEN 'MaxDeliveryCountExceeded' THEN 'MAX_DELIVERIES_EXCEEDED' ELSE 'REJECTED' END,
            CASE g.why WHEN 'Cancelled' THEN 'the request was cancelled' WHEN 'TTLExpired' THEN 'the deadline passed'
                WHEN 'MaxDeliveryCountExceeded' THEN format('delivered %s times without success', g.deliveries)
                ELSE concat_ws(': ', bury.reason, bury.description) END, NULL, NULL)
        FROM gone g WHERE g.answered
    )
    SELECT count(*) + (SELECT count(*) * 0 FROM recorded), array_agg(DISTINCT g.group_id) FILTER (WHERE g.group_id IS NOT NULL)
        INTO buried, left_groups FROM gone g;
    PERFORM free_groups(q.queue_id, left_groups);
    RETURN buried;
END
$$;

-- Ends at most max_rows that have expired. What a dispatcher has in hand is its own. Says how many.
CREATE FUNCTION bury_expired(q queues, max_rows int) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    at timestamptz := clock_timestamp(); -- a value, so that the index is read up to it and no further
BEGIN
    RETURN bury(q, ARRAY(SELECT r.ctid FROM requests r WHERE r.receivable AND r.queue_id = q.queue_id AND r.deadline < 'infinity'
            AND r.deadline <= at AND (r.epoch <= 0 OR NOT EXISTS (SELECT FROM partitions p
                WHERE p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.epoch = r.epoch
                    AND p.lease_expires_at > at))
        ORDER BY r.queue_id, r.deadline LIMIT max_rows FOR UPDATE OF r SKIP LOCKED));
END
$$;

-- What must be seen to before a look at a queue: none of it waits for a sweep. One that has expired while it was deferred or
-- parked still stands in its group's way.
CREATE FUNCTION tend(q queues) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    IF q.adopting IS NOT NULL THEN
        PERFORM adopt(q);
    END IF;
    IF EXISTS (SELECT FROM requests r WHERE r.receivable AND r.queue_id = q.queue_id AND r.deadline < 'infinity'
            AND r.deadline <= at) THEN
        PERFORM bury_expired(q, 100);
    END IF;
    IF EXISTS (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND NOT r.ready AND r.due_at <= at) THEN
        PERFORM promote_due(q.queue_id, 1000);
    END IF;
    IF EXISTS (SELECT FROM group_checks c WHERE c.queue_id = q.queue_id) THEN
        PERFORM check_groups(q.queue_id);
    END IF;
END
$$;

-- Locks up to `max` messages, lowest sequence number first, past what others have. Stops after the one that takes the
-- bodies to 32 MiB. A lock that has lapsed is none, and a dispatcher's that lost its lease is none. What has expired,
-- was cancelled, or was delivered too often ends here instead of being delivered.
--
-- One ordered index scan; what waits behind its group or for its time is not in it. It looks again where what comes next in
-- a group may have a smaller number than what was found: where something was ended, where one whose lock has lapsed may have
-- to step back, and, when messages are received and deleted, after each that is in a group.
CREATE FUNCTION receive(queue text, max int DEFAULT 1, mode text DEFAULT 'peek_lock', attempt_id text DEFAULT NULL)
RETURNS SETOF message
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = on SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    q queues := find_receivers(queue);
    locks boolean := mode = 'peek_lock';
    wanted int := max;
    budget bigint := 33554432;
    at timestamptz;
    span int := max;
    tids tid[];
    seqs bigint[];
    bytes bigint;
    ended tid[];
    given bigint[] := '{}';
    lapsed_groups text[];
    stepped_back boolean := false;
    freed text[];
    answer message[];
    answers message[] := '{}';
    recorded bigint;
BEGIN
    IF max IS NULL OR max NOT BETWEEN 1 AND 256 THEN
        PERFORM fail('LH001', format('max must be from 1 to 256, not %s', coalesce(max::text, 'null')));
    ELSIF mode IS NULL OR mode NOT IN ('peek_lock', 'receive_and_delete') THEN
        PERFORM fail('LH001', format('mode must be peek_lock or receive_and_delete, not %s', coalesce(mode, 'null')));
    END IF;
    IF attempt_id IS NOT NULL THEN
        PERFORM check_name('attempt_id', attempt_id);
        RETURN QUERY SELECT * FROM replay(q, attempt_id);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM tend(q);
    FOR round IN 1 .. 512 LOOP
        at := clock_timestamp();
        SELECT array_agg(h.tid ORDER BY h.seq) FILTER (WHERE h.fits), array_agg(h.seq ORDER BY h.seq) FILTER (WHERE h.fits),
                sum(h.size) FILTER (WHERE h.fits), array_agg(h.tid) FILTER (WHERE h.over),
                array_agg(h.group_id) FILTER (WHERE h.fits AND h.has_lapsed AND h.group_id IS NOT NULL)
            INTO tids, seqs, bytes, ended, lapsed_groups
            FROM (
                SELECT c.*, NOT c.over AND count(*) FILTER (WHERE NOT c.over) OVER w <= wanted
                    -- Behind one of a group that ends comes what comes next in that group.
                    AND coalesce(c.seq < min(c.seq) FILTER (WHERE c.over AND c.group_id IS NOT NULL) OVER (), true)
                    AND coalesce(sum(c.size) FILTER (WHERE NOT c.over) OVER w, 0) - c.size < budget
                    AND (locks OR count(c.group_id) FILTER (WHERE NOT c.over) OVER w - (c.group_id IS NOT NULL)::int = 0) AS fits
                FROM (
                    SELECT r.ctid AS tid, r.seq, r.group_id, r.epoch <> 0 AS has_lapsed, octet_length(r.payload) AS size,
                        r.cancelled OR r.deadline <= at OR r.deliveries >= q.max_deliveries AS over
                    FROM requests r
                    WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready AND (r.epoch = 0 OR r.locked_until <= at
                        OR r.epoch > 0 AND NOT EXISTS (SELECT FROM partitions p WHERE p.queue_id = r.queue_id
                            AND p.partition_id = r.partition_id AND p.epoch = r.epoch AND p.lease_expires_at > at))
                    ORDER BY r.queue_id, r.ready, r.seq LIMIT span FOR UPDATE OF r SKIP LOCKED) AS c
                WINDOW w AS (ORDER BY c.seq)) AS h;
        IF ended IS NOT NULL THEN
            PERFORM bury(q, ended);
            span := least(span * 4, 1000);
        END IF;
        IF lapsed_groups IS NOT NULL AND NOT stepped_back THEN
            PERFORM free_groups(q.queue_id, lapsed_groups);
            stepped_back := true;
            CONTINUE;
        END IF;
        freed := NULL;
        IF tids IS NOT NULL AND locks THEN
            RETURN QUERY WITH taken AS (
                UPDATE requests r SET epoch = -1, attempt = 0, deliveries = r.deliveries + 1, dispatched_at = at,
                    locked_until = at + q.lock_time, lock_token = gen_random_uuid()
                WHERE r.ctid = ANY (tids) RETURNING r.*)
            SELECT t.seq, t.id, given_group(t.group_id, t.group_given), t.correlation_id, t.route, t.subject, t.content_type,
                coalesce(t.metadata, '{}'), t.ttl, t.payload, t.deliveries, t.enqueued_at, t.locked_until, t.lock_token::text
            FROM taken t ORDER BY t.seq;
        ELSIF tids IS NOT NULL THEN
            WITH gone AS (
                DELETE FROM requests r WHERE r.ctid = ANY (tids) RETURNING r.*
            ), recorded AS (
                SELECT record_result(g.queue_id, q.result_ttl, g.id, g.token, g.route, g.enqueued_at, at, g.deliveries + 1,
                    NULL, NULL, NULL, NULL, NULL) FROM gone g WHERE g.answered
            )
            SELECT array_agg((g.seq, g.id, given_group(g.group_id, g.group_given), g.correlation_id, g.route, g.subject,
                    g.content_type, coalesce(g.metadata, '{}'), g.ttl, g.payload, g.deliveries + 1, g.enqueued_at,
                    NULL, NULL)::message ORDER BY g.seq),
                array_agg(g.group_id) FILTER (WHERE g.group_id IS NOT NULL), (SELECT count(*) FROM recorded)
                INTO answer, freed, recorded FROM gone g;
            answers := answers || answer;
            PERFORM free_groups(q.queue_id, freed);
        END IF;
        given := given || seqs;
        wanted := wanted - coalesce(cardinality(tids), 0);
        budget := budget - coalesce(bytes, 0);
        EXIT WHEN wanted = 0 OR budget <= 0 OR ended IS NULL AND freed IS NULL;
        span := greatest(span, wanted);
    END LOOP;
    IF answers <> '{}' THEN
        RETURN QUERY SELECT * FROM unnest(answers);
        PERFORM remember(q, attempt_id, answers) WHERE attempt_id IS NOT NULL;
    ELSIF attempt_id IS NOT NULL AND given <> '{}' THEN
        INSERT INTO replays AS p (queue_id, attempt_id, expires_at, seqs, lock_tokens)
            SELECT q.queue_id, receive.attempt_id, clock_timestamp() + greatest(q.lock_time, interval '5 minutes'),
                array_agg(r.seq), array_agg(r.lock_token)
            FROM requests r WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready AND r.seq = ANY (given)
            ON CONFLICT ON CONSTRAINT replays_pkey DO UPDATE SET expires_at = excluded.expires_at, seqs = excluded.seqs,
                lock_tokens = excluded.lock_tokens, messages = NULL;
    END IF;
END
$$;

CREATE FUNCTION given_group(group_id text, group_given text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN group_id = '' THEN group_given ELSE group_id END
$$;

-- The answer of an attempt whose messages are gone: kept whole.
CREATE FUNCTION remember(q queues, attempt_id text, answer message[]) RETURNS void
LANGUAGE sql SET search_path FROM CURRENT AS $$
    INSERT INTO replays AS p (queue_id, attempt_id, expires_at, messages)
        VALUES (q.queue_id, remember.attempt_id, clock_timestamp() + greatest(q.lock_time, interval '5 minutes'), answer)
        ON CONFLICT ON CONSTRAINT replays_pkey DO UPDATE SET expires_at = excluded.expires_at, seqs = NULL,
            lock_tokens = NULL, messages = excluded.messages
$$;

-- The answer of an attempt that was made before. One at a time: a repeat waits for the first. Locks that were settled or
-- have lapsed since are left out; when none is left, the attempt is forgotten.
CREATE FUNCTION replay(q queues, attempt_id text) RETURNS SETOF message
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    first replays;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(format('%s %s', q.queue_id, attempt_id), 7316));
    SELECT * INTO first FROM replays p WHERE p.queue_id = q.queue_id AND p.attempt_id = replay.attempt_id
        AND p.expires_at > clock_timestamp();
    IF first.messages IS NOT NULL THEN
        RETURN QUERY SELECT * FROM unnest(first.messages) AS a ORDER BY a.seq;
        RETURN;
    END IF;
    RETURN QUERY SELECT r.seq, r.id, given_group(r.group_id, r.group_given), r.correlation_id, r.route, r.subject,
            r.content_type, coalesce(r.metadata, '{}'), r.ttl, r.payload, r.deliveries, r.enqueued_at, r.locked_until,
            r.lock_token::text
        FROM unnest(first.seqs, first.lock_tokens) AS a (seq, lock_token)
        JOIN requests r ON r.receivable AND r.queue_id = q.queue_id AND r.ready AND r.seq = a.seq
        WHERE r.epoch = -1 AND r.lock_token = a.lock_token AND r.locked_until > clock_timestamp()
            AND r.deadline > clock_timestamp() ORDER BY r.seq;
    IF NOT FOUND THEN
        DELETE FROM replays p WHERE p.queue_id = q.queue_id AND p.attempt_id = replay.attempt_id;
    END IF;
END
$$;

-- Locks deferred messages, all or none. One of a group at most, and none beside one in flight of its group: one with a smaller
-- number may have come due, or been redriven, since, and waits if it is only ready. So that none becomes ready meanwhile, the
-- group's row for settling is held.
CREATE FUNCTION receive_deferred(queue text, seqs bigint[]) RETURNS SETOF message
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    q queues := find_receivers(queue);
    tids tid[];
    missing bigint;
    behind bigint;
    entered text[];
BEGIN
    IF seqs IS NULL THEN
        PERFORM fail('LH001', 'seqs must not be null; an empty array is allowed');
    END IF;
    IF q.adopting IS NOT NULL THEN
        PERFORM adopt(q);
    END IF;
    PERFORM FROM groups g WHERE g.queue_id = q.queue_id AND g.settles AND g.group_id = ANY (ARRAY(SELECT r.group_id FROM requests r
        WHERE r.receivable AND r.queue_id = q.queue_id AND NOT r.ready AND r.seq = ANY (receive_deferred.seqs) AND r.held = 'd'
            AND r.group_id IS NOT NULL)) ORDER BY g.group_id FOR UPDATE;
    WITH found AS (
        SELECT r.ctid AS tid, r.seq, r.group_id FROM requests r
        WHERE r.receivable AND r.queue_id = q.queue_id AND NOT r.ready AND r.seq = ANY (receive_deferred.seqs) AND r.held = 'd'
            AND r.deadline > clock_timestamp() ORDER BY r.seq FOR UPDATE
    )
    SELECT array_agg(f.tid), min(w.seq) FILTER (WHERE f.seq IS NULL), array_agg(f.group_id) FILTER (WHERE f.group_id IS NOT NULL)
        INTO tids, missing, entered
        FROM unnest(receive_deferred.seqs) AS w (seq) LEFT JOIN found f ON f.seq = w.seq;
    IF missing IS NOT NULL OR array_position(seqs, NULL) IS NOT NULL THEN
        PERFORM fail('LH011', format('queue "%s" has no deferred message %s', queue, coalesce(missing::text, 'null')));
    END IF;
    SELECT min(d.seq) INTO behind FROM (
        SELECT r.seq, r.group_id, row_number() OVER (PARTITION BY r.group_id ORDER BY r.seq) AS place
        FROM requests r WHERE r.ctid = ANY (tids) AND r.group_id IS NOT NULL) AS d
        WHERE d.place > 1 OR EXISTS (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND r.group_id = d.group_id
            AND r.ready AND r.held IS DISTINCT FROM 's' AND (r.epoch > 0 OR r.locked_until > clock_timestamp()));
    IF behind IS NOT NULL THEN
        PERFORM fail('LH011', format('message %s of queue "%s" waits for another of its group', behind, queue));
    END IF;
    IF entered IS NOT NULL THEN -- what would come next in the group waits for these; it may be an earlier one that came since
        UPDATE requests r SET ready = false, held = 'g'
            WHERE r.queue_id = q.queue_id AND r.group_id = ANY (entered) AND r.ready AND r.held IS DISTINCT FROM 's'
                AND (r.epoch = 0 OR r.locked_until <= clock_timestamp()) AND r.deliveries < q.max_deliveries AND NOT r.cancelled;
    END IF;
    RETURN QUERY WITH taken AS (
        UPDATE requests r SET ready = true, held = NULL, epoch = -1, attempt = 0, deliveries = r.deliveries + 1,
            dispatched_at = clock_timestamp(), locked_until = clock_timestamp() + q.lock_time, lock_token = gen_random_uuid()
        WHERE r.ctid = ANY (tids) RETURNING r.*)
    SELECT t.seq, t.id, given_group(t.group_id, t.group_given), t.correlation_id, t.route, t.subject, t.content_type,
        coalesce(t.metadata, '{}'), t.ttl, t.payload, t.deliveries, t.enqueued_at, t.locked_until, t.lock_token::text
    FROM taken t ORDER BY t.seq;
END
$$;
