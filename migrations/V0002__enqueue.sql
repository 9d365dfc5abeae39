-- What producers call. Every function checks its arguments before it writes anything, and names the one at
-- fault. SQLSTATEs: LH001 invalid argument, LH002 queue not found, LH003 conflict, LH004 payload too large.
--
-- What a producer may call runs as the schema's owner with a pinned search path. Small helpers that touch no
-- table pin nothing of their own (that costs microseconds a call): they run under their caller's pin.

CREATE FUNCTION fail(code text, message text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message;
END
$$;

CREATE FUNCTION check_name(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM fail('LH001', format('%s must not be null', argument));
    ELSIF octet_length(value) NOT BETWEEN 1 AND 255 THEN
        PERFORM fail('LH001', format('%s must have 1 to 255 bytes, not %s', argument, octet_length(value)));
    ELSIF value ~ '[[:cntrl:]]' THEN
        PERFORM fail('LH001', format('%s must not contain control characters', argument));
    END IF;
END
$$;

-- FNV-1a (32 bit) of the key's UTF-8 bytes, mod 64. The low six bits of a product depend only on the low
-- six bits of its factors, so six bits of the offset basis (5) and of the prime (19) are enough. Eight
-- bytes a step fit into a bigint: 2^8 * 19^8 < 2^43.
CREATE FUNCTION partition_of(key text) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := convert_to(key, 'UTF8');
    size int := octet_length(bytes);
    hash bigint := 5;
    i int := 0;
BEGIN
    WHILE i + 8 <= size LOOP
        hash := ((((((((((((((((hash # get_byte(bytes, i)) * 19) # get_byte(bytes, i + 1)) * 19)
            # get_byte(bytes, i + 2)) * 19) # get_byte(bytes, i + 3)) * 19) # get_byte(bytes, i + 4)) * 19)
            # get_byte(bytes, i + 5)) * 19) # get_byte(bytes, i + 6)) * 19) # get_byte(bytes, i + 7)) * 19) & 63;
        i := i + 8;
    END LOOP;
    WHILE i < size LOOP
        hash := ((hash # get_byte(bytes, i)) * 19) & 63;
        i := i + 1;
    END LOOP;
    RETURN hash;
END
$$;

-- A version 7 UUID: time first, so that new ids land side by side in the index.
CREATE FUNCTION new_id() RETURNS text
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid::text
$$;

-- The queue's row, made at first use.
CREATE FUNCTION open_queue(queue text) RETURNS queues
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    found_queue queues;
BEGIN
    SELECT * INTO found_queue FROM queues q WHERE q.name = open_queue.queue;
    IF NOT FOUND THEN
        PERFORM check_name('queue', queue);
        INSERT INTO queues (name) VALUES (open_queue.queue) ON CONFLICT (name) DO NOTHING;
        SELECT * INTO found_queue FROM queues q WHERE q.name = open_queue.queue;
        IF NOT FOUND THEN -- made by another transaction that our snapshot cannot see
            RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
                MESSAGE = format('queue "%s" was just made by another transaction', queue);
        END IF;
    END IF;
    RETURN found_queue;
END
$$;

CREATE FUNCTION find_queue(queue text) RETURNS queues
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    found_queue queues;
BEGIN
    SELECT * INTO found_queue FROM queues q WHERE q.name = find_queue.queue;
    IF NOT FOUND THEN
        PERFORM check_name('queue', queue);
        PERFORM fail('LH002', format('queue "%s" does not exist', queue));
    END IF;
    RETURN found_queue;
END
$$;

-- Channels carry numbers, never names: a name could be cut at 63 bytes. The schema's oid keeps
-- installations in one database apart.
CREATE FUNCTION channel(kind text, number int) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT format('leasehold_%s_%s_%s', (SELECT oid FROM pg_namespace WHERE nspname = current_schema()), kind, number)
$$;

-- Wakes the queue's sleeping dispatchers at commit, and costs one look where nobody sleeps: NOTIFY takes a
-- lock of the whole server at commit. The partition is NULL for many, or for a parked one, so that whoever wakes
-- knows when it is due; else only its owner looks.
CREATE FUNCTION ring_queue(queue_id int, partition_id smallint) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM dispatchers d
               WHERE d.queue_id = ring_queue.queue_id AND d.asleep AND d.expires_at > clock_timestamp()) THEN
        PERFORM pg_notify(channel('queue', ring_queue.queue_id), coalesce(ring_queue.partition_id::text, ''));
    END IF;
END
$$;

-- Raises for the first thing wrong with one request. `suffix` says which of many (`s[2]`).
CREATE FUNCTION check_request(suffix text, max_payload_bytes int, payload bytea, id text, token text,
    deadline timestamptz, route text, not_before timestamptz, headers jsonb, metadata jsonb) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF payload IS NULL THEN
        PERFORM fail('LH001', format('payload%s must not be null; an empty one is allowed', suffix));
    ELSIF octet_length(payload) > max_payload_bytes THEN
        PERFORM fail('LH004', format('payload%s has %s bytes; the queue takes at most %s',
            suffix, octet_length(payload), max_payload_bytes));
    ELSIF octet_length(id) NOT BETWEEN 1 AND 512 THEN
        PERFORM fail('LH001', format('id%s must have 1 to 512 bytes, not %s', suffix, octet_length(id)));
    ELSIF octet_length(token) NOT BETWEEN 1 AND 255 THEN
        PERFORM fail('LH001', format('token%s must have 1 to 255 bytes, not %s', suffix, octet_length(token)));
    ELSIF deadline = '-infinity' THEN
        PERFORM fail('LH001', format('deadline%s must not be -infinity', suffix));
    ELSIF not_before IN ('infinity', '-infinity') THEN
        PERFORM fail('LH001', format('not_before%s must be finite', suffix));
    ELSIF jsonb_typeof(headers) <> 'object' OR headers @? 'strict $.* ? (@.type() != "string")' THEN
        PERFORM fail('LH001', format('headers%s must be a JSON object of strings', ltrim(suffix, 's')));
    ELSIF jsonb_typeof(metadata) <> 'object' THEN
        PERFORM fail('LH001', format('metadata%s must be a JSON object', ltrim(suffix, 's')));
    END IF;
    IF route IS NOT NULL THEN
        PERFORM check_name('route' || suffix, route);
    END IF;
END
$$;

-- What must be equal for a repeat to be the same submission. Times are left out: a producer that repeats
-- itself reckons them anew.
CREATE FUNCTION submission_digest(queue text, payload bytea, route text, headers jsonb, metadata jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(convert_to(jsonb_build_array(queue, route, headers, metadata)::text, 'UTF8') || payload)
$$;

CREATE FUNCTION enqueue_many(queue text, payloads bytea[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    q queues;
    at timestamptz := clock_timestamp();
    bad text;
    forgotten boolean;
    kept_ids text[];
    kept_tokens text[];
    kept_seqs bigint[];
    kept_digests bytea[];
BEGIN
    q := open_queue(enqueue_many.queue);
    IF payloads IS NULL THEN
        PERFORM fail('LH001', 'payloads must not be null; an empty array is allowed');
    END IF;
    SELECT a.name INTO bad FROM (VALUES ('ids', cardinality(ids)), ('tokens', cardinality(tokens)),
            ('deadlines', cardinality(deadlines)), ('routes', cardinality(routes)),
            ('not_befores', cardinality(not_befores)), ('headers', cardinality(headers)),
            ('metadata', cardinality(metadata))) AS a (name, size)
        WHERE a.size <> cardinality(payloads) LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM fail('LH001', format('%s must have as many elements as payloads (%s)', bad, cardinality(payloads)));
    END IF;

    -- A cheap look at all, and a thorough one at whatever may be wrong.
    PERFORM check_request(format('s[%s]', i.n), q.max_payload_bytes, i.payload, i.id, i.token, i.deadline, i.route,
            i.not_before, i.headers, i.metadata)
        FROM unnest(payloads, ids, tokens, deadlines, routes, not_befores, headers, metadata) WITH ORDINALITY
            AS i (payload, id, token, deadline, route, not_before, headers, metadata, n)
        WHERE i.payload IS NULL OR octet_length(i.payload) > q.max_payload_bytes
            OR octet_length(i.id) NOT BETWEEN 1 AND 512 OR octet_length(i.token) NOT BETWEEN 1 AND 255
            OR i.deadline = '-infinity' OR i.not_before IN ('infinity', '-infinity')
            OR octet_length(i.route) NOT BETWEEN 1 AND 255 OR i.route ~ '[[:cntrl:]]' OR i.headers IS NOT NULL
            OR jsonb_typeof(i.metadata) <> 'object';

    -- The transaction has its id before it draws a seq: a reader can then tell, from a snapshot's xmin,
    -- when no smaller seq can appear any more.
    PERFORM pg_current_xact_id();

    IF tokens IS NULL THEN
        RETURN QUERY INSERT INTO requests AS r (queue_id, partition_id, id, token, payload, deadline, route, ready,
                due_at, headers, metadata, enqueued_at)
            SELECT q.queue_id, partition_of(i.id), i.id, gen_random_uuid()::text, i.payload, i.deadline, i.route,
                NOT i.parked, CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers, i.metadata, at
            FROM (SELECT u.payload, coalesce(u.id, new_id()) AS id, coalesce(u.deadline, at + q.default_deadline,
                        'infinity') AS deadline, coalesce(q.route, u.route) AS route,
                        coalesce(u.not_before > at, false) AS parked, u.not_before, u.headers, u.metadata, u.n
                    FROM unnest(payloads, ids, deadlines, routes, not_befores, headers, metadata) WITH ORDINALITY
                        AS u (payload, id, deadline, route, not_before, headers, metadata, n)
                    OFFSET 0) AS i
            ORDER BY i.n
            RETURNING r.id, r.token, r.seq;
        PERFORM ring_queue(q.queue_id, NULL);
        RETURN;
    END IF;

    SELECT format('%s (token %s)', i.id, i.token) INTO bad FROM unnest(ids, tokens) AS i (id, token)
        WHERE i.id IS NOT NULL AND i.token IS NOT NULL GROUP BY i.id, i.token HAVING count(*) > 1 LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM fail('LH003', format('id %s is given twice', bad));
    END IF;

    -- The submissions' key decides who is first; both tables are written in key order against deadlocks.
    WITH input AS MATERIALIZED (
        SELECT u.*, nextval('request_seq') AS seq, partition_of(u.id) AS partition_id
        FROM (SELECT coalesce(u.id, new_id()) AS id, coalesce(u.token, gen_random_uuid()::text) AS token,
                    u.token IS NOT NULL AS named, u.payload,
                    coalesce(u.deadline, at + q.default_deadline, 'infinity') AS deadline,
                    coalesce(q.route, u.route) AS route, coalesce(u.not_before > at, false) AS parked, u.not_before,
                    u.headers, u.metadata, u.n, CASE WHEN u.token IS NOT NULL THEN
                        submission_digest(enqueue_many.queue, u.payload, u.route, u.headers, u.metadata) END AS digest
                FROM unnest(payloads, ids, tokens, deadlines, routes, not_befores, headers, metadata) WITH ORDINALITY
                    AS u (payload, id, token, deadline, route, not_before, headers, metadata, n)
                ORDER BY u.n OFFSET 0) AS u
    ), named AS (
        INSERT INTO submissions AS s (id, token, seq, digest, accepted_at)
        SELECT i.id, i.token, i.seq, i.digest, at FROM input i WHERE i.named ORDER BY i.id, i.token
        ON CONFLICT (id, token) DO NOTHING RETURNING s.seq
    ), fresh AS (
        INSERT INTO requests AS r (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at,
            headers, metadata, enqueued_at)
        SELECT i.seq, q.queue_id, i.partition_id, i.id, i.token, i.payload, i.deadline, i.route, NOT i.parked,
            CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers, i.metadata, at
        FROM input i WHERE NOT i.named OR i.seq IN (SELECT seq FROM named) ORDER BY i.n
        RETURNING r.seq
    )
    SELECT array_agg(i.id ORDER BY i.n), array_agg(i.token ORDER BY i.n), array_agg(f.seq ORDER BY i.n),
            array_agg(i.digest ORDER BY i.n)
        INTO kept_ids, kept_tokens, kept_seqs, kept_digests
        FROM input i LEFT JOIN fresh f ON f.seq = i.seq;

    -- Whatever was there before us must be the same submission. This is a new statement, so it sees the
    -- transaction we waited for.
    SELECT format('%s (token %s)', k.id, k.token), s.digest IS NULL INTO bad, forgotten
        FROM unnest(kept_ids, kept_tokens, kept_seqs, kept_digests) AS k (id, token, seq, digest)
        LEFT JOIN submissions s ON s.id = k.id AND s.token = k.token
        WHERE k.seq IS NULL AND s.digest IS DISTINCT FROM k.digest LIMIT 1;
    IF forgotten THEN
        PERFORM fail('40001', format('the submission of id %s was just forgotten', bad));
    ELSIF bad IS NOT NULL THEN
        PERFORM fail('LH003', format('id %s was already submitted with other content', bad));
    END IF;
    RETURN QUERY SELECT k.id, k.token, coalesce(k.seq, s.seq)
        FROM unnest(kept_ids, kept_tokens, kept_seqs) WITH ORDINALITY AS k (id, token, seq, n)
        LEFT JOIN submissions s ON k.seq IS NULL AND s.id = k.id AND s.token = k.token ORDER BY k.n;
    PERFORM ring_queue(q.queue_id, NULL);
END
$$;

CREATE FUNCTION enqueue(queue text, payload bytea, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, OUT seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    q queues;
    at timestamptz := clock_timestamp();
    parked boolean := coalesce(not_before > at, false);
    same boolean;
    share smallint;
    xid xid8;
BEGIN
    SELECT * INTO q FROM queues WHERE queues.name = queue;
    IF NOT FOUND THEN
        q := open_queue(queue);
    END IF;
    IF payload IS NULL OR octet_length(payload) > q.max_payload_bytes OR octet_length(id) NOT BETWEEN 1 AND 512
        OR octet_length(token) NOT BETWEEN 1 AND 255 OR deadline = '-infinity' OR not_before = 'infinity'
        OR not_before = '-infinity' OR octet_length(route) NOT BETWEEN 1 AND 255 OR route ~ '[[:cntrl:]]'
        OR headers IS NOT NULL OR jsonb_typeof(metadata) <> 'object' THEN
        PERFORM check_request('', q.max_payload_bytes, payload, id, token, deadline, route, not_before, headers, metadata);
    END IF;
    xid := pg_current_xact_id(); -- before the seq: see enqueue_many
    seq := nextval('request_seq');
    id := coalesce(id, new_id());
    IF token IS NULL THEN
        token := gen_random_uuid();
    ELSE
        INSERT INTO submissions
            VALUES (seq, at, id, token, submission_digest(queue, payload, route, headers, metadata))
            ON CONFLICT ON CONSTRAINT submissions_pkey DO NOTHING;
        IF NOT FOUND THEN
            SELECT s.seq, s.digest = submission_digest(queue, payload, route, headers, metadata) INTO seq, same
                FROM submissions s WHERE s.id = enqueue.id AND s.token = enqueue.token;
            IF NOT FOUND THEN
                PERFORM fail('40001', format('the submission of id %s (token %s) was just forgotten', id, token));
            ELSIF NOT same THEN
                PERFORM fail('LH003', format('id %s (token %s) was already submitted with other content', id, token));
            END IF;
            RETURN;
        END IF;
    END IF;
    deadline := coalesce(deadline, at + q.default_deadline, 'infinity');
    share := partition_of(id);
    INSERT INTO requests (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at, headers,
            metadata, enqueued_at)
        VALUES (seq, q.queue_id, share, id, token, payload, deadline, coalesce(q.route, route), NOT parked,
            CASE WHEN parked THEN least(not_before, deadline) END, headers, metadata, at);
    IF EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = q.queue_id AND d.asleep) THEN
        PERFORM ring_queue(q.queue_id, CASE WHEN NOT parked THEN share END);
    END IF;
END
$$;

-- The payload as text, json or jsonb: the bytes are its UTF-8 text. An untyped literal is taken as text. These
-- bodies are bound to the functions they call when they are made, so that no search path matters.
CREATE FUNCTION enqueue(queue text, payload text, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, OUT seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue(queue, convert_to(payload, 'UTF8'), id, token, deadline, route, not_before, headers, metadata);
END;

CREATE FUNCTION enqueue(queue text, payload json, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, OUT seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue(queue, convert_to(payload::text, 'UTF8'), id, token, deadline, route, not_before, headers,
        metadata);
END;

CREATE FUNCTION enqueue(queue text, payload jsonb, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, OUT seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue(queue, convert_to(payload::text, 'UTF8'), id, token, deadline, route, not_before, headers,
        metadata);
END;

CREATE FUNCTION enqueue_many(queue text, payloads text[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue_many(queue, CASE WHEN payloads IS NOT NULL THEN ARRAY(SELECT convert_to(p, 'UTF8')
        FROM unnest(payloads) WITH ORDINALITY AS u (p, n) ORDER BY n) END, ids, tokens, deadlines, routes, not_befores,
        headers, metadata);
END;

CREATE FUNCTION enqueue_many(queue text, payloads json[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue_many(queue, payloads::text[], ids, tokens, deadlines, routes, not_befores, headers, metadata);
END;

CREATE FUNCTION enqueue_many(queue text, payloads jsonb[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue_many(queue, payloads::text[], ids, tokens, deadlines, routes, not_befores, headers, metadata);
END;

-- Flags every generation of each id, and says how many. A parked one is made due, so that its outcome does
-- not wait. One that nobody has goes to the head of the order, where its outcome needs no room: see dispatch.
-- Rows are locked in key order.
CREATE FUNCTION cancel(ids text[]) RETURNS int
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
    UPDATE requests r SET cancelled = true, ready = true, due_at = NULL,
            deadline = CASE WHEN r.epoch = 0 THEN '-infinity' ELSE r.deadline END
        WHERE r.id = ANY (cancel.ids);
    GET DIAGNOSTICS flagged = ROW_COUNT;
    FOR bell IN SELECT DISTINCT r.queue_id, r.partition_id FROM requests r WHERE r.id = ANY (cancel.ids) LOOP
        PERFORM ring_queue(bell.queue_id, bell.partition_id);
    END LOOP;
    RETURN flagged;
END
$$;

-- The live generations of an id, oldest first; none when it is unknown or finished.
CREATE FUNCTION request_status(id text) RETURNS TABLE (token text, queue text, state text, seq bigint,
    partition_id smallint, owner text, deliveries int, cancelled boolean, route text, enqueued_at timestamptz,
    dispatched_at timestamptz, due_at timestamptz, deadline timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT r.token, q.name, CASE WHEN r.epoch <> 0 THEN 'in flight' WHEN r.ready THEN 'pending' ELSE 'parked' END,
        r.seq, r.partition_id, CASE WHEN r.epoch <> 0 THEN p.owner END, r.deliveries, r.cancelled, r.route,
        r.enqueued_at, r.dispatched_at, CASE WHEN NOT r.ready THEN r.due_at END,
        CASE WHEN isfinite(r.deadline) THEN r.deadline END
    FROM requests r JOIN queues q USING (queue_id)
        LEFT JOIN partitions p ON p.queue_id = r.queue_id AND p.partition_id = r.partition_id
    WHERE r.id = request_status.id ORDER BY r.seq
$$;
