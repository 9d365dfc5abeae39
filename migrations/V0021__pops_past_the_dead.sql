-- Results stay cheap to pop, however many have been popped since the last vacuum, and while a held snapshot forbids any.

-- Where the results of a route begin: of those below `seq`, none is left but the stragglers, and none will come. True of each
-- row for ever, so that any may be used; the highest is best. A pop that starts there walks over nothing that is long gone.
--
-- Marks are added and removed, never changed: the newest stands at the end of its route in the index, and is found by one
-- step, even where nothing is ever cleaned. See advance_mark.
CREATE TABLE route_marks (
    seq         bigint NOT NULL,
    drawn       bigint NOT NULL,                       -- the last number drawn when the mark was made
    made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    route       text COLLATE "C" NOT NULL,
    writers     text[] NOT NULL,                       -- the transactions that may have drawn up to there, and still ran
    stragglers  bigint[] NOT NULL DEFAULT '{}'
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX route_marks_best ON route_marks (route, seq, drawn);

-- To give the end of a busy table back to the disk, autovacuum waits up to five seconds for a lock that nobody leaves free. Meanwhile
-- nobody else may vacuum, and the table doubles.
ALTER TABLE requests SET (vacuum_truncate = false, toast.vacuum_truncate = false);
ALTER TABLE results SET (vacuum_truncate = false, toast.vacuum_truncate = false);

-- Moves a route's mark as far as is certain, or makes its first. Called by pops now and then; waits for nobody.
--
-- A transaction may commit a result whose number is smaller than others that are popped already. Who inserts results holds a
-- lock on the table from before it draws to its end. So what the holders of that lock at one time have drawn is committed or
-- void once all of them have ended, and nothing else can come up to the last number that was drawn just before. Then, in a
-- snapshot taken after that, what is left of the route is what there is.
CREATE FUNCTION advance_mark(route text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    most_stragglers CONSTANT int := 32;
    far CONSTANT int := 1000;                          -- a gap worth a straggler
    mark route_marks;
    drawn bigint;
    writers text[];
    kept bigint[];
    live bigint[];
    next bigint;
    start bigint;
BEGIN
    IF NOT sees_commits() THEN
        RETURN;
    END IF;
    SELECT m.* INTO mark FROM route_marks m WHERE m.route = advance_mark.route
        ORDER BY m.route DESC, m.seq DESC, m.drawn DESC LIMIT 1;
    -- A statement each, in this order. What this transaction itself has drawn is committed with the mark.
    drawn := (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM results_seq_seq s);
    writers := ARRAY(SELECT l.virtualtransaction FROM pg_locks l
        WHERE l.locktype = 'relation' AND l.relation = 'results'::regclass AND l.mode = 'RowExclusiveLock'
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            AND l.pid IS DISTINCT FROM pg_backend_pid());
    IF mark.seq IS NULL THEN
        INSERT INTO route_marks (route, seq, drawn, writers) VALUES (advance_mark.route, 0, drawn, writers);
        RETURN;
    ELSIF mark.writers && writers OR '-' = ANY (ARRAY(SELECT left(w, 1) FROM unnest(writers) w)) THEN
        RETURN; -- one that is prepared has lost the name it had
    END IF;
    -- One look each: for `= ANY` and an order together, a plan may walk the whole route.
    kept := ARRAY(SELECT s.seq FROM unnest(mark.stragglers) AS s (seq)
        WHERE (SELECT true FROM results r WHERE r.route = advance_mark.route AND r.seq = s.seq LIMIT 1));
    live := ARRAY(SELECT r.seq FROM results r WHERE r.route = advance_mark.route AND r.seq BETWEEN mark.seq AND mark.drawn
        ORDER BY r.seq LIMIT most_stragglers + 1);
    start := coalesce(live[1], mark.drawn + 1);
    -- One that stays for long, leased again and again, must not hold up the mark.
    FOR n IN REVERSE least(cardinality(live), most_stragglers - cardinality(kept)) .. 1 LOOP
        next := coalesce(live[n + 1], mark.drawn + 1);
        IF next - live[n] > far THEN
            kept := kept || live[:n];
            start := next;
            EXIT;
        END IF;
    END LOOP;
    DELETE FROM route_marks m WHERE m.ctid = ANY (ARRAY(SELECT x.ctid FROM route_marks x
        WHERE x.route = advance_mark.route AND x.seq = mark.seq AND x.drawn = mark.drawn FOR UPDATE SKIP LOCKED));
    INSERT INTO route_marks (route, seq, drawn, writers, stragglers)
        VALUES (advance_mark.route, start, drawn, writers, kept);
END
$$;

-- Forgets marks that are not the best of their route, those that no pop has moved for an hour, and those that belong to numbers
-- that were never drawn, as after a copy of the tables without their sequences.
CREATE FUNCTION prune_marks() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    last_drawn bigint := (SELECT s.last_value FROM results_seq_seq s);
    pruned bigint;
BEGIN
    DELETE FROM route_marks m WHERE m.ctid = ANY (ARRAY(SELECT x.ctid FROM route_marks x
        WHERE x.made_at < clock_timestamp() - interval '1 hour' OR x.drawn > last_drawn OR EXISTS (SELECT FROM route_marks b
            WHERE b.route = x.route AND (b.seq, b.drawn, b.ctid) > (x.seq, x.drawn, x.ctid))
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;

-- At most once: removes up to `max` results, lowest seq first, past those that other pollers hold. A result
-- that expires exactly now is still returned.
--
-- The plan is pinned: a fresh table has no statistics, and a bitmap scan or a join over the route would be
-- many times slower, and leave dead index entries unmarked.
CREATE OR REPLACE FUNCTION pop_results(route text, max int DEFAULT 100) RETURNS SETOF result
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    with_text boolean := coalesce(current_setting('leasehold.body_text', true), '') <> 'off';
    started timestamptz := clock_timestamp();
    found bigint;
    mark bigint;
    stragglers bigint[];
    tids tid[] := '{}';
BEGIN
    PERFORM check_poll(route, max);
    SELECT m.seq, m.stragglers INTO mark, stragglers FROM route_marks m WHERE m.route = pop_results.route
        ORDER BY m.route DESC, m.seq DESC, m.drawn DESC LIMIT 1;
    IF stragglers <> '{}' THEN
        tids := ARRAY(SELECT c.ctid FROM unnest(stragglers) AS s (seq), LATERAL (
            SELECT r.ctid FROM results r WHERE r.route = pop_results.route AND r.seq = s.seq
                AND (r.expires_at IS NULL OR r.expires_at >= now()) AND (r.leased_until IS NULL OR r.leased_until <= now())
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS c LIMIT pop_results.max);
    END IF;
    RETURN QUERY WITH popped AS (
        DELETE FROM results r WHERE r.ctid = ANY (tids || ARRAY(
            SELECT c.ctid FROM results c
            WHERE c.route = pop_results.route AND c.seq >= coalesce(mark, 0) AND (c.expires_at IS NULL OR c.expires_at >= now())
                AND (c.leased_until IS NULL OR c.leased_until <= now())
            ORDER BY c.seq LIMIT pop_results.max - cardinality(tids) FOR UPDATE SKIP LOCKED))
        RETURNING r.*
    )
    SELECT r.seq, r.id, r.token, (SELECT q.name FROM queues q WHERE q.queue_id = r.queue_id), r.status, r.code, r.message,
        r.content_type, r.body, CASE WHEN with_text AND r.body_is_text THEN convert_from(r.body, 'UTF8') END, r.attempt,
        r.deliveries, r.enqueued_at, r.dispatched_at, r.finished_at, r.expires_at, r.lease, r.leased_until
    FROM popped r ORDER BY r.seq;
    GET DIAGNOSTICS found = ROW_COUNT;
    IF random() * 2000 < found
        OR clock_timestamp() - started > interval '2 milliseconds' + found * interval '50 microseconds' THEN
        PERFORM advance_mark(route);
    END IF;
END
$$;

-- At least once: hides up to `max` results for a while. Whoever acks them with their lease removes them;
-- otherwise they come again. They stay, so no mark passes them.
CREATE OR REPLACE FUNCTION lease_results(route text, max int DEFAULT 100, lease_time interval DEFAULT '30 seconds')
RETURNS SETOF result
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    with_text boolean := coalesce(current_setting('leasehold.body_text', true), '') <> 'off';
    started timestamptz := clock_timestamp();
    drawn uuid := gen_random_uuid();
    found bigint;
    mark bigint;
    stragglers bigint[];
    tids tid[] := '{}';
BEGIN
    PERFORM check_poll(route, max);
    IF lease_time IS NULL OR NOT lasts(lease_time, '1 millisecond', '12 hours') THEN
        PERFORM fail('LH001', 'lease_time must be from 1 millisecond to 12 hours');
    END IF;
    SELECT m.seq, m.stragglers INTO mark, stragglers FROM route_marks m WHERE m.route = lease_results.route
        ORDER BY m.route DESC, m.seq DESC, m.drawn DESC LIMIT 1;
    IF stragglers <> '{}' THEN
        tids := ARRAY(SELECT c.ctid FROM unnest(stragglers) AS s (seq), LATERAL (
            SELECT r.ctid FROM results r WHERE r.route = lease_results.route AND r.seq = s.seq
                AND (r.expires_at IS NULL OR r.expires_at >= now()) AND (r.leased_until IS NULL OR r.leased_until <= now())
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS c LIMIT lease_results.max);
    END IF;
    RETURN QUERY WITH leased AS (
        UPDATE results r SET lease = drawn, leased_until = clock_timestamp() + lease_time WHERE r.ctid = ANY (tids || ARRAY(
            SELECT c.ctid FROM results c
            WHERE c.route = lease_results.route AND c.seq >= coalesce(mark, 0) AND (c.expires_at IS NULL OR c.expires_at >= now())
                AND (c.leased_until IS NULL OR c.leased_until <= now())
            ORDER BY c.seq LIMIT lease_results.max - cardinality(tids) FOR UPDATE SKIP LOCKED))
        RETURNING r.*
    )
    SELECT r.seq, r.id, r.token, (SELECT q.name FROM queues q WHERE q.queue_id = r.queue_id), r.status, r.code, r.message,
        r.content_type, r.body, CASE WHEN with_text AND r.body_is_text THEN convert_from(r.body, 'UTF8') END, r.attempt,
        r.deliveries, r.enqueued_at, r.dispatched_at, r.finished_at, r.expires_at, r.lease, r.leased_until
    FROM leased r ORDER BY r.seq;
    GET DIAGNOSTICS found = ROW_COUNT;
    IF random() * 2000 < found
        OR clock_timestamp() - started > interval '2 milliseconds' + found * interval '50 microseconds' THEN
        PERFORM advance_mark(route);
    END IF;
END
$$;

-- Removes leased results and returns the seqs removed: one that is missing had lapsed, or was acked before.
--
-- One look each, as for stragglers: for all together, a plan may walk the whole route.
CREATE OR REPLACE FUNCTION ack_results(route text, lease uuid, seqs bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH gone AS (
        DELETE FROM results r WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM (SELECT DISTINCT s.seq FROM unnest(seqs) AS s (seq) ORDER BY s.seq) AS s, LATERAL (
                SELECT r.ctid FROM results r WHERE r.route = ack_results.route AND r.seq = s.seq AND r.lease = ack_results.lease
                    AND r.leased_until > clock_timestamp()
                LIMIT 1 FOR UPDATE) AS c))
        RETURNING r.seq
    )
    SELECT g.seq FROM gone g ORDER BY g.seq;
END
$$;

-- Gives leased results back at once, and returns the seqs given back.
CREATE OR REPLACE FUNCTION release_results(route text, lease uuid, seqs bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH given AS (
        UPDATE results r SET lease = NULL, leased_until = NULL WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM (SELECT DISTINCT s.seq FROM unnest(seqs) AS s (seq) ORDER BY s.seq) AS s, LATERAL (
                SELECT r.ctid FROM results r WHERE r.route = release_results.route AND r.seq = s.seq
                    AND r.lease = release_results.lease AND r.leased_until > clock_timestamp()
                LIMIT 1 FOR UPDATE) AS c))
        RETURNING r.seq
    )
    SELECT g.seq FROM given g ORDER BY g.seq;
END
$$;

-- Results that wait on a route, leased ones included, expired ones not.
CREATE OR REPLACE FUNCTION result_depth(route text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    mark route_marks;
BEGIN
    SELECT m.* INTO mark FROM route_marks m WHERE m.route = result_depth.route
        ORDER BY m.route DESC, m.seq DESC, m.drawn DESC LIMIT 1;
    RETURN (SELECT count(*) FROM results r WHERE r.route = result_depth.route AND r.seq >= coalesce(mark.seq, 0)
            AND (r.expires_at IS NULL OR r.expires_at >= now()))
        + (SELECT count(*) FROM results r WHERE r.route = result_depth.route AND r.seq = ANY (mark.stragglers)
            AND (r.expires_at IS NULL OR r.expires_at >= now()));
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
        ('leasehold_dispatcher', 'SELECT', 'TABLE %1$I.schema_history, %1$I.queues, %1$I.routes, %1$I.route_marks'),
        ('leasehold_dispatcher', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE %1$I.requests, %1$I.results,
            %1$I.partitions, %1$I.dispatchers, %1$I.submissions, %1$I.dead_letters'),
        ('leasehold_dispatcher', 'EXECUTE', 'FUNCTION %1$I.dispatch(int, text, int, bigint, boolean, boolean), %1$I.ensure_queue(text), %1$I.channel(text, int),
            %1$I.dispatch_tenants(int, text, int, bigint, text, text[], int[], int, int, boolean, boolean),
            %1$I.ensure_tenant_attributes(int, text[]), %1$I.tenant_of(jsonb, text[]), %1$I.label_tenants(int, smallint, int),
            %1$I.backlog(text, interval[]), %1$I.result_depth(text), %1$I.headers_of(jsonb, text),
            %1$I.free_group(int, text), %1$I.promote_due(int, int), %1$I.check_groups(int),
            %1$I.claim_maintenance(text, interval), %1$I.maintain(int), %1$I.prune_marks(),
            %1$I.arrivals(int, smallint[], bigint[], int, boolean),
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
