-- Maintenance: sweeps in bounded batches, by whichever dispatcher holds its lease. Nothing depends on its being done in
-- time. And who may call what.

-- Takes or renews the lease of maintenance; false: somebody else has it.
CREATE FUNCTION claim_maintenance(owner text, ttl interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    UPDATE maintenance m SET owner = claim_maintenance.owner, expires_at = clock_timestamp() + ttl
        WHERE m.owner IS NOT DISTINCT FROM claim_maintenance.owner OR m.expires_at <= clock_timestamp();
    RETURN FOUND;
END
$$;

-- Holds a queue's dead letters to its bounds, oldest first; at most max_rows at a time. Says how many went.
CREATE FUNCTION retain(q queues, max_rows int) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    max_age interval := coalesce(q.dead_letter_max_age, '14 days');
    oldest timestamptz := clock_timestamp() - max_age; -- a value: an index is read up to it, and not up to clock_timestamp()
    max_count bigint := coalesce(q.dead_letter_max_count, 1000000);
    max_bytes bigint := coalesce(q.dead_letter_max_bytes, -1);
    cut record;
    total bigint := 0;
    dropped bigint;
BEGIN
    IF max_age >= '0' THEN
        DELETE FROM dead_letters d WHERE d.ctid = ANY (ARRAY(SELECT c.ctid FROM dead_letters c
            WHERE c.queue_id = q.queue_id AND c.dead_at < oldest
            ORDER BY c.dead_at, c.seq LIMIT max_rows FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS dropped = ROW_COUNT;
        total := total + dropped;
    END IF;
    IF max_count >= 0 THEN
        SELECT d.dead_at, d.seq INTO cut FROM dead_letters d WHERE d.queue_id = q.queue_id
            ORDER BY d.queue_id DESC, d.dead_at DESC, d.seq DESC OFFSET max_count LIMIT 1;
        total := total + drop_up_to(q.queue_id, cut.dead_at, cut.seq, max_rows);
    END IF;
    IF max_bytes >= 0 THEN
        SELECT x.dead_at, x.seq INTO cut FROM (
            SELECT d.dead_at, d.seq, sum(octet_length(d.payload)) OVER (ORDER BY d.dead_at DESC, d.seq DESC) AS bytes
            FROM dead_letters d WHERE d.queue_id = q.queue_id) AS x
            WHERE x.bytes > max_bytes ORDER BY x.dead_at DESC, x.seq DESC LIMIT 1;
        total := total + drop_up_to(q.queue_id, cut.dead_at, cut.seq, max_rows);
    END IF;
    RETURN total;
END
$$;

CREATE FUNCTION drop_up_to(queue_id int, dead_at timestamptz, seq bigint, max_rows int) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    dropped bigint;
BEGIN
    DELETE FROM dead_letters d WHERE d.ctid = ANY (ARRAY(SELECT c.ctid FROM dead_letters c
        WHERE c.queue_id = drop_up_to.queue_id AND (c.dead_at, c.seq) <= (drop_up_to.dead_at, drop_up_to.seq)
        ORDER BY c.dead_at, c.seq LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dropped = ROW_COUNT;
    RETURN dropped;
END
$$;

-- Forgets groups that nothing is in, of the max_rows after the one looked at last. Says how many.
CREATE FUNCTION forget_groups(max_rows int) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    held tid[];
    last record;
    seen record;
    forgotten bigint;
BEGIN
    IF NOT sees_commits() THEN
        RETURN 0;
    END IF;
    SELECT m.queue_id, m.group_id INTO last FROM maintenance m;
    SELECT array_agg(g.tid) AS tids, count(*) AS count, max(g.queue_id) AS queue_id,
            (array_agg(g.group_id ORDER BY g.queue_id DESC, g.group_id DESC))[1] AS group_id INTO seen FROM (
        SELECT x.ctid AS tid, x.queue_id, x.group_id FROM groups x
        WHERE (x.queue_id, x.group_id) > (last.queue_id, last.group_id) AND NOT x.settles
        ORDER BY x.queue_id, x.group_id LIMIT max_rows) AS g;
    UPDATE maintenance m SET queue_id = CASE WHEN seen.count < max_rows THEN 0 ELSE seen.queue_id END,
        group_id = CASE WHEN seen.count < max_rows THEN '' ELSE seen.group_id END;
    -- A group is looked at anew once its rows are held: a sender may have come and gone between.
    SELECT array_agg(p.tid) || array_agg(p.settles_tid) INTO held FROM (
        SELECT e.tid, g.ctid AS settles_tid FROM (
            SELECT g.ctid AS tid, g.queue_id, g.group_id FROM groups g WHERE g.ctid = ANY (seen.tids) AND NOT g.settles
                AND NOT EXISTS (SELECT FROM requests r WHERE r.queue_id = g.queue_id AND r.group_id = g.group_id
                    AND r.group_id IS NOT NULL AND r.held IS DISTINCT FROM 's')
                AND NOT EXISTS (SELECT FROM requests r WHERE r.queue_id = g.queue_id AND r.group_id = g.group_id
                    AND r.group_id IS NOT NULL AND r.held = 's')
            FOR UPDATE SKIP LOCKED) AS e
        JOIN groups g ON g.queue_id = e.queue_id AND g.group_id = e.group_id AND g.settles FOR UPDATE OF g SKIP LOCKED) AS p;
    DELETE FROM groups g WHERE g.ctid = ANY (held)
        AND NOT EXISTS (SELECT FROM requests r WHERE r.queue_id = g.queue_id AND r.group_id = g.group_id
            AND r.group_id IS NOT NULL AND r.held IS DISTINCT FROM 's')
        AND NOT EXISTS (SELECT FROM requests r WHERE r.queue_id = g.queue_id AND r.group_id = g.group_id
            AND r.group_id IS NOT NULL AND r.held = 's');
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten / 2;
END
$$;

-- One pass: at most max_rows of each kind, and for each queue. Says how many of each; a number that has reached max_rows
-- says that there is more. Dead letters are held to their bounds once a minute, or when there is more.
CREATE FUNCTION maintain(max_rows int DEFAULT 1000) RETURNS jsonb
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
    groups_pruned := forget_groups(max_rows);
    RETURN jsonb_build_object('due', due, 'ended', ended, 'groups_checked', checked, 'groups', groups_pruned,
        'dead_letters', dropped, 'receipts', receipts_pruned, 'dedup', dedup_pruned, 'replays', replays_pruned);
END
$$;

-- The live generations of an id, oldest first, and those that are dead letters; none when it is unknown or finished.
CREATE OR REPLACE FUNCTION request_status(id text) RETURNS TABLE (token text, queue text, state text, seq bigint,
    partition_id smallint, owner text, deliveries int, cancelled boolean, route text, enqueued_at timestamptz,
    dispatched_at timestamptz, due_at timestamptz, deadline timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT r.token, q.name, CASE WHEN r.epoch > 0 OR r.locked_until > now() THEN 'in flight' WHEN r.ready OR r.held = 'g' THEN 'pending'
            WHEN r.held = 'd' THEN 'deferred' ELSE 'parked' END,
        r.seq, r.partition_id, CASE WHEN r.epoch > 0 THEN p.owner END, r.deliveries, r.cancelled, r.route,
        r.enqueued_at, r.dispatched_at, CASE WHEN NOT r.ready THEN r.due_at END,
        CASE WHEN isfinite(r.deadline) THEN r.deadline END
    FROM requests r JOIN queues q USING (queue_id)
        LEFT JOIN partitions p ON p.queue_id = r.queue_id AND p.partition_id = r.partition_id
    WHERE r.id = request_status.id
    UNION ALL
    SELECT d.token, q.name, 'dead', d.seq, NULL, NULL, d.deliveries, false, d.route, d.enqueued_at, NULL, NULL, d.expires_at
    FROM dead_letters d JOIN queues q USING (queue_id) WHERE d.id = request_status.id
    ORDER BY 4
$$;

-- As before; one that was cancelled stands in no group's way any more.
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
    UPDATE requests r SET cancelled = true, ready = true, due_at = NULL, held = NULL,
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
            %1$I.claim_maintenance(text, interval), %1$I.maintain(int)'),
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

CREATE OR REPLACE FUNCTION apply_grants() RETURNS SETOF text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    wanted text;
    step record;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['leasehold_producer', 'leasehold_poller', 'leasehold_dispatcher',
            'leasehold_receiver', 'leasehold_quota', 'leasehold_admin'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL; -- another database's migration was quicker
                WHEN insufficient_privilege THEN RETURN NEXT format('CREATE ROLE %I NOLOGIN', wanted);
            END;
        END IF;
    END LOOP;
    FOR step IN SELECT * FROM grants() LOOP
        IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = step.role) THEN
            EXECUTE step.statement;
        ELSE
            RETURN NEXT step.statement;
        END IF;
    END LOOP;
END
$$;

DO $$
BEGIN
    EXECUTE format('REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
END
$$;
