-- What is in a queue, its dead letters, its settings, and topics.

CREATE TYPE peeked_message AS (
    seq bigint, message_id text, group_id text, correlation_id text, reply_to text, subject text, content_type text,
    properties jsonb, ttl interval, body bytea, delivery_count int, enqueued_at timestamptz, state text,
    locked_until timestamptz, visible_at timestamptz, expires_at timestamptz, dead_at timestamptz, dead_letter_reason text,
    dead_letter_description text
);

-- The state of a row, whatever sweep has run: 'active', 'locked', 'scheduled', 'deferred'; or how it ended: 'Cancelled',
-- 'TTLExpired', 'MaxDeliveryCountExceeded'.
CREATE FUNCTION state_of(r requests, max_deliveries int, at timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN r.epoch > 0 THEN 'locked'
        WHEN lapsed_last(r, max_deliveries) AND r.locked_until <= at AND NOT r.cancelled THEN 'MaxDeliveryCountExceeded'
        WHEN r.deadline <= at THEN CASE WHEN r.cancelled THEN 'Cancelled' ELSE 'TTLExpired' END
        WHEN r.locked_until > at THEN 'locked'
        WHEN r.cancelled THEN 'Cancelled'
        WHEN r.held = 'd' THEN 'deferred'
        WHEN r.deliveries >= max_deliveries AND r.ready THEN 'MaxDeliveryCountExceeded'
        WHEN NOT r.ready AND r.due_at > at THEN 'scheduled'
        ELSE 'active' END
$$;

-- What is dead and not yet moved: kept by the queue, or gone.
CREATE FUNCTION keeps(q queues, state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT q.dead_letters AND (state = 'MaxDeliveryCountExceeded' OR state = 'TTLExpired' AND q.dead_letter_on_expiry)
$$;

CREATE FUNCTION is_live(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT state IN ('active', 'locked', 'scheduled', 'deferred')
$$;

-- Whether a peek for a state (NULL: all) shows a row of this one.
CREATE FUNCTION shows(q queues, state text, wanted text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN is_live(state) THEN wanted IS NULL OR wanted = state
        ELSE keeps(q, state) AND (wanted IS NULL OR wanted = 'dead') END
$$;

-- The rows of a queue, each way of finding them by its own index.
CREATE FUNCTION rows_of(queue_id int) RETURNS SETOF requests
LANGUAGE sql STABLE AS $$
    SELECT * FROM requests r WHERE r.queue_id = $1 AND r.ready AND r.tenant = ''
    UNION ALL SELECT * FROM requests r WHERE r.queue_id = $1 AND r.ready AND r.tenant <> ''
    UNION ALL SELECT * FROM requests r WHERE r.queue_id = $1 AND NOT r.ready
$$;

-- Shows messages from a sequence number on, in their order, and changes nothing. `state` NULL: all. At most 32 MiB of
-- bodies. In a queue without receivers it reads the whole queue.
CREATE FUNCTION peek(queue text, from_seq bigint DEFAULT 0, state text DEFAULT NULL, max int DEFAULT 32)
RETURNS SETOF peeked_message
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    q queues := find_queue(queue);
    at timestamptz := clock_timestamp();
    wanted int := max;
BEGIN
    IF max IS NULL OR max NOT BETWEEN 1 AND 1000 THEN
        PERFORM fail('LH001', format('max must be from 1 to 1000, not %s', coalesce(max::text, 'null')));
    ELSIF from_seq IS NULL OR from_seq < 0 THEN
        PERFORM fail('LH001', 'from_seq must be at least 0');
    ELSIF state NOT IN ('active', 'locked', 'scheduled', 'deferred', 'dead') THEN
        PERFORM fail('LH001', format('state must be active, locked, scheduled, deferred or dead, not %s', state));
    END IF;
    RETURN QUERY
        WITH live AS (
            (SELECT x.*, state_of(x, q.max_deliveries, at) AS state FROM requests x
                WHERE x.receivable AND x.queue_id = q.queue_id AND x.ready AND x.seq >= from_seq
                    AND shows(q, state_of(x, q.max_deliveries, at), peek.state) AND q.receivers AND q.adopting IS NULL
                ORDER BY x.queue_id, x.ready, x.seq LIMIT wanted)
            UNION ALL
            (SELECT x.*, state_of(x, q.max_deliveries, at) AS state FROM requests x
                WHERE x.receivable AND x.queue_id = q.queue_id AND NOT x.ready AND x.seq >= from_seq
                    AND shows(q, state_of(x, q.max_deliveries, at), peek.state) AND q.receivers AND q.adopting IS NULL
                ORDER BY x.queue_id, x.ready, x.seq LIMIT wanted)
            UNION ALL
            (SELECT x.*, state_of(x, q.max_deliveries, at) AS state FROM rows_of(q.queue_id) x
                WHERE x.seq >= from_seq AND shows(q, state_of(x, q.max_deliveries, at), peek.state)
                    AND (NOT q.receivers OR q.adopting IS NOT NULL)
                ORDER BY x.seq LIMIT wanted)
        ), found AS (
            (SELECT l.seq, l.id, l.group_id, l.group_given, l.correlation_id, l.route, l.subject, l.content_type, l.metadata, l.ttl,
                l.payload, l.deliveries, l.enqueued_at,
                CASE WHEN is_live(l.state) THEN l.state ELSE 'dead' END AS state,
                CASE WHEN l.state = 'locked' THEN l.locked_until END AS locked_until,
                coalesce(l.due_at, l.visible_at, l.enqueued_at) AS visible_at,
                CASE WHEN isfinite(l.deadline) THEN l.deadline END AS expires_at,
                CASE l.state WHEN 'TTLExpired' THEN l.deadline WHEN 'MaxDeliveryCountExceeded' THEN coalesce(l.locked_until, at)
                    END AS dead_at,
                CASE WHEN NOT is_live(l.state) THEN l.state END AS reason, describe_end(l.state, l.deliveries) AS description
            FROM live l ORDER BY l.seq LIMIT wanted)
            UNION ALL
            (SELECT d.seq, d.id, d.group_id, d.group_given, d.correlation_id, d.route, d.subject, d.content_type, d.metadata, d.ttl,
                d.payload, d.deliveries, d.enqueued_at, 'dead', NULL, d.visible_at, d.expires_at, d.dead_at, d.reason, d.description
            FROM dead_letters d WHERE d.queue_id = q.queue_id AND d.seq >= from_seq AND (peek.state IS NULL OR peek.state = 'dead')
            ORDER BY d.seq LIMIT wanted)
            ORDER BY 1 LIMIT wanted
        )
        SELECT f.seq, f.id, given_group(f.group_id, f.group_given), f.correlation_id, f.route, f.subject, f.content_type,
            coalesce(f.metadata, '{}'), f.ttl, f.payload, f.deliveries, f.enqueued_at, f.state, f.locked_until, f.visible_at,
            f.expires_at, f.dead_at, f.reason, f.description
        FROM (SELECT x.*, sum(octet_length(x.payload)) OVER (ORDER BY x.seq) - octet_length(x.payload) AS before FROM found x) AS f
        WHERE f.before < 33554432 ORDER BY f.seq;
END
$$;

-- Exact: it counts the queue's rows. `leasehold status` counts within bounds.
CREATE FUNCTION queue_stats(queue text, OUT active bigint, OUT locked bigint, OUT deferred bigint, OUT scheduled bigint,
    OUT dead bigint, OUT total bigint, OUT oldest_age interval)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    q queues := find_queue(queue);
    at timestamptz := clock_timestamp();
BEGIN
    SELECT count(*) FILTER (WHERE s.state = 'active'), count(*) FILTER (WHERE s.state = 'locked'),
            count(*) FILTER (WHERE s.state = 'deferred'), count(*) FILTER (WHERE s.state = 'scheduled'),
            count(*) FILTER (WHERE keeps(q, s.state)) + (SELECT count(*) FROM dead_letters d WHERE d.queue_id = q.queue_id),
            at - min(s.enqueued_at) FILTER (WHERE s.state IN ('active', 'locked'))
        INTO active, locked, deferred, scheduled, dead, oldest_age
        FROM (SELECT state_of(r, q.max_deliveries, at) AS state, r.enqueued_at FROM rows_of(q.queue_id) r) AS s;
    total := active + locked + deferred + scheduled + dead;
END
$$;

-- Moves what is dead to the dead letters, as far as no sweep has: at most max_rows that have expired, and as many of the
-- first max_rows that were delivered too often. Says how many.
CREATE FUNCTION bury_ended(q queues, max_rows int) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    tids tid[];
    buried bigint;
BEGIN
    IF NOT q.receivers THEN
        RETURN 0; -- its dispatchers end what is late
    END IF;
    buried := bury_expired(q, max_rows);
    tids := ARRAY(SELECT c.tid FROM (
        SELECT r.ctid AS tid, r.epoch, r.locked_until, r.deliveries FROM requests r
            WHERE r.receivable AND r.queue_id = q.queue_id AND r.ready ORDER BY r.queue_id, r.ready, r.seq LIMIT max_rows) AS c
        WHERE c.deliveries >= q.max_deliveries AND (c.epoch = 0 OR c.locked_until <= clock_timestamp()));
    tids := ARRAY(SELECT r.ctid FROM requests r WHERE r.ctid = ANY (tids) AND r.ready AND r.deliveries >= q.max_deliveries
        AND (r.epoch = 0 OR r.locked_until <= clock_timestamp()) FOR UPDATE SKIP LOCKED);
    RETURN buried + bury(q, tids);
END
$$;

CREATE FUNCTION check_bounds(max bigint, older_than interval) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF max < 0 THEN
        PERFORM fail('LH001', format('max must be at least 0, not %s', max));
    ELSIF older_than < '0' OR older_than > '1000 years' THEN
        PERFORM fail('LH001', 'older_than must be from 0 to 1000 years');
    END IF;
END
$$;

-- Sends dead letters back, oldest number first: to where they were, with their number, or to the end of another queue. The
-- delivery count begins anew, and so does the time to live. Each gets a new token: the outcome of the one before may be
-- recorded already. One transaction; says how many.
CREATE FUNCTION redrive(queue text, target text DEFAULT NULL, max bigint DEFAULT NULL, older_than interval DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    q queues := find_queue(queue);
    goal queues := enter_queue(coalesce(target, queue));
    now_at timestamptz := clock_timestamp();
    lanes text[];
    moved bigint;
    tids tid[];
BEGIN
    PERFORM check_bounds(max, older_than), check_not_topic(goal), bury_ended(q, 10000);
    SELECT array_agg(c.tid), array_agg(c.lane) INTO tids, lanes FROM (
        SELECT d.ctid AS tid, CASE WHEN goal.ordering = 'strict_fifo' THEN '' ELSE given_group(d.group_id, d.group_given) END AS lane
            FROM dead_letters d WHERE d.queue_id = q.queue_id AND (older_than IS NULL OR d.dead_at <= now_at - older_than)
            ORDER BY d.seq LIMIT max FOR UPDATE SKIP LOCKED) AS c;
    IF tids IS NULL THEN
        RETURN 0;
    ELSIF goal.ordering = 'group_fifo' AND array_position(lanes, NULL) IS NOT NULL THEN
        PERFORM fail('LH009', format('queue "%s" is ordered by group, and a dead letter has none', goal.name));
    END IF;
    PERFORM lock_groups(goal.queue_id, lanes);
    WITH gone AS (
        DELETE FROM dead_letters d WHERE d.ctid = ANY (tids) RETURNING d.*
    ), ordered AS (
        SELECT g.*, CASE WHEN goal.ordering = 'strict_fifo' THEN '' ELSE given_group(g.group_id, g.group_given) END AS lane
        FROM gone g ORDER BY g.seq OFFSET 0
    ), back AS (
        INSERT INTO requests (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, headers, metadata,
            enqueued_at, tenant, receivable, answered, group_id, group_given, held, ttl, visible_at, correlation_id, subject, content_type)
        SELECT CASE WHEN goal.queue_id = q.queue_id THEN o.seq ELSE nextval('request_seq') END, goal.queue_id,
            partition_of(coalesce(o.lane, o.id)), o.id, gen_random_uuid()::text, o.payload,
            coalesce(now_at + least(o.ttl, goal.ttl), now_at + goal.default_deadline, 'infinity'), coalesce(goal.route, o.route),
            o.lane IS NULL, o.headers, o.metadata, o.enqueued_at,
            CASE WHEN goal.tenant_attributes IS NULL THEN '' ELSE tenant_of(o.metadata, goal.tenant_attributes) END,
            goal.receivers, o.answered OR goal.route IS NOT NULL, o.lane,
            CASE WHEN o.lane = '' THEN given_group(o.group_id, o.group_given) END,
            CASE WHEN o.lane IS NOT NULL THEN 'g'::"char" END, o.ttl, now_at, o.correlation_id, o.subject, o.content_type
        FROM ordered o
        RETURNING 1
    )
    SELECT count(*) INTO moved FROM back;
    PERFORM accepted(goal, lanes);
    RETURN moved;
END
$$;

-- Deletes dead letters, oldest first. Says how many.
CREATE FUNCTION purge(queue text, max bigint DEFAULT NULL, older_than interval DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    q queues := find_queue(queue);
    purged bigint;
BEGIN
    PERFORM check_bounds(max, older_than), bury_ended(q, 10000);
    DELETE FROM dead_letters d WHERE d.ctid = ANY (ARRAY(
        SELECT c.ctid FROM dead_letters c
        WHERE c.queue_id = q.queue_id AND (older_than IS NULL OR c.dead_at <= clock_timestamp() - older_than)
        ORDER BY c.dead_at, c.seq LIMIT max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END
$$;
