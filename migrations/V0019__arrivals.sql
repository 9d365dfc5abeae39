-- Requests in the order of their arrival, for owners of partitions that remember what is pending: docs/decisions/0011.
--
-- A row arrives when it becomes pending: when it is enqueued, and each time it is brought back. Whatever does that draws the
-- default anew. The transaction has its id before it draws; so a reader who has seen an arrival knows from a snapshot's xmin
-- when no smaller one can appear any more. 0: it came before there were arrivals.

CREATE SEQUENCE arrival_seq;
ALTER TABLE requests ADD COLUMN arrival bigint NOT NULL DEFAULT 0;
ALTER TABLE requests ALTER COLUMN arrival
    SET DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('arrival_seq') END;
CREATE INDEX requests_arrival ON requests (queue_id, partition_id, arrival) WHERE ready AND tenant = '';

-- What became pending after the given arrival in each partition, in that order, at most max_rows of each. Not `exclusive`:
-- others take from the queue, too, or did, and what they have comes back when its lock lapses, without arriving; so an owner
-- must not rely on its memory. Whatever is locked is ready and receivable. With `mark`, every transaction that has drawn
-- an arrival up to `last` has an id below `xid`.
CREATE FUNCTION arrivals(queue_id int, partitions smallint[], after bigint[], max_rows int, mark boolean,
    OUT partition_ids smallint[], OUT deadlines timestamptz[], OUT seqs bigint[], OUT arrivals bigint[],
    OUT exclusive boolean, OUT xmin text, OUT last bigint, OUT xid text)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
    IF mark THEN
        SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO last FROM arrival_seq s;
        xid := pg_current_xact_id()::text;
    END IF;
    SELECT array_agg(o.partition_id), array_agg(a.deadline), array_agg(a.seq), array_agg(a.arrival),
            pg_snapshot_xmin(pg_current_snapshot())::text
        INTO partition_ids, deadlines, seqs, arrivals, xmin
        FROM unnest(partitions, after) AS o (partition_id, after), LATERAL (
            SELECT r.deadline, r.seq, r.arrival FROM requests r
            WHERE r.ready AND r.tenant = '' AND r.epoch = 0 AND r.queue_id = $1 AND r.partition_id = o.partition_id
                AND r.arrival > o.after
            ORDER BY r.arrival LIMIT max_rows) AS a;
    exclusive := (SELECT NOT q.receivers FROM queues q WHERE q.queue_id = $1) AND (
        SELECT r.seq FROM requests r WHERE r.receivable AND r.queue_id = $1 AND r.ready
        ORDER BY r.queue_id, r.ready, r.seq LIMIT 1) IS NULL;
END
$$;

-- The first max_rows that are pending in each partition, earliest deadline first.
CREATE FUNCTION pending(queue_id int, partitions smallint[], max_rows int,
    OUT partition_ids smallint[], OUT deadlines timestamptz[], OUT seqs bigint[], OUT arrivals bigint[])
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    lapsed timestamptz := clock_timestamp();
BEGIN
    SELECT array_agg(o.partition_id), array_agg(a.deadline), array_agg(a.seq), array_agg(a.arrival)
        INTO partition_ids, deadlines, seqs, arrivals
        FROM unnest(partitions) AS o (partition_id), LATERAL (
            SELECT r.deadline, r.seq, r.arrival FROM requests r
            WHERE r.ready AND r.tenant = '' AND (r.epoch = 0 OR r.locked_until <= lapsed) AND r.queue_id = $1
                AND r.partition_id = o.partition_id
            ORDER BY r.deadline, r.seq LIMIT max_rows) AS a;
END
$$;

-- As dispatch, for requests that are named by partition and arrival. Those that are not pending any more, or were brought
-- back since, are left out. `xid` is the transaction's.
CREATE FUNCTION dispatch_arrived(queue_id int, owner text, generation bigint, partitions smallint[], arrivals bigint[])
RETURNS TABLE (seq bigint, id text, token text, attempt bigint, epoch bigint, partition_id smallint, deliveries int,
    cancelled boolean, expired boolean, deadline timestamptz, enqueued_at timestamptz, dispatched_at timestamptz,
    route text, headers jsonb, metadata jsonb, payload bytea, xid bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    drawn_in bigint := pg_current_xact_id()::text::bigint;
    drawn bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1024 + (random() * 1023)::bigint;
    lapsed timestamptz := clock_timestamp();
    found tid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    found := ARRAY(SELECT a.ctid FROM unnest(partitions, arrivals) AS h (partition_id, arrival), LATERAL (
        SELECT r.ctid FROM requests r
        WHERE r.ready AND r.tenant = '' AND (r.epoch = 0 OR r.locked_until <= lapsed) AND r.queue_id = $1
            AND r.partition_id = h.partition_id AND r.arrival BETWEEN h.arrival AND h.arrival
        ORDER BY r.arrival LIMIT 1) AS a -- in an order that its own index alone has: others lead over the whole partition
        WHERE EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = $1 AND d.owner = $2 AND d.generation = $3));
    RETURN QUERY
    UPDATE requests r
    SET epoch = p.epoch, attempt = drawn, deliveries = r.deliveries + 1, dispatched_at = clock_timestamp(),
        locked_until = NULL, lock_token = NULL
    FROM partitions p
    WHERE r.ctid = ANY (found) AND r.ready AND (r.epoch = 0 OR r.locked_until <= lapsed)
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2 AND NOT p.draining
        AND p.lease_expires_at > clock_timestamp()
    RETURNING r.seq, r.id, r.token, r.attempt, r.epoch, r.partition_id, r.deliveries, r.cancelled,
        r.deadline <= clock_timestamp() AND isfinite(r.deadline),
        CASE WHEN isfinite(r.deadline) AND r.deadline < '9999-12-30' THEN r.deadline END, r.enqueued_at,
        r.dispatched_at, r.route, headers_of(r.headers, r.content_type), r.metadata, r.payload, drawn_in;
END
$$;

-- As before; what is pending again has arrived anew.

CREATE OR REPLACE FUNCTION cancel(ids text[]) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    flagged int;
    bell record;
BEGIN
    IF ids IS NULL THEN
        PERFORM fail('LH001', 'ids must not be null');
    END IF;
    PERFORM 1 FROM requests r WHERE r.id = ANY (cancel.ids) ORDER BY r.id, r.token FOR UPDATE;
    UPDATE requests r SET cancelled = true, ready = true, arrival = DEFAULT, due_at = NULL, held = NULL,
            deadline = CASE WHEN r.epoch = 0 THEN '-infinity' ELSE r.deadline END
        WHERE r.id = ANY (cancel.ids);
    GET DIAGNOSTICS flagged = ROW_COUNT;
    FOR bell IN SELECT DISTINCT r.queue_id, r.partition_id, r.group_id FROM requests r WHERE r.id = ANY (cancel.ids) LOOP
        PERFORM ring_queue(bell.queue_id, bell.partition_id), ring_receivers(bell.queue_id);
        IF bell.group_id IS NOT NULL THEN
            PERFORM free_group(bell.queue_id, bell.group_id);
        END IF;
    END LOOP;
    RETURN flagged;
END
$$;

CREATE OR REPLACE FUNCTION promote_due(queue_id int, max_rows int, OUT promoted bigint, OUT next_due interval)
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
            UPDATE requests r SET ready = r.group_id IS NULL, arrival = DEFAULT, due_at = NULL, visible_at = r.due_at,
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

CREATE OR REPLACE FUNCTION settle_group(queue_id int, group_id text) RETURNS boolean
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
        UPDATE requests r SET ready = true, arrival = DEFAULT, held = NULL
            WHERE r.queue_id = settle_group.queue_id AND r.group_id = settle_group.group_id AND NOT r.ready
                AND r.seq = next.seq AND r.held IS DISTINCT FROM 's' AND r.held = 'g';
        PERFORM ring_queue(queue_id, next.partition_id), ring_receivers(queue_id);
    END IF;
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION abandon(queue text, seq bigint, lock_token text, delay interval DEFAULT '0') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := find_receivers(queue);
    held record;
    later boolean;
BEGIN
    IF delay IS NULL OR NOT lasts(delay, '0', '100 years') THEN
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
    UPDATE requests r SET epoch = 0, locked_until = NULL, lock_token = NULL, ready = NOT later, arrival = DEFAULT,
            due_at = CASE WHEN later THEN least(clock_timestamp() + delay, r.deadline) END
        WHERE r.ctid = held.tid;
    IF held.group_id IS NOT NULL THEN
        PERFORM free_group(q.queue_id, held.group_id); -- one with a smaller number may have come due
    END IF;
    PERFORM ring_queue(q.queue_id, NULL), ring_receivers(q.queue_id);
END
$$;

CREATE OR REPLACE FUNCTION grants() RETURNS TABLE (role text, statement text)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    WITH wanted (role, privilege, objects) AS (VALUES
        ('leasehold_producer', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_producer', 'SELECT', 'TABLE %1$I.schema_history'),
        ('leasehold_producer', 'EXECUTE', 'FUNCTION
            %1$I.enqueue(text, bytea, text, text, timestamptz, text, timestamptz, jsonb, jsonb, text),
            %1$I.enqueue(text, text, text, text, timestamptz, text, timestamptz, jsonb, jsonb, text),
            %1$I.enqueue(text, json, text, text, timestamptz, text, timestamptz, jsonb, jsonb, text),
            %1$I.enqueue(text, jsonb, text, text, timestamptz, text, timestamptz, jsonb, jsonb, text),
            %1$I.enqueue_many(text, bytea[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[], text[]),
            %1$I.enqueue_many(text, text[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[], text[]),
            %1$I.enqueue_many(text, json[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[], text[]),
            %1$I.enqueue_many(text, jsonb[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[], text[]),
            %1$I.cancel(text[]), %1$I.request_status(text), %1$I.backlog(text, interval[]),
            %1$I.send(text, bytea, text, text, text, text, text, text, jsonb, interval),
            %1$I.schedule(text, bytea, timestamptz, text, text, text, text, text, text, jsonb, interval),
            %1$I.send_many(text, bytea[], text[], text[], text[], text[], text[], text[], jsonb[], interval[], timestamptz[]),
            %1$I.send(text, text, text, text, text, text, text, text, jsonb, interval),
            %1$I.schedule(text, text, timestamptz, text, text, text, text, text, text, jsonb, interval),
            %1$I.send_many(text, text[], text[], text[], text[], text[], text[], text[], jsonb[], interval[], timestamptz[]),
            %1$I.send(text, json, text, text, text, text, text, text, jsonb, interval),
            %1$I.schedule(text, json, timestamptz, text, text, text, text, text, text, jsonb, interval),
            %1$I.send_many(text, json[], text[], text[], text[], text[], text[], text[], jsonb[], interval[], timestamptz[]),
            %1$I.send(text, jsonb, text, text, text, text, text, text, jsonb, interval),
            %1$I.schedule(text, jsonb, timestamptz, text, text, text, text, text, text, jsonb, interval),
            %1$I.send_many(text, jsonb[], text[], text[], text[], text[], text[], text[], jsonb[], interval[], timestamptz[]),
            %1$I.cancel_scheduled(text, bigint)'),
        ('leasehold_poller', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_poller', 'SELECT', 'TABLE %1$I.schema_history'),
        ('leasehold_poller', 'EXECUTE', 'FUNCTION %1$I.pop_results(text, int),
            %1$I.lease_results(text, int, interval), %1$I.ack_results(text, uuid, bigint[]),
            %1$I.release_results(text, uuid, bigint[]), %1$I.result_depth(text), %1$I.listen_results(text)'),
        ('leasehold_receiver', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_receiver', 'SELECT', 'TABLE %1$I.schema_history'),
        ('leasehold_receiver', 'EXECUTE', 'FUNCTION %1$I.receive(text, int, text, text), %1$I.receive_deferred(text, bigint[]),
            %1$I.complete(text, bigint, text, bytea, text, int), %1$I.complete_batch(text, bigint[], text[]),
            %1$I.abandon(text, bigint, text, interval), %1$I.reject(text, bigint, text, text, text),
            %1$I.defer(text, bigint, text), %1$I.renew(text, bigint, text), %1$I.renew_batch(text, bigint[], text[]),
            %1$I.peek(text, bigint, text, int), %1$I.queue_stats(text), %1$I.list_queues(), %1$I.listen_queue(text),
            %1$I.next_receivable(text)'),
        ('leasehold_dispatcher', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_dispatcher', 'SELECT', 'TABLE %1$I.schema_history, %1$I.queues, %1$I.routes'),
        ('leasehold_dispatcher', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE %1$I.requests, %1$I.results,
            %1$I.partitions, %1$I.dispatchers, %1$I.submissions, %1$I.dead_letters'),
        ('leasehold_dispatcher', 'EXECUTE', 'FUNCTION %1$I.dispatch(int, text, int, bigint, boolean, boolean), %1$I.ensure_queue(text), %1$I.channel(text, int),
            %1$I.dispatch_tenants(int, text, int, bigint, text, text[], int[], int, int, boolean, boolean),
            %1$I.ensure_tenant_attributes(int, text[]), %1$I.tenant_of(jsonb, text[]), %1$I.label_tenants(int, smallint, int),
            %1$I.backlog(text, interval[]), %1$I.result_depth(text), %1$I.headers_of(jsonb, text),
            %1$I.free_group(int, text), %1$I.promote_due(int, int), %1$I.check_groups(int),
            %1$I.claim_maintenance(text, interval), %1$I.maintain(int), %1$I.arrivals(int, smallint[], bigint[], int, boolean),
            %1$I.pending(int, smallint[], int), %1$I.dispatch_arrived(int, text, bigint, smallint[], bigint[])'),
        ('leasehold_dispatcher', 'USAGE, SELECT', 'SEQUENCE %1$I.arrival_seq'),
        ('leasehold_dispatcher', 'EXECUTE', 'FUNCTION %1$I.quota_reap_holders(interval, int), %1$I.quota_reap(int),
            %1$I.quota_saturated(interval, int)'),
        ('leasehold_quota', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_quota', 'SELECT', 'TABLE %1$I.schema_history'),
        ('leasehold_admin', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_admin', 'SELECT', 'ALL TABLES IN SCHEMA %1$I'),
        ('leasehold_admin', 'EXECUTE', 'ALL FUNCTIONS IN SCHEMA %1$I')
    ), gated (privilege, objects) AS (VALUES
        ('EXECUTE', 'FUNCTION %1$I.quota_register(text, interval), %1$I.quota_renew(text, interval),
            %1$I.quota_delete(text), %1$I.quota_acquire(text, text, int, bigint, text[], int),
            %1$I.quota_acquire_many(text, text[], int[], bigint[], text[], int[]),
            %1$I.quota_release(text, text[], int[]), %1$I.quota_admit(text, int, bigint, interval, text[]),
            %1$I.quota_admit_parts(text, bigint[], bigint, interval, text[]),
            %1$I.quota_settle(text, interval, timestamptz[], bigint[]), %1$I.quota_take(text, int, interval),
            %1$I.quota_budget(text)')
    ), all_wanted AS (
        SELECT * FROM wanted
        UNION ALL SELECT r.role, g.privilege, g.objects
            FROM gated g, (VALUES ('leasehold_dispatcher'), ('leasehold_quota')) AS r (role)
    )
    SELECT w.role, format('GRANT %s ON %s TO %I', w.privilege,
        format(regexp_replace(w.objects, '[[:space:]]+', ' ', 'g'), current_schema()), w.role) FROM all_wanted w
$$;

DO $$
BEGIN
    EXECUTE format('REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
END
$$;
