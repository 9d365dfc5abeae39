-- Messages: what a row needs to be received under a lock instead of dispatched, to wait behind its group, and to be
-- kept when it is dead. A queue that uses none of it pays two bytes a row.

ALTER TABLE queues
    ADD COLUMN kind text NOT NULL DEFAULT 'queue',                 -- or topic: what is sent goes to its subscriptions
    ADD COLUMN ordering text NOT NULL DEFAULT 'standard',          -- or group_fifo, strict_fifo
    ADD COLUMN receivers boolean NOT NULL DEFAULT false,           -- received under a lock, besides being dispatched
    ADD COLUMN adopting xid8,                                      -- rows from before `receivers` may be unmarked: see adopt
    ADD COLUMN lock_time interval NOT NULL DEFAULT '30 seconds',
    ADD COLUMN ttl interval,                                       -- caps the message's own; NULL: none
    ADD COLUMN dedup_window interval,                              -- NULL: off
    ADD COLUMN dead_letters boolean NOT NULL DEFAULT false,        -- keeps what ends without success
    ADD COLUMN dead_letter_on_expiry boolean NOT NULL DEFAULT true,
    ADD COLUMN dead_letter_max_age interval,                       -- NULL: 14 days; negative: unbounded
    ADD COLUMN dead_letter_max_count bigint,                       -- NULL: 1,000,000; negative: unbounded
    ADD COLUMN dead_letter_max_bytes bigint;                       -- NULL or negative: unbounded

-- A receiver's lock is epoch -1: no partition ever has it, so that no dispatcher's fence matches. A lock that has
-- lapsed is no lock, whatever the epoch says. Like a stamp, it changes no indexed column.
--
-- `held` says why a request is not ready, where that is not a retry or a delay after a delivery: 's' scheduled and
-- never delivered, 'd' deferred, 'g' behind another of its group.
--
-- `group_id` is what orders: '' where the whole queue is one group, and the given one is kept beside it.
ALTER TABLE requests
    ADD COLUMN receivable boolean NOT NULL DEFAULT false,          -- as its queue's `receivers`
    ADD COLUMN answered boolean NOT NULL DEFAULT true,             -- an end outside of a dispatcher is a result, too
    ADD COLUMN held "char",
    ADD COLUMN locked_until timestamptz,
    ADD COLUMN lock_token uuid,
    ADD COLUMN ttl interval,                                       -- the deadline counts from its visibility
    ADD COLUMN visible_at timestamptz,                             -- NULL: since it was enqueued, or not before due_at
    ADD COLUMN group_given text COLLATE "C",
    ADD COLUMN correlation_id text COLLATE "C",
    ADD COLUMN subject text COLLATE "C",
    ADD COLUMN content_type text COLLATE "C";

CREATE INDEX requests_receivable ON requests (queue_id, ready, seq) WHERE receivable;
CREATE INDEX requests_expiry ON requests (queue_id, deadline) WHERE receivable AND deadline < 'infinity';
CREATE INDEX requests_group ON requests (queue_id, group_id, ready, seq)
    WHERE group_id IS NOT NULL AND held IS DISTINCT FROM 's';
CREATE INDEX requests_scheduled_group ON requests (queue_id, group_id) WHERE group_id IS NOT NULL AND held = 's';

-- Two rows for each group: one that its senders lock, to the end of their transactions, so that sequence order is commit
-- order; and one for whoever makes something of it ready.
CREATE TABLE groups (
    queue_id    int NOT NULL,
    settles     boolean NOT NULL,
    group_id    text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue_id, group_id, settles)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);

-- Groups somebody could not settle, because another held them: whoever looks next does.
CREATE TABLE group_checks (
    queue_id    int NOT NULL,
    group_id    text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX group_checks_queue ON group_checks (queue_id);

CREATE TABLE dead_letters (
    seq             bigint NOT NULL,
    dead_at         timestamptz NOT NULL,
    enqueued_at     timestamptz NOT NULL,
    visible_at      timestamptz,
    expires_at      timestamptz,
    queue_id        int NOT NULL,
    deliveries      int NOT NULL,
    answered        boolean NOT NULL,
    id              text COLLATE "C" NOT NULL,
    token           text COLLATE "C" NOT NULL,
    group_id        text COLLATE "C",
    group_given     text COLLATE "C",
    route           text COLLATE "C",
    correlation_id  text COLLATE "C",
    subject         text COLLATE "C",
    content_type    text COLLATE "C",
    reason          text NOT NULL,
    description     text,
    ttl             interval,
    headers         jsonb,
    metadata        jsonb,
    payload         bytea NOT NULL,
    PRIMARY KEY (queue_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dead_letters_age ON dead_letters (queue_id, dead_at, seq);
CREATE INDEX dead_letters_id ON dead_letters (id);

-- What settled a message: an identical repeat within 30 minutes succeeds again. `verb` has the arguments in it.
CREATE TABLE receipts (
    seq         bigint NOT NULL,
    lock_token  uuid NOT NULL,
    settled_at  timestamptz NOT NULL,
    queue_id    int NOT NULL,
    verb        text COLLATE "C" NOT NULL,
    PRIMARY KEY (seq, lock_token)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX receipts_age ON receipts (settled_at);

-- The first acceptance of a key within its queue's window.
CREATE TABLE dedup (
    queue_id    int NOT NULL,
    seq         bigint NOT NULL,
    expires_at  timestamptz NOT NULL,
    key         bytea NOT NULL,
    digest      bytea NOT NULL,                                    -- SHA-256 of the body
    id          text COLLATE "C" NOT NULL,
    token       text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue_id, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX dedup_expiry ON dedup (expires_at);

CREATE TYPE message AS (
    seq bigint, message_id text, group_id text, correlation_id text, reply_to text, subject text, content_type text,
    properties jsonb, ttl interval, body bytea, delivery_count int, enqueued_at timestamptz, locked_until timestamptz,
    lock_token text
);

-- The answers of receives that named an attempt: a repeat after a lost reply gets the same again.
CREATE TABLE replays (
    queue_id    int NOT NULL,
    expires_at  timestamptz NOT NULL,
    attempt_id  text COLLATE "C" NOT NULL,
    seqs        bigint[],                                          -- under a lock: read anew
    lock_tokens uuid[],
    messages    message[],                                         -- received and deleted: kept whole
    PRIMARY KEY (queue_id, attempt_id)
);
CREATE INDEX replays_expiry ON replays (expires_at);

CREATE TABLE subscriptions (
    topic_id    int NOT NULL,
    queue_id    int NOT NULL PRIMARY KEY,                          -- of the queue that has its name
    filter      jsonpath                                           -- NULL: everything
);
CREATE INDEX subscriptions_topic ON subscriptions (topic_id, queue_id);

-- Queues somebody waits on with LISTEN; see listen_queue.
CREATE TABLE waits (
    queue_id        int PRIMARY KEY,
    awaited_until   timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Whoever holds this sweeps; see maintain. Nothing depends on its being done in time.
CREATE TABLE maintenance (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    owner       text COLLATE "C",
    expires_at  timestamptz NOT NULL DEFAULT '-infinity',
    retained_at timestamptz NOT NULL DEFAULT '-infinity',          -- when dead letters were last held to their bounds
    queue_id    int NOT NULL DEFAULT 0,                            -- the group looked at last: they are gone through in turns
    group_id    text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO maintenance DEFAULT VALUES;

DO $$
BEGIN
    ALTER TABLE dead_letters ALTER COLUMN payload SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    ALTER TABLE dead_letters ALTER COLUMN payload SET STORAGE EXTERNAL;
END
$$;

-- Wakes who waits for messages of the queue, at commit; costs one look where nobody does.
CREATE FUNCTION ring_receivers(queue_id int) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM waits w WHERE w.queue_id = ring_receivers.queue_id AND w.awaited_until > clock_timestamp()) THEN
        PERFORM pg_notify(channel('messages', ring_receivers.queue_id), '');
    END IF;
END
$$;

-- Groups. At most one request of a group is ready: the one that is in flight or comes next. The others are held, and
-- so stand in no poll's way. Whoever takes the ready one away makes the next one ready.
--
-- Two must not miss each other: a sender that still sees the one before it, and whoever takes that one away and does
-- not see the sender's yet. A sender holds a row of the group to its end. Who takes away what was ready, with the other row
-- held, makes the next one ready; where it sees none, it asks for the senders' row, without waiting. If a sender has it, a check
-- is left behind, and the next look after both have ended settles the group. So nobody but senders ever waits for a sender, and
-- what is committed never waits for what is not. A sender that finds the group empty needs the other row, too, without waiting:
-- something scheduled may be coming due.
--
-- All of it needs statements that see what was committed before them, so under REPEATABLE READ a check is left behind, too.

CREATE FUNCTION sees_commits() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT current_setting('transaction_isolation') = 'read committed'
$$;

-- Makes the first of a group ready, where that can be. False: nothing of the group is there. The caller holds the row for
-- settling. What is scheduled is not there yet; what was cancelled stands in nobody's way. When one with a smaller seq has come
-- due, the one that was ready steps back, unless it is in flight.
CREATE FUNCTION settle_group(queue_id int, group_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    next record;
    q queues;
BEGIN
    -- One statement, so one snapshot: a deferred message that is received between two would be seen by neither.
    SELECT n.seq, n.held, n.partition_id, f.seq AS front_seq, f.locked_until, f.deliveries, f.in_flight INTO next
        FROM (SELECT) AS one
        LEFT JOIN LATERAL (
            SELECT r.seq, r.locked_until, r.deliveries,
                r.epoch > 0 OR coalesce(r.locked_until > clock_timestamp(), false) AS in_flight FROM requests r
            WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND r.ready
                AND r.held IS DISTINCT FROM 's'
                AND (NOT r.cancelled OR r.epoch > 0 OR r.locked_until > clock_timestamp())
            ORDER BY r.queue_id, r.group_id, r.ready, r.seq LIMIT 1) AS f ON true
        LEFT JOIN LATERAL (
            SELECT r.seq, r.held, r.partition_id FROM requests r
            WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND NOT r.ready
                AND r.held IS DISTINCT FROM 's'
            ORDER BY r.queue_id, r.group_id, r.ready, r.seq LIMIT 1) AS n ON true;
    IF next.in_flight THEN
        RETURN true;
    ELSIF next.seq IS NULL OR next.front_seq < next.seq THEN
        RETURN next.front_seq IS NOT NULL;
    ELSIF next.locked_until IS NOT NULL THEN -- lapsed: it does not step back if that was its last delivery
        SELECT * INTO q FROM queues t WHERE t.queue_id = settle_group.queue_id;
        IF next.deliveries >= q.max_deliveries THEN
            PERFORM bury(q, ARRAY(SELECT r.ctid FROM requests r
                WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND r.ready
                    AND r.seq = next.front_seq AND r.held IS DISTINCT FROM 's' AND r.locked_until <= clock_timestamp()
                FOR UPDATE SKIP LOCKED));
            RETURN true; -- what it left has been settled
        END IF;
    END IF;
    IF next.front_seq IS NOT NULL THEN
        PERFORM FROM requests r
            WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND r.ready
                AND r.seq = next.front_seq AND r.held IS DISTINCT FROM 's'
                AND (r.epoch = 0 OR r.locked_until <= clock_timestamp())
            FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN -- taken meanwhile, or by a transaction that is open and may yet give it back
            INSERT INTO group_checks (queue_id, group_id) VALUES (queue_id, group_id);
            RETURN true;
        END IF;
        UPDATE requests r SET ready = false, held = 'g'
            WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND r.ready
                AND r.seq = next.front_seq AND r.held IS DISTINCT FROM 's'
                AND (r.epoch = 0 OR r.locked_until <= clock_timestamp());
    END IF;
    IF next.held = 'g' THEN
        UPDATE requests r SET ready = true, held = NULL
            WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND NOT r.ready
                AND r.seq = next.seq AND r.held IS DISTINCT FROM 's' AND r.held = 'g';
        PERFORM ring_queue(queue_id, next.partition_id), ring_receivers(queue_id);
    END IF;
    RETURN true;
END
$$;

-- False: somebody else has to be waited for.
CREATE FUNCTION try_settle_group(queue_id int, group_id text) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
BEGIN
    IF NOT sees_commits() THEN
        RETURN false;
    END IF;
    PERFORM FROM groups g WHERE g.queue_id = try_settle_group.queue_id AND g.group_id = try_settle_group.group_id AND g.settles
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF settle_group(queue_id, group_id) THEN
        RETURN true;
    END IF;
    -- A sender may be putting something down behind the one that has just left.
    PERFORM FROM groups g WHERE g.queue_id = try_settle_group.queue_id AND g.group_id = try_settle_group.group_id AND NOT g.settles
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM settle_group(queue_id, group_id);
    RETURN true;
END
$$;

-- Something left the group, or came to it.
CREATE FUNCTION free_group(queue_id int, group_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
BEGIN
    IF NOT try_settle_group(queue_id, group_id) THEN
        INSERT INTO group_checks (queue_id, group_id) VALUES (queue_id, group_id);
        PERFORM ring_queue(queue_id, NULL), ring_receivers(queue_id);
    END IF;
END
$$;

CREATE FUNCTION free_groups(queue_id int, group_ids text[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF group_ids IS NOT NULL THEN
        PERFORM free_group(free_groups.queue_id, g.group_id) FROM (SELECT DISTINCT u.group_id FROM unnest(group_ids) AS u (group_id)
            WHERE u.group_id IS NOT NULL ORDER BY 1) AS g;
    END IF;
END
$$;

-- Settles the groups that were left for later, as far as nobody else has to be waited for. Says how many.
CREATE FUNCTION check_groups(queue_id int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    checks tid[];
    left_group text;
    settled int := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM group_checks c WHERE c.queue_id = check_groups.queue_id) OR NOT sees_commits() THEN
        RETURN 0;
    END IF;
    FOR left_group, checks IN
        SELECT c.group_id, array_agg(c.tid) FROM (
            SELECT k.ctid AS tid, k.group_id FROM group_checks k WHERE k.queue_id = check_groups.queue_id
            LIMIT 1000 FOR UPDATE SKIP LOCKED) AS c
        GROUP BY c.group_id ORDER BY c.group_id
    LOOP
        CONTINUE WHEN NOT try_settle_group(queue_id, left_group)
            AND EXISTS (SELECT FROM groups g WHERE g.queue_id = check_groups.queue_id AND g.group_id = left_group);
        DELETE FROM group_checks k WHERE k.ctid = ANY (checks);
        settled := settled + 1;
    END LOOP;
    RETURN settled;
END
$$;

-- Locks the senders' rows of groups, in order, making those that are missing.
CREATE FUNCTION lock_groups(queue_id int, group_ids text[]) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    wanted text[] := ARRAY(SELECT DISTINCT u.g COLLATE "C" FROM unnest(group_ids) AS u (g) WHERE u.g IS NOT NULL ORDER BY 1);
    locked int;
BEGIN
    LOOP
        PERFORM 1 FROM groups g WHERE g.queue_id = lock_groups.queue_id AND g.group_id = ANY (wanted) AND NOT g.settles
            ORDER BY g.group_id FOR UPDATE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        EXIT WHEN locked = cardinality(wanted);
        INSERT INTO groups (queue_id, group_id, settles) SELECT lock_groups.queue_id, w.g, r.settles
            FROM unnest(wanted) WITH ORDINALITY AS w (g, n), unnest(ARRAY[false, true]) AS r (settles) ORDER BY w.n, r.settles
            ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- Which of what is sent comes first in its group, and is ready at once: the first of those that do not wait for their time,
-- where nothing of the group is there, and nobody else is about to make something ready. The sender holds the senders' rows. NULL
-- where nothing orders any of them.
CREATE FUNCTION opens_group(queue_id int, lanes text[], waits boolean[]) RETURNS boolean[]
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET enable_nestloop = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    empty text[];
BEGIN
    IF lanes IS NULL THEN
        RETURN NULL;
    ELSIF sees_commits() THEN
        -- With limits, so that each group is looked up, and not the queue read for all.
        empty := ARRAY(SELECT DISTINCT u.lane FROM unnest(lanes) AS u (lane) WHERE u.lane IS NOT NULL AND (
            SELECT r.seq FROM requests r WHERE r.queue_id = opens_group.queue_id AND r.group_id = u.lane AND r.held IS DISTINCT FROM 's'
            ORDER BY r.queue_id, r.group_id, r.ready, r.seq LIMIT 1) IS NULL);
        IF empty <> '{}' THEN
            empty := ARRAY(SELECT g.group_id FROM groups g WHERE g.queue_id = opens_group.queue_id AND g.group_id = ANY (empty)
                AND g.settles FOR UPDATE SKIP LOCKED);
        END IF;
    END IF;
    IF empty IS NULL OR empty = '{}' THEN
        RETURN array_fill(false, ARRAY[cardinality(lanes)]);
    END IF;
    RETURN (SELECT array_agg(f.n IS NOT NULL ORDER BY u.n) FROM unnest(lanes) WITH ORDINALITY AS u (lane, n) LEFT JOIN (
        SELECT min(x.n) AS n FROM unnest(lanes, waits) WITH ORDINALITY AS x (lane, waits, n)
        WHERE x.lane = ANY (empty) AND NOT x.waits GROUP BY x.lane
        HAVING (SELECT r.seq FROM requests r WHERE r.queue_id = opens_group.queue_id AND r.group_id = x.lane
            AND r.held IS DISTINCT FROM 's' ORDER BY r.queue_id, r.group_id, r.ready, r.seq LIMIT 1) IS NULL) AS f ON f.n = u.n);
END
$$;

-- After something was put down as held: where it comes first, the next look settles the group. The sender does not: it would
-- hold the row for settling to its end, and hold up what is committed.
CREATE FUNCTION sent_to_group(queue_id int, group_id text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    front bigint;
    next record;
BEGIN
    IF sees_commits() THEN
        SELECT r.seq INTO front FROM requests r
            WHERE r.queue_id = sent_to_group.queue_id AND r.group_id = sent_to_group.group_id AND r.ready
                AND r.held IS DISTINCT FROM 's' AND NOT r.cancelled
            ORDER BY r.queue_id, r.group_id, r.ready, r.seq LIMIT 1;
        SELECT r.seq, r.held INTO next FROM requests r
            WHERE r.queue_id = sent_to_group.queue_id AND r.group_id = sent_to_group.group_id AND NOT r.ready
                AND r.held IS DISTINCT FROM 's'
            ORDER BY r.queue_id, r.group_id, r.ready, r.seq LIMIT 1;
        IF front < next.seq OR next.held IS DISTINCT FROM 'g' THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO group_checks (queue_id, group_id) VALUES (queue_id, group_id);
END
$$;

-- Parked and scheduled requests that have come due are pending again, labelled with their tenant where they were not.
-- In a group each takes its place. Says how many, and how long until the next is due.
CREATE FUNCTION promote_due(queue_id int, max_rows int, OUT promoted bigint, OUT next_due interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    at timestamptz := clock_timestamp(); -- the transaction may be old: a caller's own
    due tid[];
    due_groups text[];
BEGIN
    due := ARRAY(SELECT r.ctid FROM requests r WHERE r.queue_id = $1 AND NOT r.ready AND r.due_at <= at
        ORDER BY r.due_at LIMIT max_rows FOR UPDATE SKIP LOCKED);
    promoted := cardinality(due);
    IF promoted > 0 THEN
        WITH up AS (
            UPDATE requests r SET ready = r.group_id IS NULL, due_at = NULL, visible_at = r.due_at,
                held = CASE WHEN r.group_id IS NOT NULL THEN 'g'::"char" END,
                tenant = CASE WHEN r.tenant <> '' THEN r.tenant ELSE
                    coalesce((SELECT tenant_of(r.metadata, q.tenant_attributes) FROM queues q
                        WHERE q.queue_id = $1 AND q.tenant_attributes IS NOT NULL), '') END
            WHERE r.ctid = ANY (due) AND NOT r.ready RETURNING r.group_id)
        SELECT array_agg(DISTINCT u.group_id) INTO due_groups FROM up u WHERE u.group_id IS NOT NULL;
        PERFORM free_groups($1, due_groups);
    END IF;
    next_due := (SELECT r.due_at - at FROM requests r WHERE r.queue_id = $1 AND NOT r.ready AND r.due_at > at
        ORDER BY r.due_at LIMIT 1);
END
$$;
