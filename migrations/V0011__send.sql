-- Messages are sent: to a queue, or to a topic, which puts a copy on each subscription whose filter accepts it.

-- Raises for the first thing wrong with one message. `suffix` says which of many (`s[2]`).
CREATE FUNCTION check_message(suffix text, body bytea, message_id text, correlation_id text, reply_to text, subject text,
    content_type text, properties jsonb, ttl interval, at timestamptz, group_id text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    size int;
BEGIN
    IF body IS NULL THEN
        PERFORM fail('LH001', format('bod%s must not be null; an empty one is allowed',
            CASE WHEN suffix = '' THEN 'y' ELSE 'ie' || suffix END));
    ELSIF octet_length(message_id) NOT BETWEEN 1 AND 512 THEN
        PERFORM fail('LH001', format('message_id%s must have 1 to 512 bytes, not %s', suffix, octet_length(message_id)));
    ELSIF jsonb_typeof(properties) <> 'object' OR properties @? 'strict $.* ? (@.type() != "string")' THEN
        PERFORM fail('LH001', format('properties%s must be a JSON object of strings', ltrim(suffix, 's')));
    ELSIF ttl NOT BETWEEN '1 millisecond' AND '100 years' THEN
        PERFORM fail('LH001', format('ttl%s must be from 1 millisecond to 100 years', suffix));
    ELSIF at <= clock_timestamp() THEN
        PERFORM fail('LH001', format('at%s must be in the future', suffix));
    ELSIF at > clock_timestamp() + interval '100 years' THEN
        PERFORM fail('LH001', format('at%s must be within 100 years', suffix));
    END IF;
    IF reply_to IS NOT NULL THEN
        PERFORM check_name('reply_to' || suffix, reply_to);
    END IF;
    size := coalesce(octet_length(message_id), 0) + coalesce(octet_length(group_id), 0)
        + coalesce(octet_length(correlation_id), 0) + coalesce(octet_length(reply_to), 0) + coalesce(octet_length(subject), 0)
        + coalesce(octet_length(content_type), 0) + coalesce(octet_length(properties::text), 0);
    IF size > 65536 THEN
        PERFORM fail('LH001', format('the metadata of message%s have %s bytes together; at most 65536 are allowed',
            ltrim(suffix, 's'), size));
    END IF;
END
$$;

-- The first sequence number within the window for each message: its own where it is the first, 0 where the first
-- had another body. Keys are claimed in their order, against deadlocks.
CREATE FUNCTION claim_keys(q queues, message_ids text[], bodies bytea[], seqs bigint[], ids text[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    wanted bytea[] := ARRAY(SELECT dedup_key(u.message_id, u.body) FROM unnest(message_ids, bodies) WITH ORDINALITY
        AS u (message_id, body, n) ORDER BY u.n);
    digests bytea[] := ARRAY(SELECT sha256(u.body) FROM unnest(bodies) WITH ORDINALITY AS u (body, n) ORDER BY u.n);
    slots bigint[];
BEGIN
    INSERT INTO dedup AS d (queue_id, key, seq, digest, id, token, expires_at)
        SELECT q.queue_id, f.key, f.seq, f.digest, f.id, '', clock_timestamp() + q.dedup_window FROM (
            SELECT DISTINCT ON (u.key) u.* FROM unnest(wanted, seqs, digests, ids) WITH ORDINALITY
                AS u (key, seq, digest, id, n) ORDER BY u.key, u.n) AS f
        ORDER BY f.key
        ON CONFLICT (queue_id, key) DO UPDATE SET seq = excluded.seq, digest = excluded.digest, id = excluded.id,
            token = excluded.token, expires_at = clock_timestamp() + q.dedup_window
        WHERE d.expires_at <= clock_timestamp();
    SELECT array_agg(CASE WHEN d.digest = u.digest THEN d.seq WHEN d.digest IS NOT NULL THEN 0 END ORDER BY u.n) INTO slots
        FROM unnest(wanted, digests) WITH ORDINALITY AS u (key, digest, n)
        LEFT JOIN dedup d ON d.queue_id = q.queue_id AND d.key = u.key;
    IF array_position(slots, NULL) IS NOT NULL THEN
        PERFORM fail('40001', 'what was deduplicated against was just forgotten');
    END IF;
    RETURN slots;
END
$$;

-- Puts checked messages on a queue. Says the sequence number of each; that of the first for a duplicate; 0 for one
-- that conflicts with it.
CREATE FUNCTION put_messages(q queues, bodies bytea[], message_ids text[], group_ids text[], correlation_ids text[],
    reply_tos text[], subjects text[], content_types text[], properties jsonb[], ttls interval[], ats timestamptz[],
    drawn_ids text[] DEFAULT NULL)
RETURNS bigint[]
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := clock_timestamp();
    large int;
    lanes text[] := lanes_of(q, group_ids, cardinality(bodies));
    ids text[];
    seqs bigint[];
    slots bigint[];
    opens boolean[];
BEGIN
    SELECT octet_length(u.body) INTO large FROM unnest(bodies) AS u (body)
        WHERE octet_length(u.body) > q.max_payload_bytes LIMIT 1;
    IF large IS NOT NULL THEN
        PERFORM fail('LH004', format('body has %s bytes; queue "%s" takes at most %s', large, q.name, q.max_payload_bytes));
    END IF;
    IF lanes IS NOT NULL THEN
        PERFORM lock_groups(q.queue_id, lanes); -- before a seq is drawn: their order is that of the commits
    END IF;
    PERFORM pg_current_xact_id(); -- before a seq is drawn: see enqueue_many
    seqs := ARRAY(SELECT nextval('request_seq') FROM generate_series(1, cardinality(bodies)));
    ids := ARRAY(SELECT coalesce(u.id, u.drawn_id, new_id()) FROM unnest(message_ids, drawn_ids, bodies) WITH ORDINALITY
        AS u (id, drawn_id, body, n) ORDER BY u.n);
    slots := CASE WHEN q.dedup_window IS NULL THEN seqs ELSE claim_keys(q, message_ids, bodies, seqs, ids) END;
    opens := opens_group(q.queue_id, lanes, ARRAY(SELECT u.at IS NOT NULL OR u.slot <> u.seq
        FROM unnest(ats, slots, seqs) WITH ORDINALITY AS u (at, slot, seq, n) WHERE lanes IS NOT NULL ORDER BY u.n));
    INSERT INTO requests (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at, metadata,
            enqueued_at, tenant, receivable, answered, group_id, group_given, held, ttl, correlation_id, subject, content_type)
        SELECT i.seq, q.queue_id, partition_of(coalesce(i.lane, i.id)), i.id, gen_random_uuid()::text, i.body,
            coalesce(coalesce(i.at, now_at) + coalesce(i.ttl, q.default_deadline), 'infinity'),
            coalesce(q.route, i.reply_to), i.at IS NULL AND (i.lane IS NULL OR i.opens), i.at, i.properties, now_at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.properties, q.tenant_attributes) END,
            q.receivers, coalesce(q.route, i.reply_to) IS NOT NULL, i.lane, CASE WHEN i.lane = '' THEN i.group_id END,
            CASE WHEN i.at IS NOT NULL THEN 's'::"char" WHEN NOT i.opens AND i.lane IS NOT NULL THEN 'g'::"char" END, i.own_ttl,
            i.correlation_id, i.subject, i.content_type
        FROM (SELECT u.*, least(u.own_ttl, q.ttl) AS ttl
                FROM unnest(seqs, slots, ids, bodies, lanes, group_ids, correlation_ids, reply_tos, subjects, content_types,
                    properties, ttls, ats, opens) WITH ORDINALITY AS u (seq, slot, id, body, lane, group_id, correlation_id,
                    reply_to, subject, content_type, properties, own_ttl, at, opens, n)
                WHERE u.slot = u.seq OFFSET 0) AS i
        ORDER BY i.n;
    PERFORM accepted(q, lanes, opens);
    RETURN slots;
END
$$;

-- What a filter sees of a message. Its times are in UTC, whatever the sender's zone.
CREATE FUNCTION filter_document(body bytea, message_id text, group_id text, correlation_id text, reply_to text,
    subject text, content_type text, properties jsonb, at timestamptz) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET timezone = 'UTC' AS $$
DECLARE
    document jsonb := jsonb_build_object('subject', subject, 'subject_parts', to_jsonb(string_to_array(subject, '.')),
        'group_id', group_id, 'correlation_id', correlation_id, 'reply_to', reply_to, 'message_id', message_id,
        'content_type', content_type, 'properties', coalesce(properties, '{}'), 'body_size', octet_length(body),
        'enqueued_at', clock_timestamp(), 'visible_at', coalesce(at, clock_timestamp()));
    body_text text;
BEGIN
    BEGIN
        body_text := convert_from(body, 'UTF8');
        document := document || jsonb_build_object('body_text', body_text);
        IF content_type IS NULL OR content_type ~* 'json' THEN
            document := document || jsonb_build_object('body', body_text::jsonb);
        END IF;
    EXCEPTION WHEN OTHERS THEN
        NULL; -- no text, or no JSON: it has no such member
    END;
    RETURN document;
END
$$;

-- A filter fails closed: an error, or what is no boolean, is not accepted.
CREATE FUNCTION accepts(filter jsonpath, document jsonb) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT filter IS NULL OR coalesce(jsonb_path_match(document, filter, silent => true), false)
$$;

-- A copy for each subscription that accepts it. Says the smallest sequence number of the copies; 0 where there is none.
CREATE FUNCTION publish(topic queues, bodies bytea[], message_ids text[], group_ids text[], correlation_ids text[],
    reply_tos text[], subjects text[], content_types text[], properties jsonb[], ttls interval[], ats timestamptz[])
RETURNS bigint[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    subscription record;
    q queues;
    documents jsonb[];
    drawn_ids text[] := ARRAY(SELECT new_id() FROM generate_series(1, cardinality(bodies))); -- the copies are one message
    accepted_ns int[];
    slots bigint[] := array_fill(0::bigint, ARRAY[cardinality(bodies)]);
    copies bigint[];
BEGIN
    FOR subscription IN SELECT s.queue_id, s.filter FROM subscriptions s WHERE s.topic_id = topic.queue_id ORDER BY s.queue_id
    LOOP
        IF subscription.filter IS NOT NULL AND documents IS NULL THEN
            documents := ARRAY(SELECT filter_document(u.body, u.message_id, u.group_id, u.correlation_id, u.reply_to,
                    u.subject, u.content_type, u.properties, u.at)
                FROM unnest(bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types, properties,
                    ats) WITH ORDINALITY AS u (body, message_id, group_id, correlation_id, reply_to, subject, content_type,
                    properties, at, n) ORDER BY u.n);
        END IF;
        BEGIN
            accepted_ns := ARRAY(SELECT n FROM generate_series(1, cardinality(bodies)) AS n
                WHERE accepts(subscription.filter, documents[n]) ORDER BY n);
        EXCEPTION WHEN OTHERS THEN
            -- Some errors are not silent (a time compared with one that has no zone): then each is looked at by itself.
            accepted_ns := '{}';
            FOR i IN 1 .. cardinality(bodies) LOOP
                BEGIN
                    IF accepts(subscription.filter, documents[i]) THEN
                        accepted_ns := accepted_ns || i;
                    END IF;
                EXCEPTION WHEN OTHERS THEN
                    NULL; -- not accepted
                END;
            END LOOP;
        END;
        CONTINUE WHEN accepted_ns = '{}';
        SELECT * INTO q FROM queues t WHERE t.queue_id = subscription.queue_id;
        CONTINUE WHEN NOT FOUND; -- just deleted
        IF NOT sees_commits() THEN
            PERFORM hold_queue(q.name);
        END IF;
        -- Not by subscripts: they need not begin at 1.
        SELECT put_messages(q, array_agg(u.body ORDER BY u.n), array_agg(u.message_id ORDER BY u.n),
                array_agg(u.group_id ORDER BY u.n), array_agg(u.correlation_id ORDER BY u.n), array_agg(u.reply_to ORDER BY u.n),
                array_agg(u.subject ORDER BY u.n), array_agg(u.content_type ORDER BY u.n), array_agg(u.properties ORDER BY u.n),
                array_agg(u.ttl ORDER BY u.n), array_agg(u.at ORDER BY u.n), array_agg(u.drawn_id ORDER BY u.n))
            INTO copies FROM unnest(bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types, properties,
                ttls, ats, drawn_ids) WITH ORDINALITY AS u (body, message_id, group_id, correlation_id, reply_to, subject,
                content_type, properties, ttl, at, drawn_id, n)
            WHERE u.n = ANY (accepted_ns);
        FOR i IN 1 .. cardinality(accepted_ns) LOOP
            slots[accepted_ns[i]] := least(nullif(slots[accepted_ns[i]], 0), nullif(copies[i], 0));
            slots[accepted_ns[i]] := coalesce(slots[accepted_ns[i]], 0);
        END LOOP;
    END LOOP;
    RETURN slots;
END
$$;

-- One transaction, all or nothing; a sequence number for each, in order. A duplicate has that of the first; one whose
-- first has another body has 0, and the others are sent.
CREATE FUNCTION send_many(queue text, bodies bytea[], message_ids text[] DEFAULT NULL, group_ids text[] DEFAULT NULL,
    correlation_ids text[] DEFAULT NULL, reply_tos text[] DEFAULT NULL, subjects text[] DEFAULT NULL,
    content_types text[] DEFAULT NULL, properties jsonb[] DEFAULT NULL, ttls interval[] DEFAULT NULL,
    ats timestamptz[] DEFAULT NULL)
RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    q queues := enter_queue(queue);
    bad text;
BEGIN
    IF bodies IS NULL THEN
        PERFORM fail('LH001', 'bodies must not be null; an empty array is allowed');
    ELSIF bodies = '{}' THEN
        RETURN '{}';
    END IF;
    SELECT format('bodies[%s] has %s bytes; queue "%s" takes at most %s', u.n, octet_length(u.body), q.name, q.max_payload_bytes)
        INTO bad FROM unnest(bodies) WITH ORDINALITY AS u (body, n) WHERE octet_length(u.body) > q.max_payload_bytes LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM fail('LH004', bad);
    END IF;
    SELECT a.name INTO bad FROM (VALUES ('message_ids', cardinality(message_ids)), ('group_ids', cardinality(group_ids)),
            ('correlation_ids', cardinality(correlation_ids)), ('reply_tos', cardinality(reply_tos)),
            ('subjects', cardinality(subjects)), ('content_types', cardinality(content_types)),
            ('properties', cardinality(properties)), ('ttls', cardinality(ttls)), ('ats', cardinality(ats))) AS a (name, size)
        WHERE a.size <> cardinality(bodies) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM fail('LH001', format('%s must have as many elements as bodies (%s)', bad, cardinality(bodies)));
    END IF;
    PERFORM check_message(format('s[%s]', u.n), u.body, u.message_id, u.correlation_id, u.reply_to, u.subject,
            u.content_type, u.properties, u.ttl, u.at, u.group_id)
        FROM unnest(bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types, properties, ttls, ats)
            WITH ORDINALITY AS u (body, message_id, group_id, correlation_id, reply_to, subject, content_type, properties, ttl,
            at, n);
    IF q.kind = 'topic' THEN
        RETURN publish(q, bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
            properties, ttls, ats);
    END IF;
    RETURN put_messages(q, bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
        properties, ttls, ats);
END
$$;

-- One message, in the caller's transaction. To a topic: the smallest sequence number of the copies, 0 where no
-- subscription accepts it.
CREATE FUNCTION send(queue text, body bytea, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := enter_queue(queue);
BEGIN
    RETURN send_checked(q, body, NULL, message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END
$$;

CREATE FUNCTION schedule(queue text, body bytea, at timestamptz, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues := enter_queue(queue);
BEGIN
    IF at IS NULL THEN
        PERFORM fail('LH001', 'at must not be null');
    END IF;
    RETURN send_checked(q, body, at, message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END
$$;

CREATE FUNCTION send_checked(q queues, body bytea, at timestamptz, message_id text, group_id text, correlation_id text,
    reply_to text, subject text, content_type text, properties jsonb, ttl interval) RETURNS bigint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    slots bigint[];
BEGIN
    IF octet_length(body) > q.max_payload_bytes THEN
        PERFORM fail('LH004', format('body has %s bytes; queue "%s" takes at most %s', octet_length(body), q.name,
            q.max_payload_bytes));
    END IF;
    PERFORM check_message('', body, message_id, correlation_id, reply_to, subject, content_type, properties, ttl, at,
        group_id);
    IF q.kind = 'topic' THEN
        slots := publish(q, ARRAY[body], ARRAY[message_id], ARRAY[group_id], ARRAY[correlation_id],
        ARRAY[reply_to], ARRAY[subject], ARRAY[content_type], ARRAY[properties], ARRAY[ttl], ARRAY[at]);
    ELSE
        slots := put_messages(q, ARRAY[body], ARRAY[message_id], ARRAY[group_id], ARRAY[correlation_id],
        ARRAY[reply_to], ARRAY[subject], ARRAY[content_type], ARRAY[properties], ARRAY[ttl], ARRAY[at]);
        IF slots[1] = 0 THEN
            PERFORM fail('LH007', format('%s was already accepted with another body',
                CASE WHEN message_id IS NULL THEN 'the message' ELSE format('message_id %s', message_id) END));
        END IF;
    END IF;
    RETURN slots[1];
END
$$;

CREATE FUNCTION send(queue text, body text, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT send(queue, convert_to(body, 'UTF8'), message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END;

CREATE FUNCTION schedule(queue text, body text, at timestamptz, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT schedule(queue, convert_to(body, 'UTF8'), at, message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END;

CREATE FUNCTION send(queue text, body json, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT send(queue, convert_to(body::text, 'UTF8'), message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END;

CREATE FUNCTION schedule(queue text, body json, at timestamptz, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT schedule(queue, convert_to(body::text, 'UTF8'), at, message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END;

CREATE FUNCTION send(queue text, body jsonb, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT send(queue, convert_to(body::text, 'UTF8'), message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END;

CREATE FUNCTION schedule(queue text, body jsonb, at timestamptz, message_id text DEFAULT NULL, group_id text DEFAULT NULL,
    correlation_id text DEFAULT NULL, reply_to text DEFAULT NULL, subject text DEFAULT NULL, content_type text DEFAULT NULL,
    properties jsonb DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
BEGIN ATOMIC
    SELECT schedule(queue, convert_to(body::text, 'UTF8'), at, message_id, group_id, correlation_id, reply_to, subject, content_type,
        properties, ttl);
END;

CREATE FUNCTION send_many(queue text, bodies text[], message_ids text[] DEFAULT NULL, group_ids text[] DEFAULT NULL,
    correlation_ids text[] DEFAULT NULL, reply_tos text[] DEFAULT NULL, subjects text[] DEFAULT NULL,
    content_types text[] DEFAULT NULL, properties jsonb[] DEFAULT NULL, ttls interval[] DEFAULT NULL,
    ats timestamptz[] DEFAULT NULL)
RETURNS bigint[]
LANGUAGE sql
BEGIN ATOMIC
    SELECT send_many(queue, CASE WHEN bodies IS NOT NULL THEN ARRAY(SELECT convert_to(b, 'UTF8')
        FROM unnest(bodies) WITH ORDINALITY AS u (b, n) ORDER BY n) END, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
        properties, ttls, ats);
END;

CREATE FUNCTION send_many(queue text, bodies json[], message_ids text[] DEFAULT NULL, group_ids text[] DEFAULT NULL,
    correlation_ids text[] DEFAULT NULL, reply_tos text[] DEFAULT NULL, subjects text[] DEFAULT NULL,
    content_types text[] DEFAULT NULL, properties jsonb[] DEFAULT NULL, ttls interval[] DEFAULT NULL,
    ats timestamptz[] DEFAULT NULL)
RETURNS bigint[]
LANGUAGE sql
BEGIN ATOMIC
    SELECT send_many(queue, bodies::text[], message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
        properties, ttls, ats);
END;

CREATE FUNCTION send_many(queue text, bodies jsonb[], message_ids text[] DEFAULT NULL, group_ids text[] DEFAULT NULL,
    correlation_ids text[] DEFAULT NULL, reply_tos text[] DEFAULT NULL, subjects text[] DEFAULT NULL,
    content_types text[] DEFAULT NULL, properties jsonb[] DEFAULT NULL, ttls interval[] DEFAULT NULL,
    ats timestamptz[] DEFAULT NULL)
RETURNS bigint[]
LANGUAGE sql
BEGIN ATOMIC
    SELECT send_many(queue, bodies::text[], message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
        properties, ttls, ats);
END;

-- Takes back what was scheduled and never delivered.
CREATE FUNCTION cancel_scheduled(queue text, seq bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    q queues := find_queue(queue);
    cancelled boolean := false;
BEGIN
    IF q.receivers THEN
        DELETE FROM requests r WHERE r.receivable AND r.queue_id = q.queue_id AND NOT r.ready AND r.seq = cancel_scheduled.seq
            AND r.held = 's' AND r.due_at > clock_timestamp() AND r.deadline > clock_timestamp();
        cancelled := FOUND;
    END IF;
    IF NOT cancelled AND (NOT q.receivers OR q.adopting IS NOT NULL) THEN
        DELETE FROM requests r WHERE r.queue_id = q.queue_id AND NOT r.ready AND r.seq = cancel_scheduled.seq
            AND r.held = 's' AND r.due_at > clock_timestamp() AND r.deadline > clock_timestamp();
        cancelled := FOUND;
    END IF;
    IF NOT cancelled THEN
        PERFORM fail('LH011', format('queue "%s" has no scheduled message %s', queue, coalesce(seq::text, 'null')));
    END IF;
END
$$;
