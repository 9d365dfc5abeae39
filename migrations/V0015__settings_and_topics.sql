-- Settings of queues, topics and their subscriptions, maintenance, and who may call what.

-- The settings of a queue, each by its name, over what `q` has; null puts its default back.
CREATE FUNCTION with_settings(q queues, config jsonb) RETURNS queues
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    key text;
    value text;
    known CONSTANT text := 'kind, ordering, receivers, route, result_ttl, default_deadline, max_deliveries, max_payload_bytes, '
        'tenant_attributes, lock_time, ttl, dedup_window, dead_letters, dead_letter_on_expiry, dead_letter_max_age, '
        'dead_letter_max_count, dead_letter_max_bytes';
BEGIN
    IF jsonb_typeof(config) IS DISTINCT FROM 'object' THEN
        PERFORM fail('LH001', 'config must be a JSON object');
    END IF;
    FOR key, value IN SELECT * FROM jsonb_each_text(config) LOOP
        BEGIN
            CASE key
                WHEN 'kind' THEN q.kind := coalesce(value, 'queue');
                WHEN 'ordering' THEN q.ordering := coalesce(value, 'standard');
                WHEN 'receivers' THEN q.receivers := coalesce(value::boolean, false);
                WHEN 'route' THEN q.route := value;
                WHEN 'result_ttl' THEN q.result_ttl := value::interval;
                WHEN 'default_deadline' THEN q.default_deadline := value::interval;
                WHEN 'max_deliveries' THEN q.max_deliveries := coalesce(value::int, 10);
                WHEN 'max_payload_bytes' THEN q.max_payload_bytes := coalesce(value::int, 16777216);
                WHEN 'tenant_attributes' THEN q.tenant_attributes := check_tenant_attributes(config -> key);
                WHEN 'lock_time' THEN q.lock_time := coalesce(value::interval, '30 seconds');
                WHEN 'ttl' THEN q.ttl := value::interval;
                WHEN 'dedup_window' THEN q.dedup_window := nullif(value::interval, '0');
                WHEN 'dead_letters' THEN q.dead_letters := coalesce(value::boolean, false);
                WHEN 'dead_letter_on_expiry' THEN q.dead_letter_on_expiry := coalesce(value::boolean, true);
                WHEN 'dead_letter_max_age' THEN q.dead_letter_max_age := nullif(value::interval, '0');
                WHEN 'dead_letter_max_count' THEN q.dead_letter_max_count := nullif(value::bigint, 0);
                WHEN 'dead_letter_max_bytes' THEN q.dead_letter_max_bytes := nullif(value::bigint, 0);
            END CASE;
        EXCEPTION
            WHEN case_not_found THEN
                PERFORM fail('LH001', format('unknown setting "%s"; known are %s', key, known));
            WHEN data_exception THEN
                PERFORM fail('LH001', format('%s: %s', key, SQLERRM));
        END;
    END LOOP;
    IF q.route IS NOT NULL THEN
        PERFORM check_name('route', q.route);
    END IF;
    IF q.kind NOT IN ('queue', 'topic') THEN
        PERFORM fail('LH001', format('kind must be queue or topic, not %s', q.kind));
    ELSIF q.ordering NOT IN ('standard', 'group_fifo', 'strict_fifo') THEN
        PERFORM fail('LH001', format('ordering must be standard, group_fifo or strict_fifo, not %s', q.ordering));
    ELSIF q.result_ttl NOT BETWEEN '1 millisecond' AND '100 years' THEN
        PERFORM fail('LH001', 'result_ttl must be from 1 millisecond to 100 years');
    ELSIF q.default_deadline NOT BETWEEN '1 millisecond' AND '100 years' THEN
        PERFORM fail('LH001', 'default_deadline must be from 1 millisecond to 100 years');
    ELSIF q.max_deliveries NOT BETWEEN 1 AND 1000000 THEN
        PERFORM fail('LH001', 'max_deliveries must be from 1 to 1000000');
    ELSIF q.max_payload_bytes NOT BETWEEN 0 AND 268435456 THEN
        PERFORM fail('LH001', 'max_payload_bytes must be from 0 to 268435456');
    ELSIF q.lock_time NOT BETWEEN '1 millisecond' AND '12 hours' THEN
        PERFORM fail('LH001', 'lock_time must be from 1 millisecond to 12 hours');
    ELSIF q.ttl NOT BETWEEN '1 millisecond' AND '100 years' THEN
        PERFORM fail('LH001', 'ttl must be from 1 millisecond to 100 years');
    ELSIF q.dedup_window NOT BETWEEN '1 millisecond' AND '1 year' THEN
        PERFORM fail('LH001', 'dedup_window must be from 1 millisecond to 1 year, or 0 for none');
    ELSIF q.dead_letter_max_age > '100 years' THEN
        PERFORM fail('LH001', 'dead_letter_max_age must be at most 100 years; below 0 is without bound');
    ELSIF least(q.dead_letter_max_count, q.dead_letter_max_bytes) < -1 THEN
        PERFORM fail('LH001', 'dead_letter_max_count and dead_letter_max_bytes must be at least -1, which is without bound');
    END IF;
    RETURN q;
END
$$;

-- Refused while a transaction that sends to the queue is open: whoever comes after it waits.
CREATE FUNCTION lock_out_senders(q queues) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    topic text;
BEGIN
    IF NOT sees_commits() THEN
        PERFORM fail('LH001', format('this needs a transaction at READ COMMITTED, not %s',
            upper(current_setting('transaction_isolation'))));
    END IF;
    SELECT t.name INTO topic FROM subscriptions s JOIN queues t ON t.queue_id = s.topic_id WHERE s.queue_id = q.queue_id;
    IF NOT pg_try_advisory_xact_lock(sending_to(q.name)) OR NOT pg_try_advisory_xact_lock(sending_to(coalesce(topic, q.name))) THEN
        PERFORM fail('55P03', format('queue "%s" is being sent to by an open transaction', q.name));
    END IF;
END
$$;

CREATE FUNCTION save_settings(was queues, q queues) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF was.kind <> q.kind THEN
        PERFORM fail('LH008', format('"%s" is a %s', q.name, was.kind));
    ELSIF was.ordering <> q.ordering AND 'strict_fifo' IN (was.ordering, q.ordering) THEN
        PERFORM lock_out_senders(was);
        IF EXISTS (SELECT FROM rows_of(q.queue_id)) THEN
            PERFORM fail('LH001', format('ordering can be changed from %s to %s only while queue "%s" is empty', was.ordering,
                q.ordering, q.name));
        END IF;
    END IF;
    UPDATE queues t SET route = q.route, result_ttl = q.result_ttl, default_deadline = q.default_deadline,
            max_deliveries = q.max_deliveries, max_payload_bytes = q.max_payload_bytes, tenant_attributes = q.tenant_attributes,
            ordering = q.ordering, receivers = q.receivers, lock_time = q.lock_time, ttl = q.ttl, dedup_window = q.dedup_window,
            dead_letters = q.dead_letters, dead_letter_on_expiry = q.dead_letter_on_expiry,
            dead_letter_max_age = q.dead_letter_max_age, dead_letter_max_count = q.dead_letter_max_count,
            dead_letter_max_bytes = q.dead_letter_max_bytes,
            adopting = CASE WHEN q.receivers AND NOT was.receivers THEN '0' WHEN q.receivers THEN was.adopting END
        WHERE t.queue_id = q.queue_id;
END
$$;

-- Changes the given settings of a queue, made when it does not exist. A key left out keeps its value; null puts its
-- default back.
CREATE OR REPLACE FUNCTION configure_queue(queue text, config jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues;
BEGIN
    PERFORM with_settings(NULL::queues, config); -- before the queue is made
    q := open_queue(queue);
    SELECT * INTO q FROM queues t WHERE t.queue_id = q.queue_id FOR UPDATE; -- one change after the other
    IF NOT FOUND THEN
        PERFORM fail('40001', format('queue "%s" was just deleted by another transaction', queue));
    END IF;
    PERFORM save_settings(q, with_settings(q, config));
END
$$;

-- Makes a queue for messages, or gives one its whole configuration: what is left out has its default. What is in it stays.
CREATE FUNCTION create_queue(queue text, config jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    was queues;
    fresh queues;
    made boolean;
BEGIN
    PERFORM check_name('queue', queue);
    fresh.kind := 'queue';
    fresh.ordering := 'standard';
    fresh.receivers := true;
    fresh.max_deliveries := 10;
    fresh.max_payload_bytes := 1048576;
    fresh.lock_time := '30 seconds';
    fresh.dead_letters := true;
    fresh.dead_letter_on_expiry := true;
    -- A null is what is left out: it puts this queue's default back, not that of one that springs up.
    fresh := with_settings(fresh, CASE WHEN jsonb_typeof(config) = 'object' THEN jsonb_strip_nulls(config) ELSE config END);
    PERFORM with_settings(fresh, config);
    INSERT INTO queues (name, kind, receivers, ordering) VALUES (create_queue.queue, fresh.kind, fresh.receivers, fresh.ordering)
        ON CONFLICT (name) DO NOTHING;
    SELECT * INTO was FROM queues t WHERE t.name = create_queue.queue FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM fail('40001', format('queue "%s" was just made or deleted by another transaction', queue));
    END IF;
    IF EXISTS (SELECT FROM subscriptions s WHERE s.queue_id = was.queue_id) THEN
        PERFORM fail('LH008', format('"%s" is a subscription: change its settings with configure_queue', queue));
    END IF;
    fresh.queue_id := was.queue_id;
    fresh.name := was.name;
    PERFORM save_settings(was, fresh);
END
$$;

-- Deletes a queue or topic. One that holds anything (requests, messages, dead letters; a topic its subscriptions) is deleted
-- with all of it, or not at all. Results stay for their pollers. It waits for no sender: while a transaction that sends to it
-- is open, it is refused.
CREATE FUNCTION delete_queue(queue text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues := find_queue(queue);
    subscription text;
BEGIN
    PERFORM lock_out_senders(q);
    PERFORM FROM queues t WHERE t.queue_id = q.queue_id FOR UPDATE; -- one change after the other
    IF NOT FOUND THEN
        PERFORM fail('LH002', format('queue "%s" does not exist', queue));
    END IF;
    IF NOT coalesce(force, false) THEN
        IF EXISTS (SELECT FROM rows_of(q.queue_id)) OR EXISTS (SELECT FROM dead_letters d WHERE d.queue_id = q.queue_id) THEN
            PERFORM fail('LH001', format('queue "%s" is not empty: force deletes it with what it holds', queue));
        ELSIF EXISTS (SELECT FROM subscriptions s WHERE s.topic_id = q.queue_id) THEN
            PERFORM fail('LH001', format('topic "%s" has subscriptions: force deletes them with what they hold', queue));
        END IF;
    END IF;
    IF EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = q.queue_id AND d.expires_at > clock_timestamp()) THEN
        PERFORM fail('LH001', format('queue "%s" is being served by a dispatcher', queue));
    END IF;
    FOR subscription IN SELECT t.name FROM subscriptions s JOIN queues t ON t.queue_id = s.queue_id WHERE s.topic_id = q.queue_id LOOP
        PERFORM delete_queue(subscription, true);
    END LOOP;
    DELETE FROM requests r WHERE r.queue_id = q.queue_id;
    DELETE FROM dead_letters d WHERE d.queue_id = q.queue_id;
    DELETE FROM dedup d WHERE d.queue_id = q.queue_id;
    DELETE FROM replays p WHERE p.queue_id = q.queue_id;
    DELETE FROM groups g WHERE g.queue_id = q.queue_id;
    DELETE FROM group_checks c WHERE c.queue_id = q.queue_id;
    DELETE FROM waits w WHERE w.queue_id = q.queue_id;
    DELETE FROM subscriptions s WHERE s.queue_id = q.queue_id;
    DELETE FROM partitions p WHERE p.queue_id = q.queue_id;
    DELETE FROM dispatchers d WHERE d.queue_id = q.queue_id;
    DELETE FROM queues t WHERE t.queue_id = q.queue_id;
END
$$;

-- Every queue and topic with all its settings.
CREATE FUNCTION list_queues() RETURNS TABLE (queue text, kind text, topic text, config jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET intervalstyle = 'postgres' AS $$
    SELECT q.name, q.kind, t.name, jsonb_strip_nulls(jsonb_build_object('ordering', q.ordering, 'receivers', q.receivers))
        || jsonb_build_object('route', q.route, 'result_ttl', q.result_ttl, 'default_deadline', q.default_deadline,
            'max_deliveries', q.max_deliveries, 'max_payload_bytes', q.max_payload_bytes,
            'tenant_attributes', to_jsonb(q.tenant_attributes), 'lock_time', q.lock_time, 'ttl', q.ttl,
            'dedup_window', q.dedup_window, 'dead_letters', q.dead_letters, 'dead_letter_on_expiry', q.dead_letter_on_expiry,
            'dead_letter_max_age', q.dead_letter_max_age, 'dead_letter_max_count', q.dead_letter_max_count,
            'dead_letter_max_bytes', q.dead_letter_max_bytes)
    FROM queues q LEFT JOIN subscriptions s ON s.queue_id = q.queue_id LEFT JOIN queues t ON t.queue_id = s.topic_id
    ORDER BY q.name
$$;

-- A filter is one SQL/JSON path predicate. A path that is none would be no boolean at run time, and accept nothing.
CREATE FUNCTION check_filter(filter text) RETURNS jsonpath
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    path jsonpath;
BEGIN
    IF coalesce(filter, '') = '' THEN
        RETURN NULL;
    ELSIF octet_length(filter) > 4096 THEN
        PERFORM fail('LH010', format('filter must have at most 4096 bytes, not %s', octet_length(filter)));
    END IF;
    BEGIN
        path := filter::jsonpath;
    EXCEPTION WHEN OTHERS THEN
        PERFORM fail('LH010', format('filter is no SQL/JSON path: %s', SQLERRM));
    END;
    BEGIN
        PERFORM jsonb_path_match('{}', path);
    EXCEPTION WHEN OTHERS THEN
        PERFORM fail('LH010', 'filter must be a predicate, such as $.subject == "orders"');
    END;
    RETURN path;
END
$$;

-- Makes a subscription and the queue that has its name, and the topic if there is none. Again: changes the filter alone.
CREATE FUNCTION subscribe(topic text, name text, filter text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    path jsonpath := check_filter(filter);
    t queues;
    q queues;
    owner int;
BEGIN
    PERFORM check_name('topic', topic), check_name('name', name);
    SELECT * INTO t FROM queues x WHERE x.name = subscribe.topic;
    IF NOT FOUND THEN
        PERFORM create_queue(topic, '{"kind": "topic"}');
        SELECT * INTO t FROM queues x WHERE x.name = subscribe.topic;
    ELSIF t.kind <> 'topic' THEN
        PERFORM fail('LH008', format('"%s" is a queue', topic));
    END IF;
    PERFORM FROM queues x WHERE x.queue_id = t.queue_id FOR UPDATE; -- one change after the other
    IF NOT FOUND THEN
        PERFORM fail('40001', format('topic "%s" was just deleted by another transaction', topic));
    END IF;
    SELECT * INTO q FROM queues x WHERE x.name = subscribe.name;
    IF FOUND THEN
        SELECT s.topic_id INTO owner FROM subscriptions s WHERE s.queue_id = q.queue_id;
        IF owner IS DISTINCT FROM t.queue_id THEN
            PERFORM fail('LH008', format('"%s" is %s', name, CASE WHEN q.kind = 'topic' THEN 'a topic'
                WHEN owner IS NULL THEN 'a queue' ELSE 'a subscription of another topic' END));
        END IF;
        UPDATE subscriptions s SET filter = path WHERE s.queue_id = q.queue_id;
        IF NOT FOUND THEN
            PERFORM fail('40001', format('subscription "%s" was just deleted by another transaction', name));
        END IF;
        RETURN;
    END IF;
    PERFORM create_queue(name);
    SELECT * INTO q FROM queues x WHERE x.name = subscribe.name;
    INSERT INTO subscriptions (topic_id, queue_id, filter) VALUES (t.queue_id, q.queue_id, path);
END
$$;

CREATE FUNCTION unsubscribe(topic text, name text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    PERFORM check_name('topic', topic), check_name('name', name);
    IF NOT EXISTS (SELECT FROM subscriptions s JOIN queues q ON q.queue_id = s.queue_id JOIN queues t ON t.queue_id = s.topic_id
        WHERE q.name = unsubscribe.name AND t.name = unsubscribe.topic) THEN
        PERFORM fail('LH011', format('topic "%s" has no subscription "%s"', topic, name));
    END IF;
    PERFORM delete_queue(name, force);
END
$$;

CREATE FUNCTION list_subscriptions(of_topic text DEFAULT NULL) RETURNS TABLE (topic text, name text, filter text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.name, q.name, s.filter::text FROM subscriptions s JOIN queues q ON q.queue_id = s.queue_id
        JOIN queues t ON t.queue_id = s.topic_id
    WHERE $1 IS NULL OR t.name = $1 ORDER BY t.name, q.name
$$;
