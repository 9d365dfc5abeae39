-- What operators call, and who may call what.

-- Changes the given settings of a queue, made when it does not exist. A key left out keeps its value; null
-- puts its default back. Keys: route (text), result_ttl and default_deadline (interval), max_deliveries and
-- max_payload_bytes (numbers).
CREATE FUNCTION configure_queue(queue text, config jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues;
    key text;
    value text;
BEGIN
    IF jsonb_typeof(config) IS DISTINCT FROM 'object' THEN
        PERFORM fail('LH001', 'config must be a JSON object');
    END IF;
    q := open_queue(queue);
    SELECT * INTO q FROM queues t WHERE t.queue_id = q.queue_id FOR UPDATE; -- one change after the other
    FOR key, value IN SELECT * FROM jsonb_each_text(config) LOOP
        BEGIN
            CASE key
                WHEN 'route' THEN q.route := value;
                WHEN 'result_ttl' THEN q.result_ttl := value::interval;
                WHEN 'default_deadline' THEN q.default_deadline := value::interval;
                WHEN 'max_deliveries' THEN q.max_deliveries := coalesce(value::int, 10);
                WHEN 'max_payload_bytes' THEN q.max_payload_bytes := coalesce(value::int, 16777216);
            END CASE;
        EXCEPTION
            WHEN case_not_found THEN
                PERFORM fail('LH001', format('unknown setting "%s"; known are route, result_ttl, default_deadline, '
                    'max_deliveries, max_payload_bytes', key));
            WHEN data_exception THEN
                PERFORM fail('LH001', format('%s: %s', key, SQLERRM));
        END;
    END LOOP;
    IF q.route IS NOT NULL THEN
        PERFORM check_name('route', q.route);
    END IF;
    IF q.result_ttl NOT BETWEEN '1 millisecond' AND '100 years' THEN
        PERFORM fail('LH001', 'result_ttl must be from 1 millisecond to 100 years');
    ELSIF q.default_deadline NOT BETWEEN '1 millisecond' AND '100 years' THEN
        PERFORM fail('LH001', 'default_deadline must be from 1 millisecond to 100 years');
    ELSIF q.max_deliveries NOT BETWEEN 1 AND 1000000 THEN
        PERFORM fail('LH001', 'max_deliveries must be from 1 to 1000000');
    ELSIF q.max_payload_bytes NOT BETWEEN 0 AND 268435456 THEN
        PERFORM fail('LH001', 'max_payload_bytes must be from 0 to 268435456');
    END IF;
    UPDATE queues t SET route = q.route, result_ttl = q.result_ttl, default_deadline = q.default_deadline,
            max_deliveries = q.max_deliveries, max_payload_bytes = q.max_payload_bytes
        WHERE t.queue_id = q.queue_id;
END
$$;

-- The requests of a queue that are not finished, and how many of them have their deadline within each
-- window from now (cumulative, in the order of the windows).
CREATE FUNCTION backlog(queue text, windows interval[] DEFAULT '{}') RETURNS TABLE (depth bigint, due bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues := find_queue(queue);
BEGIN
    RETURN QUERY
        WITH live AS MATERIALIZED (SELECT r.deadline FROM requests r WHERE r.queue_id = q.queue_id)
        SELECT (SELECT count(*) FROM live), ARRAY(
            SELECT (SELECT count(*) FROM live l WHERE l.deadline <= now() + w.span)
            FROM unnest(windows) WITH ORDINALITY AS w (span, n) ORDER BY w.n);
END
$$;

-- One line a grant: run by apply_grants for the roles that exist, printed for those that do not.
CREATE FUNCTION grants() RETURNS TABLE (role text, statement text)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    WITH wanted (role, privilege, objects) AS (VALUES
        ('leasehold_producer', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_producer', 'SELECT', 'TABLE %1$I.schema_history'),
        ('leasehold_producer', 'EXECUTE', 'FUNCTION
            %1$I.enqueue(text, bytea, text, text, timestamptz, text, timestamptz, jsonb, jsonb),
            %1$I.enqueue(text, text, text, text, timestamptz, text, timestamptz, jsonb, jsonb),
            %1$I.enqueue(text, json, text, text, timestamptz, text, timestamptz, jsonb, jsonb),
            %1$I.enqueue(text, jsonb, text, text, timestamptz, text, timestamptz, jsonb, jsonb),
            %1$I.enqueue_many(text, bytea[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]),
            %1$I.enqueue_many(text, text[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]),
            %1$I.enqueue_many(text, json[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]),
            %1$I.enqueue_many(text, jsonb[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]),
            %1$I.cancel(text[]), %1$I.request_status(text), %1$I.backlog(text, interval[])'),
        ('leasehold_poller', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_poller', 'SELECT', 'TABLE %1$I.schema_history'),
        ('leasehold_poller', 'EXECUTE', 'FUNCTION %1$I.pop_results(text, int),
            %1$I.lease_results(text, int, interval), %1$I.ack_results(text, uuid, bigint[]),
            %1$I.release_results(text, uuid, bigint[]), %1$I.result_depth(text), %1$I.listen_results(text)'),
        ('leasehold_dispatcher', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_dispatcher', 'SELECT', 'TABLE %1$I.schema_history, %1$I.queues, %1$I.routes'),
        ('leasehold_dispatcher', 'SELECT, INSERT, UPDATE, DELETE', 'TABLE %1$I.requests, %1$I.results,
            %1$I.partitions, %1$I.dispatchers, %1$I.submissions'),
        ('leasehold_dispatcher', 'EXECUTE', 'FUNCTION %1$I.dispatch(int, text, int, bigint, boolean, boolean), %1$I.ensure_queue(text), %1$I.channel(text, int),
            %1$I.backlog(text, interval[]), %1$I.result_depth(text)'),
        ('leasehold_admin', 'USAGE', 'SCHEMA %1$I'),
        ('leasehold_admin', 'SELECT', 'ALL TABLES IN SCHEMA %1$I'),
        ('leasehold_admin', 'EXECUTE', 'ALL FUNCTIONS IN SCHEMA %1$I')
    )
    SELECT w.role, format('GRANT %s ON %s TO %I', w.privilege,
        format(regexp_replace(w.objects, '\s+', ' ', 'g'), current_schema()), w.role) FROM wanted w
$$;

-- Makes the roles and their grants where that is allowed, and returns what somebody else has to run.
CREATE FUNCTION apply_grants() RETURNS SETOF text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    wanted text;
    step record;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['leasehold_producer', 'leasehold_poller', 'leasehold_dispatcher', 'leasehold_admin'] LOOP
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
