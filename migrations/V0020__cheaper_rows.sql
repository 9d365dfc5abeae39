-- Enqueueing for less: most of a row's cost above the insert itself was its partition, its id and its token.

-- partition_of for a key of up to 36 bytes (a UUID's text), given with 36 zeros behind it; the first 36 bytes count. Only the
-- low six bits of FNV-1a are wanted, and an int has room for five steps beyond those. A step with a zero multiplies by 19 alone,
-- so the zeros are taken back by powers of 19, of which the 16th is 1 (mod 64). An expression, which the planner puts in its
-- caller's place; to begin it costs some microseconds a statement, so it is for batches.
CREATE FUNCTION partition_of_short(key bytea) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((5 # get_byte(key, 0)) * 19) #
    get_byte(key, 1)) * 19) # get_byte(key, 2)) * 19) # get_byte(key, 3)) * 19) # get_byte(key, 4)) * 19 & 63) #
    get_byte(key, 5)) * 19) # get_byte(key, 6)) * 19) # get_byte(key, 7)) * 19) # get_byte(key, 8)) * 19) #
    get_byte(key, 9)) * 19 & 63) # get_byte(key, 10)) * 19) # get_byte(key, 11)) * 19) # get_byte(key, 12)) * 19) #
    get_byte(key, 13)) * 19) # get_byte(key, 14)) * 19 & 63) # get_byte(key, 15)) * 19) # get_byte(key, 16)) * 19) #
    get_byte(key, 17)) * 19) # get_byte(key, 18)) * 19) # get_byte(key, 19)) * 19 & 63) # get_byte(key, 20)) * 19) #
    get_byte(key, 21)) * 19) # get_byte(key, 22)) * 19) # get_byte(key, 23)) * 19) # get_byte(key, 24)) * 19 & 63) #
    get_byte(key, 25)) * 19) # get_byte(key, 26)) * 19) # get_byte(key, 27)) * 19) # get_byte(key, 28)) * 19) #
    get_byte(key, 29)) * 19 & 63) # get_byte(key, 30)) * 19) # get_byte(key, 31)) * 19) # get_byte(key, 32)) * 19) #
    get_byte(key, 33)) * 19) # get_byte(key, 34)) * 19 & 63) # get_byte(key, 35)) * 19) & 63) *
    get_byte('\x0113290b1103393b2133092b3123191b'::bytea, (octet_length(key) - 24) & 15)) & 63;

-- FNV-1a (32 bit) of the key's bytes, mod 64: short expressions, which cost little when a transaction begins with them.
CREATE OR REPLACE FUNCTION partition_of(key text) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := convert_to(key, 'UTF8');
    size int := octet_length(bytes);
    hash int := 5;
    i int := 0;
BEGIN
    WHILE i + 5 <= size LOOP
        hash := ((((((((((hash # get_byte(bytes, i)) * 19) # get_byte(bytes, i + 1)) * 19) # get_byte(bytes, i + 2)) * 19)
            # get_byte(bytes, i + 3)) * 19) # get_byte(bytes, i + 4)) * 19) & 63;
        i := i + 5;
    END LOOP;
    WHILE i < size LOOP
        hash := ((hash # get_byte(bytes, i)) * 19) & 63;
        i := i + 1;
    END LOOP;
    RETURN hash;
END
$$;

-- The first 15 characters of a UUIDv7 made now: milliseconds since 1970, and the version.
CREATE FUNCTION id_stamp() RETURNS text
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 1000)::bigint), 12, '0') PLACING '-' FROM 9 FOR 0) || '-7';

-- A UUIDv7. Batches ask for the stamp once.
CREATE OR REPLACE FUNCTION new_id() RETURNS text
LANGUAGE sql PARALLEL SAFE
RETURN id_stamp() || right(gen_random_uuid()::text, -15);

-- Arrays are unnested beside each other in the target list, which yields them row by row in their order. In FROM they would be
-- written to a tuplestore first, payloads and all.
CREATE OR REPLACE FUNCTION enqueue_many(queue text, payloads bytea[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL, group_ids text[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    -- The transaction has its id before it reads the queue (see adopt) and draws a seq: a reader can then tell, from a
    -- snapshot's xmin, when no smaller seq can appear any more.
    xid xid8 := pg_current_xact_id();
    q queues;
    at timestamptz := clock_timestamp();
    total int := cardinality(payloads);
    stamp text := id_stamp();
    bad text;
    lanes text[];
    opens boolean[];
    kept_ids text[];
    kept_tokens text[];
    kept_seqs bigint[];
    digests bytea[]; -- of those with a token
    named int;
    added int;
    forgotten text;
    fresh boolean[]; -- NULL: all are
BEGIN
    PERFORM pg_advisory_xact_lock_shared(sending_to(enqueue_many.queue));
    IF NOT sees_commits() THEN
        PERFORM hold_queue(enqueue_many.queue);
    END IF;
    SELECT * INTO q FROM queues WHERE queues.name = enqueue_many.queue;
    IF NOT FOUND THEN
        q := open_queue(enqueue_many.queue);
    END IF;
    IF q.kind <> 'queue' THEN
        PERFORM check_not_topic(q);
    END IF;
    IF payloads IS NULL THEN
        PERFORM fail('LH001', 'payloads must not be null; an empty array is allowed');
    END IF;
    IF total <> ANY (ARRAY[cardinality(ids), cardinality(tokens), cardinality(deadlines), cardinality(routes),
            cardinality(not_befores), cardinality(headers), cardinality(metadata), cardinality(group_ids)]) THEN
        SELECT a.name INTO bad FROM (VALUES ('ids', cardinality(ids)), ('tokens', cardinality(tokens)),
                ('deadlines', cardinality(deadlines)), ('routes', cardinality(routes)),
                ('not_befores', cardinality(not_befores)), ('headers', cardinality(headers)),
                ('metadata', cardinality(metadata)), ('group_ids', cardinality(group_ids))) AS a (name, size)
            WHERE a.size <> total LIMIT 1;
        PERFORM fail('LH001', format('%s must have as many elements as payloads (%s)', bad, total));
    END IF;

    -- A cheap look at all, and a thorough one at whatever may be wrong.
    PERFORM check_request(format('s[%s]', i.n), q.max_payload_bytes, i.payload, i.id, i.token, i.deadline, i.route,
            i.not_before, i.headers, i.metadata)
        FROM (SELECT unnest(payloads) AS payload, unnest(ids) AS id, unnest(tokens) AS token, unnest(deadlines) AS deadline,
            unnest(routes) AS route, unnest(not_befores) AS not_before, unnest(headers) AS headers, unnest(metadata) AS metadata,
            generate_series(1, total) AS n) AS i
        WHERE i.payload IS NULL OR octet_length(i.payload) > q.max_payload_bytes
            OR octet_length(i.id) NOT BETWEEN 1 AND 512 OR octet_length(i.token) NOT BETWEEN 1 AND 255
            OR i.deadline = '-infinity' OR i.not_before IN ('infinity', '-infinity')
            OR octet_length(i.route) NOT BETWEEN 1 AND 255 OR i.route ~ '[[:cntrl:]]' OR i.headers IS NOT NULL
            OR jsonb_typeof(i.metadata) <> 'object';

    IF group_ids IS NOT NULL OR q.ordering <> 'standard' THEN
        lanes := lanes_of(q, group_ids, total);
    END IF;
    IF q.dedup_window IS NOT NULL THEN
        RETURN QUERY SELECT e.* FROM (
            SELECT * FROM unnest(payloads, ids, tokens, deadlines, routes, not_befores, headers, metadata, group_ids)
                WITH ORDINALITY AS u (payload, id, token, deadline, route, not_before, headers, metadata, group_id, n)
            ORDER BY u.n) AS i, LATERAL enqueue(enqueue_many.queue, i.payload, i.id, i.token, i.deadline, i.route,
                i.not_before, i.headers, i.metadata, i.group_id) AS e;
        RETURN;
    END IF;
    IF lanes IS NOT NULL THEN
        PERFORM lock_groups(q.queue_id, lanes); -- before a seq is drawn: their order is that of the commits
        opens := opens_group(q.queue_id, lanes, ARRAY(SELECT coalesce(u.not_before > at, false)
            FROM (SELECT unnest(not_befores) AS not_before, generate_series(1, total)) AS u));
    END IF;

    IF tokens IS NOT NULL THEN
        SELECT array_agg(coalesce(u.id, stamp || right(gen_random_uuid()::text, -15))),
                array_agg(coalesce(u.token, gen_random_uuid()::text)), array_agg(nextval('request_seq')),
                array_agg(CASE WHEN u.token IS NOT NULL THEN
                    submission_digest(enqueue_many.queue, u.payload, u.route, u.headers, u.metadata) END), count(u.token)
            INTO kept_ids, kept_tokens, kept_seqs, digests, named
            FROM (SELECT unnest(ids) AS id, unnest(tokens) AS token, unnest(payloads) AS payload, unnest(routes) AS route,
                unnest(headers) AS headers, unnest(metadata) AS metadata) AS u;
        -- The submissions' key decides who is first; written in its order against deadlocks.
        INSERT INTO submissions (id, token, seq, digest, accepted_at)
            SELECT i.id, i.token, i.seq, i.digest, at
            FROM (SELECT unnest(kept_ids) AS id, unnest(kept_tokens) AS token, unnest(kept_seqs) AS seq, unnest(digests) AS digest) AS i
            WHERE i.digest IS NOT NULL ORDER BY i.id COLLATE "C", i.token COLLATE "C"
            ON CONFLICT ON CONSTRAINT submissions_pkey DO NOTHING;
        GET DIAGNOSTICS added = ROW_COUNT;
        IF added < named THEN
            SELECT format('%s (token %s)', i.id, i.token) INTO bad FROM unnest(ids, tokens) AS i (id, token)
                WHERE i.id IS NOT NULL AND i.token IS NOT NULL GROUP BY i.id, i.token HAVING count(*) > 1 LIMIT 1;
            IF bad IS NOT NULL THEN
                PERFORM fail('LH003', format('id %s is given twice', bad));
            END IF;
            -- Whatever was there before us must be the same submission. This is a new statement, so it sees the
            -- transaction we waited for.
            SELECT array_agg(coalesce(s.seq, k.seq) ORDER BY k.n), array_agg(coalesce(s.seq = k.seq, true) ORDER BY k.n),
                    min(format('%s (token %s)', k.id, k.token)) FILTER (WHERE s.digest <> k.digest),
                    min(format('%s (token %s)', k.id, k.token)) FILTER (WHERE k.digest IS NOT NULL AND s.digest IS NULL)
                INTO kept_seqs, fresh, bad, forgotten
                FROM unnest(kept_ids, kept_tokens, kept_seqs, digests) WITH ORDINALITY AS k (id, token, seq, digest, n)
                LEFT JOIN LATERAL (SELECT t.seq, t.digest FROM submissions t WHERE t.id = k.id AND t.token = k.token LIMIT 1) AS s ON true;
            IF bad IS NOT NULL THEN
                PERFORM fail('LH003', format('id %s was already submitted with other content', bad));
            ELSIF forgotten IS NOT NULL THEN
                PERFORM fail('40001', format('the submission of id %s was just forgotten', forgotten));
            END IF;
        END IF;
    END IF;

    -- One UUID makes a token and an id's tail: to draw another would cost as much as an index entry.
    RETURN QUERY WITH added AS (
        INSERT INTO requests AS r (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at, headers,
            metadata, enqueued_at, tenant, receivable, group_id, group_given, held)
        SELECT i.seq, q.queue_id, CASE WHEN octet_length(i.key) <= 72 THEN partition_of_short(i.key)
                ELSE partition_of(coalesce(i.lane, i.id)) END,
            i.id, i.token, i.payload, i.deadline, i.route, NOT i.parked AND (i.lane IS NULL OR i.opens),
            CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers, i.metadata, at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.metadata, q.tenant_attributes) END,
            q.receivers, i.lane, CASE WHEN i.lane = '' THEN i.group_id END,
            CASE WHEN i.parked THEN 's'::"char" WHEN NOT i.opens THEN 'g'::"char" END
        FROM (SELECT coalesce(u.seq, nextval('request_seq')) AS seq, coalesce(u.id, stamp || right(u.drawn, -15)) AS id,
                coalesce(u.token, u.drawn) AS token, u.payload, coalesce(u.deadline, at + q.default_deadline, 'infinity') AS deadline,
                coalesce(q.route, u.route) AS route, coalesce(u.not_before > at, false) AS parked, u.not_before,
                u.headers, u.metadata, u.lane, u.group_id, CASE WHEN u.lane IS NOT NULL THEN u.opens END AS opens,
                convert_to(coalesce(u.lane, u.id, stamp || right(u.drawn, -15)), 'UTF8') || decode(repeat('00', 36), 'hex') AS key
            FROM (SELECT unnest(kept_seqs) AS seq, unnest(coalesce(kept_ids, ids)) AS id, unnest(kept_tokens) AS token,
                CASE WHEN kept_tokens IS NULL THEN gen_random_uuid()::text END AS drawn, unnest(payloads) AS payload,
                unnest(deadlines) AS deadline, unnest(routes) AS route, unnest(not_befores) AS not_before,
                unnest(headers) AS headers, unnest(metadata) AS metadata, unnest(lanes) AS lane, unnest(group_ids) AS group_id,
                unnest(opens) AS opens, unnest(fresh) AS fresh) AS u
            WHERE u.fresh IS NOT FALSE OFFSET 0) AS i
        RETURNING r.id, r.token, r.seq
    )
    SELECT a.id, a.token, a.seq FROM added a WHERE fresh IS NULL
    UNION ALL SELECT unnest(kept_ids), unnest(kept_tokens), unnest(kept_seqs) WHERE fresh IS NOT NULL;
    -- One that was there already opened nothing.
    IF lanes IS NOT NULL OR q.receivers THEN
        PERFORM accepted(q, lanes, CASE WHEN fresh IS NULL THEN opens
            ELSE ARRAY(SELECT u.opens AND u.fresh FROM (SELECT unnest(opens) AS opens, unnest(fresh) AS fresh) AS u) END);
    ELSIF EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = q.queue_id AND d.asleep) THEN
        PERFORM ring_queue(q.queue_id, NULL);
    END IF;
END
$$;

-- Stable as jsonb_build_array is, so that the planner puts it in its caller's place.
CREATE OR REPLACE FUNCTION submission_digest(queue text, payload bytea, route text, headers jsonb, metadata jsonb) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(convert_to(jsonb_build_array(queue, route, headers, metadata)::text, 'UTF8') || payload);

CREATE OR REPLACE FUNCTION put_messages(q queues, bodies bytea[], message_ids text[], group_ids text[], correlation_ids text[],
    reply_tos text[], subjects text[], content_types text[], properties jsonb[], ttls interval[], ats timestamptz[],
    drawn_ids text[] DEFAULT NULL)
RETURNS bigint[]
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := clock_timestamp();
    large int;
    stamp text := id_stamp();
    lanes text[];
    ids text[];
    tokens text[];
    seqs bigint[];
    slots bigint[];
    opens boolean[];
BEGIN
    SELECT octet_length(u.body) INTO large FROM (SELECT unnest(bodies) AS body) AS u
        WHERE octet_length(u.body) > q.max_payload_bytes LIMIT 1;
    IF large IS NOT NULL THEN
        PERFORM fail('LH004', format('body has %s bytes; queue "%s" takes at most %s', large, q.name, q.max_payload_bytes));
    END IF;
    IF q.ordering <> 'standard' OR array_remove(group_ids, NULL) <> '{}' THEN
        lanes := lanes_of(q, group_ids, cardinality(bodies));
    END IF;
    IF lanes IS NOT NULL THEN
        PERFORM lock_groups(q.queue_id, lanes); -- before a seq is drawn: their order is that of the commits
    END IF;
    PERFORM pg_current_xact_id(); -- before a seq is drawn: see enqueue_many
    SELECT array_agg(coalesce(d.id, d.drawn_id, stamp || right(d.drawn, -15))), array_agg(d.drawn), array_agg(nextval('request_seq'))
        INTO ids, tokens, seqs
        FROM (SELECT u.id, u.drawn_id, gen_random_uuid()::text AS drawn FROM (SELECT unnest(message_ids) AS id,
            unnest(drawn_ids) AS drawn_id, generate_series(1, cardinality(bodies))) AS u OFFSET 0) AS d;
    slots := CASE WHEN q.dedup_window IS NULL THEN seqs ELSE claim_keys(q, message_ids, bodies, seqs, ids) END;
    IF lanes IS NOT NULL THEN
        opens := opens_group(q.queue_id, lanes, ARRAY(SELECT u.at IS NOT NULL OR u.slot <> u.seq
            FROM (SELECT unnest(ats) AS at, unnest(slots) AS slot, unnest(seqs) AS seq) AS u));
    END IF;
    INSERT INTO requests (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at, metadata,
            enqueued_at, tenant, receivable, answered, group_id, group_given, held, ttl, correlation_id, subject, content_type)
        SELECT i.seq, q.queue_id, CASE WHEN octet_length(i.key) <= 72 THEN partition_of_short(i.key)
                ELSE partition_of(coalesce(i.lane, i.id)) END, i.id, i.token, i.body,
            coalesce(coalesce(i.at, now_at) + coalesce(i.ttl, q.default_deadline), 'infinity'),
            coalesce(q.route, i.reply_to), i.at IS NULL AND (i.lane IS NULL OR i.opens), i.at, i.properties, now_at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.properties, q.tenant_attributes) END,
            q.receivers, coalesce(q.route, i.reply_to) IS NOT NULL, i.lane, CASE WHEN i.lane = '' THEN i.group_id END,
            CASE WHEN i.at IS NOT NULL THEN 's'::"char" WHEN NOT i.opens AND i.lane IS NOT NULL THEN 'g'::"char" END, i.own_ttl,
            i.correlation_id, i.subject, i.content_type
        FROM (SELECT u.*, least(u.own_ttl, q.ttl) AS ttl,
                convert_to(coalesce(u.lane, u.id), 'UTF8') || decode(repeat('00', 36), 'hex') AS key
            FROM (SELECT unnest(seqs) AS seq, unnest(slots) AS slot, unnest(ids) AS id, unnest(tokens) AS token,
                unnest(bodies) AS body, unnest(lanes) AS lane, unnest(group_ids) AS group_id,
                unnest(correlation_ids) AS correlation_id, unnest(reply_tos) AS reply_to, unnest(subjects) AS subject,
                unnest(content_types) AS content_type, unnest(properties) AS properties, unnest(ttls) AS own_ttl,
                unnest(ats) AS at, unnest(opens) AS opens) AS u
            WHERE u.slot = u.seq OFFSET 0) AS i;
    PERFORM accepted(q, lanes, opens);
    RETURN slots;
END
$$;

CREATE OR REPLACE FUNCTION send_many(queue text, bodies bytea[], message_ids text[] DEFAULT NULL, group_ids text[] DEFAULT NULL,
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
        INTO bad
        FROM (SELECT unnest(bodies) AS body, generate_series(1, cardinality(bodies)) AS n) AS u
        WHERE octet_length(u.body) > q.max_payload_bytes LIMIT 1;
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
    -- A cheap look at all, and a thorough one at whatever may be wrong. What is not told apart here has at most 65536 bytes together.
    PERFORM check_message(format('s[%s]', u.n), u.body, u.message_id, u.correlation_id, u.reply_to, u.subject,
            u.content_type, u.properties, u.ttl, u.at, u.group_id)
        FROM (SELECT unnest(bodies) AS body, unnest(message_ids) AS message_id, unnest(group_ids) AS group_id,
            unnest(correlation_ids) AS correlation_id, unnest(reply_tos) AS reply_to, unnest(subjects) AS subject,
            unnest(content_types) AS content_type, unnest(properties) AS properties, unnest(ttls) AS ttl, unnest(ats) AS at,
            generate_series(1, cardinality(bodies)) AS n) AS u
        WHERE u.body IS NULL OR octet_length(u.message_id) NOT BETWEEN 1 AND 512
            OR num_nonnulls(u.reply_to, u.properties, u.ttl, u.at) > 0
            OR octet_length(concat(u.message_id, u.group_id, u.correlation_id, u.subject, u.content_type)) > 65536;
    IF q.kind = 'topic' THEN
        RETURN publish(q, bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
            properties, ttls, ats);
    END IF;
    RETURN put_messages(q, bodies, message_ids, group_ids, correlation_ids, reply_tos, subjects, content_types,
        properties, ttls, ats);
END
$$;

DO $$
BEGIN
    EXECUTE format('REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
END
$$;
