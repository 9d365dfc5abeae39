-- Acks as a function, which pins their plan: the planner, which takes a table as it was when it looked last, would read all of
-- `requests`, dead rows included, to delete a batch. The ids of a batch are one scan of their index here, hashed with what was
-- given for each. docs/decisions/0012.
--
-- Removes requests and records their results, under the fence: in flight, with this attempt, in a partition the caller
-- owns, with that partition's epoch. Of those that did not succeed, what their queue keeps is a dead letter, too; one that was
-- cancelled is none. Rings each route that somebody waits for, once. The next of a group is ready then. Returns the places
-- in the arrays of those that were removed; none: null.
CREATE FUNCTION ack(owner text, ids text[], tokens text[], attempts bigint[], statuses int[], codes text[], messages text[],
    content_types text[], bodies bytea[], are_text boolean[]) RETURNS int[]
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_hashjoin = on SET enable_nestloop = off SET enable_mergejoin = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    acked int[];
    on_routes text[];
    in_queues int[];
    in_groups text[];
    fenced tid[]; -- NULL: not looked up, and the statement that deletes looks itself whose they are
BEGIN
    IF array_remove(codes, NULL) <> '{}' THEN
        -- Whose they are is looked up once for all that follows: a partition may be taken between two statements, and what is
        -- dead by the first must go by the second. They are locked, so nobody else gets at them meanwhile.
        fenced := ARRAY(SELECT r.ctid FROM requests r, unnest($2, $3, $4) AS i (id, token, attempt)
            WHERE r.id = ANY ($2) AND r.id = i.id AND r.token = i.token AND r.attempt = i.attempt AND r.epoch <> 0
                AND r.epoch = (SELECT p.epoch FROM partitions p
                    WHERE p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $1)
            FOR UPDATE OF r);
        INSERT INTO dead_letters (seq, queue_id, dead_at, enqueued_at, visible_at, expires_at, deliveries, answered, id, token,
            group_id, group_given, route, correlation_id, subject, content_type, reason, description, ttl, headers, metadata,
            payload)
        SELECT r.seq, r.queue_id, clock_timestamp(), r.enqueued_at, r.enqueued_at, CASE WHEN isfinite(r.deadline) THEN r.deadline END,
            r.deliveries, r.answered, r.id, r.token, r.group_id, r.group_given, r.route, r.correlation_id, r.subject,
            r.content_type, CASE i.code WHEN 'MAX_DELIVERIES_EXCEEDED' THEN 'MaxDeliveryCountExceeded'
                WHEN 'DEADLINE_EXCEEDED' THEN 'TTLExpired' ELSE i.code END, i.message, r.ttl, r.headers, r.metadata, r.payload
        FROM requests r, unnest($2, $3, $4, $6, $7) AS i (id, token, attempt, code, message)
        WHERE r.ctid = ANY (fenced) AND r.id = i.id AND r.token = i.token AND r.attempt = i.attempt
            AND i.code <> 'CANCELLED' AND (SELECT q.dead_letters AND (i.code <> 'DEADLINE_EXCEEDED' OR q.dead_letter_on_expiry)
                FROM queues q WHERE q.queue_id = r.queue_id);
    END IF;
    WITH done AS (
        DELETE FROM requests r
        USING unnest($2, $3, $4, $5, $6, $7, $8, $9, $10) WITH ORDINALITY
            AS i (id, token, attempt, status, code, message, content_type, body, is_text, n)
        WHERE r.id = ANY ($2) AND r.id = i.id AND r.token = i.token AND r.attempt = i.attempt AND r.epoch <> 0
            AND (r.ctid = ANY (fenced) OR fenced IS NULL AND r.epoch = (SELECT p.epoch FROM partitions p
                WHERE p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $1))
        RETURNING r.enqueued_at, r.dispatched_at, r.queue_id, r.deliveries, r.group_id, coalesce(r.route, 'default') AS route, i.*
    ), recorded AS (
        INSERT INTO results (enqueued_at, dispatched_at, finished_at, expires_at, attempt, queue_id, deliveries, status,
            body_is_text, route, id, token, code, message, content_type, body)
        SELECT d.enqueued_at, d.dispatched_at, clock_timestamp(),
            clock_timestamp() + (SELECT q.result_ttl FROM queues q WHERE q.queue_id = d.queue_id), d.attempt, d.queue_id,
            d.deliveries, d.status, d.is_text, d.route, d.id, d.token, d.code, d.message, d.content_type, d.body
        FROM done d
    )
    SELECT array_agg(d.n::int), array_agg(d.route), array_agg(d.queue_id) FILTER (WHERE d.group_id IS NOT NULL),
            array_agg(d.group_id) FILTER (WHERE d.group_id IS NOT NULL)
        INTO acked, on_routes, in_queues, in_groups FROM done d;
    PERFORM pg_notify(channel('route', w.route_id), '') FROM routes w WHERE w.route = ANY (on_routes) AND w.awaited_until > now();
    FOR n IN 1 .. coalesce(cardinality(in_groups), 0) LOOP
        PERFORM free_group(in_queues[n], in_groups[n]);
    END LOOP;
    RETURN acked;
END
$$;

-- What is in flight, among up to max_rows of each partition after the given place in the order of dispatch; and the last of
-- those where there may be more. The rows that are pending are read for nothing, so a large backlog is read piece by piece.
-- STABLE: it sees what the statement that calls it sees. By a later snapshot it would name rows where that one does not find them.
CREATE FUNCTION flights(queue_id int, partitions smallint[], deadlines timestamptz[], seqs bigint[], max_rows int)
RETURNS TABLE (partition_id smallint, tid tid, epoch bigint, deadline timestamptz, seq bigint, is_last boolean)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT o.partition_id, n.tid, n.epoch, n.deadline, n.seq, n.n = max_rows
        FROM unnest(partitions, deadlines, seqs) AS o (partition_id, deadline, seq), LATERAL (
            SELECT r.*, row_number() OVER () AS n FROM (
                SELECT x.ctid AS tid, x.epoch, x.deadline, x.seq FROM requests x
                WHERE x.queue_id = $1 AND x.partition_id = o.partition_id AND x.ready AND x.tenant = ''
                    AND (x.deadline, x.seq) > (o.deadline, o.seq)
                ORDER BY x.deadline, x.seq LIMIT max_rows) AS r) AS n
        WHERE n.epoch > 0 OR n.n = max_rows;
END
$$;

-- A result is written once and read once: two more rows in another table, with an index of their own, are dearer than a few
-- kilobytes beside the others. Larger bodies are compressed, and put there if that is not enough.
ALTER TABLE results SET (toast_tuple_target = 4080);

-- As before, and results that have expired, which dispatchers alone removed until now.
--
-- One pass: at most max_rows of each kind, and for each queue. Says how many of each; a number that has reached max_rows
-- says that there is more. Dead letters are held to their bounds once a minute, or when there is more.
CREATE OR REPLACE FUNCTION maintain(max_rows int DEFAULT 1000) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    q queues;
    n bigint;
    due bigint := 0;
    checked bigint := 0;
    ended bigint := 0;
    dropped bigint := 0;
    receipts_pruned bigint;
    dedup_pruned bigint;
    replays_pruned bigint;
    at timestamptz := clock_timestamp(); -- see retain
    results_expired bigint;
    groups_pruned bigint;
BEGIN
    IF max_rows IS NULL OR max_rows < 1 THEN
        PERFORM fail('LH001', format('max_rows must be at least 1, not %s', coalesce(max_rows::text, 'null')));
    END IF;
    FOR q IN SELECT * FROM queues t WHERE t.kind = 'queue' ORDER BY t.queue_id LOOP
        IF q.receivers THEN
            IF q.adopting IS NOT NULL THEN
                PERFORM adopt(q);
            END IF;
            SELECT p.promoted INTO n FROM promote_due(q.queue_id, max_rows) AS p;
            due := greatest(due, n);
            ended := greatest(ended, bury_ended(q, max_rows));
        END IF;
        checked := checked + check_groups(q.queue_id);
    END LOOP;
    IF (SELECT m.retained_at < clock_timestamp() - interval '1 minute' FROM maintenance m) THEN
        FOR q IN SELECT * FROM queues t WHERE t.kind = 'queue' ORDER BY t.queue_id LOOP
            dropped := greatest(dropped, retain(q, max_rows));
        END LOOP;
        UPDATE maintenance m SET retained_at = clock_timestamp() WHERE dropped < max_rows;
    END IF;
    DELETE FROM receipts p WHERE p.ctid = ANY (ARRAY(SELECT c.ctid FROM receipts c
        WHERE c.settled_at < at - interval '30 minutes' ORDER BY c.settled_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS receipts_pruned = ROW_COUNT;
    DELETE FROM dedup p WHERE p.ctid = ANY (ARRAY(SELECT c.ctid FROM dedup c
        WHERE c.expires_at < at ORDER BY c.expires_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dedup_pruned = ROW_COUNT;
    DELETE FROM replays p WHERE p.ctid = ANY (ARRAY(SELECT c.ctid FROM replays c
        WHERE c.expires_at < at ORDER BY c.expires_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS replays_pruned = ROW_COUNT;
    DELETE FROM results p WHERE p.ctid = ANY (ARRAY(SELECT c.ctid FROM results c
        WHERE c.expires_at < at ORDER BY c.expires_at LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS results_expired = ROW_COUNT;
    groups_pruned := forget_groups(max_rows);
    RETURN jsonb_build_object('due', due, 'ended', ended, 'groups_checked', checked, 'groups', groups_pruned,
        'dead_letters', dropped, 'receipts', receipts_pruned, 'dedup', dedup_pruned, 'replays', replays_pruned,
        'results', results_expired);
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
            %1$I.pending(int, smallint[], int), %1$I.dispatch_arrived(int, text, bigint, smallint[], bigint[]),
            %1$I.flights(int, smallint[], timestamptz[], bigint[], int),
            %1$I.ack(text, text[], text[], bigint[], int[], text[], text[], text[], bytea[], boolean[])'),
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
