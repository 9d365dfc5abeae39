-- Tenants: requests of one queue told apart, so that the backlog of one stands in no other's way.
--
-- A queue with `tenant_attributes` labels each request with the values of those metadata keys. Labelled requests
-- have an index of their own, by tenant, and are polled from it in turns; a tenant that its quota refuses is left out
-- of the poll, so that its backlog costs nothing until it is admitted. A queue without pays for none of it: each
-- request is in exactly one of the two indexes.

ALTER TABLE queues ADD COLUMN tenant_attributes text[];     -- NULL: requests are not told apart
ALTER TABLE requests ADD COLUMN tenant text COLLATE "C" NOT NULL DEFAULT '';    -- '': none

DROP INDEX requests_ready;
CREATE INDEX requests_ready ON requests (queue_id, partition_id, deadline, seq) WHERE ready AND tenant = '';
CREATE INDEX requests_tenant ON requests (queue_id, tenant, deadline, seq) WHERE ready AND tenant <> '';

-- The values of the attributes, or their digest where they are long; '' where there is none.
CREATE FUNCTION tenant_of(metadata jsonb, attributes text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    tenant text := coalesce(metadata ->> attributes[1], '');
BEGIN
    FOR i IN 2 .. cardinality(attributes) LOOP
        tenant := tenant || E'\x1f' || coalesce(metadata ->> attributes[i], '');
    END LOOP;
    tenant := rtrim(tenant, E'\x1f');
    RETURN CASE WHEN octet_length(tenant) > 255 THEN md5(tenant) ELSE tenant END;
END
$$;

CREATE FUNCTION check_tenant_attributes(value jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    attributes text[];
    attribute text;
BEGIN
    IF jsonb_typeof(value) = 'null' THEN
        RETURN NULL;
    ELSIF jsonb_typeof(value) <> 'array' OR jsonb_array_length(value) NOT BETWEEN 1 AND 8
        OR value @? 'strict $[*] ? (@.type() != "string")' THEN
        PERFORM fail('LH001', 'tenant_attributes must be an array of 1 to 8 metadata keys, or null');
    END IF;
    attributes := ARRAY(SELECT jsonb_array_elements_text(value));
    FOREACH attribute IN ARRAY attributes LOOP
        PERFORM check_name('tenant_attributes', attribute);
    END LOOP;
    RETURN attributes;
END
$$;

-- Sets what tells a queue's tenants apart where nothing does yet, and returns what does now. The first time, requests
-- that are already there want label_tenants.
CREATE FUNCTION ensure_tenant_attributes(queue_id int, attributes text[], OUT now_attributes text[], OUT changed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_tenant_attributes(to_jsonb(attributes));
    UPDATE queues q SET tenant_attributes = attributes
        WHERE q.queue_id = ensure_tenant_attributes.queue_id AND q.tenant_attributes IS NULL;
    changed := FOUND;
    SELECT q.tenant_attributes INTO now_attributes FROM queues q WHERE q.queue_id = ensure_tenant_attributes.queue_id;
END
$$;

-- Labels up to `max_rows` pending requests of a partition that were there before the queue told tenants apart. Says
-- how many. One that is missed (its transaction was still running) is labelled when it is handed back.
CREATE FUNCTION label_tenants(queue_id int, partition_id smallint, max_rows int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off AS $$
DECLARE
    attributes text[] := (SELECT q.tenant_attributes FROM queues q WHERE q.queue_id = label_tenants.queue_id);
    labelled int;
BEGIN
    UPDATE requests r SET tenant = tenant_of(r.metadata, attributes) WHERE r.epoch = 0 AND r.ctid = ANY (ARRAY(
        SELECT c.ctid FROM requests c WHERE c.ready AND c.tenant = '' AND c.queue_id = label_tenants.queue_id
            AND c.partition_id = label_tenants.partition_id AND c.epoch = 0 AND c.metadata ?| attributes
            AND tenant_of(c.metadata, attributes) <> ''
        ORDER BY c.deadline, c.seq LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS labelled = ROW_COUNT;
    RETURN labelled;
END
$$;

CREATE OR REPLACE FUNCTION enqueue_many(queue text, payloads bytea[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
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
                due_at, headers, metadata, enqueued_at, tenant)
            SELECT q.queue_id, partition_of(i.id), i.id, gen_random_uuid()::text, i.payload, i.deadline, i.route,
                NOT i.parked, CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers, i.metadata, at,
                CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.metadata, q.tenant_attributes) END
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
            headers, metadata, enqueued_at, tenant)
        SELECT i.seq, q.queue_id, i.partition_id, i.id, i.token, i.payload, i.deadline, i.route, NOT i.parked,
            CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers, i.metadata, at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.metadata, q.tenant_attributes) END
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

CREATE OR REPLACE FUNCTION enqueue(queue text, payload bytea, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
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
            metadata, enqueued_at, tenant)
        VALUES (seq, q.queue_id, share, id, token, payload, deadline, coalesce(q.route, route), NOT parked,
            CASE WHEN parked THEN least(not_before, deadline) END, headers, metadata, at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(metadata, q.tenant_attributes) END);
    IF EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = q.queue_id AND d.asleep) THEN
        PERFORM ring_queue(q.queue_id, CASE WHEN NOT parked THEN share END);
    END IF;
END
$$;

-- As before, for requests of no tenant.
CREATE OR REPLACE FUNCTION dispatch(queue_id int, owner text, max int, generation bigint,
    ended_only boolean DEFAULT false, past_locked boolean DEFAULT false)
RETURNS TABLE (seq bigint, id text, token text, attempt bigint, epoch bigint, partition_id smallint, deliveries int,
    cancelled boolean, expired boolean, deadline timestamptz, enqueued_at timestamptz, dispatched_at timestamptz,
    route text, headers jsonb, metadata jsonb, payload bytea)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    xid xid8 := pg_current_xact_id();
    drawn bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1024 + (random() * 1023)::bigint;
    latest timestamptz := CASE WHEN ended_only THEN clock_timestamp() ELSE 'infinity' END;
    candidates int := CASE WHEN past_locked THEN max + 1000 ELSE max END;
    heads tid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    heads := (
        SELECT ARRAY(SELECT head.ctid FROM (
            (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[1] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[2] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[3] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[4] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[5] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[6] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[7] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[8] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[9] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[10] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[11] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[12] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[13] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[14] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[15] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[16] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[17] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[18] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[19] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[20] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[21] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[22] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[23] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[24] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[25] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[26] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[27] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[28] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[29] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[30] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[31] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[32] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[33] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[34] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[35] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[36] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[37] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[38] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[39] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[40] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[41] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[42] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[43] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[44] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[45] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[46] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[47] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[48] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[49] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[50] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[51] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[52] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[53] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[54] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[55] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[56] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[57] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[58] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[59] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[60] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[61] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[62] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[63] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND c.epoch = 0 AND c.queue_id = $1 AND c.partition_id = owned.ids[64] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            ) AS head ORDER BY head.deadline, head.seq LIMIT candidates)
        FROM (SELECT array_agg(o.partition_id ORDER BY o.partition_id) AS ids FROM partitions o
            WHERE o.queue_id = $1 AND o.owner = $2 AND NOT o.draining AND o.lease_expires_at > clock_timestamp()
                AND EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = $1 AND d.owner = $2 AND d.generation = $4)
            ) AS owned);
    IF past_locked THEN
        heads := ARRAY(SELECT c.ctid FROM requests c WHERE c.ctid = ANY (heads) AND c.ready AND c.epoch = 0
            ORDER BY c.deadline, c.seq LIMIT $3 FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY
    UPDATE requests r
    SET epoch = p.epoch, attempt = drawn, deliveries = r.deliveries + 1, dispatched_at = clock_timestamp()
    FROM partitions p
    WHERE r.ctid = ANY (heads)
        AND r.ready AND r.epoch = 0
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2 AND NOT p.draining
        AND p.lease_expires_at > clock_timestamp()
    RETURNING r.seq, r.id, r.token, r.attempt, r.epoch, r.partition_id, r.deliveries, r.cancelled,
        r.deadline <= clock_timestamp() AND isfinite(r.deadline),
        CASE WHEN isfinite(r.deadline) AND r.deadline < '9999-12-30' THEN r.deadline END, r.enqueued_at,
        r.dispatched_at, r.route, r.headers, r.metadata, r.payload;
END
$$;

-- Stamps as dispatch does, under the same fences, requests of tenants: in turns from the tenant after `after`, up to
-- `quantum` of each and `max` in all, then (unless `past_locked`) once more round those that have more. Within a tenant the earliest
-- deadline comes first, then the lowest seq. Of the tenant `capped[i]` no more than `caps[i]`; where that is 0, and of
-- all tenants where `ended_only`, only what is past its deadline, or cancelled. A last row has no seq: its tenant is
-- where to go on, NULL at the beginning, and its deliveries say how many tenants had something for us.
--
-- A poll costs a descent or two for each tenant it visits, `visits` at most, and its batch. A tenant
-- with a cap of 0 is stepped over with one descent, whatever its backlog.
CREATE FUNCTION dispatch_tenants(queue_id int, owner text, max int, generation bigint, after text, capped text[],
    caps int[], quantum int, visits int, ended_only boolean DEFAULT false, past_locked boolean DEFAULT false)
RETURNS TABLE (seq bigint, id text, token text, attempt bigint, epoch bigint, partition_id smallint, deliveries int,
    cancelled boolean, expired boolean, deadline timestamptz, enqueued_at timestamptz, dispatched_at timestamptz,
    route text, headers jsonb, metadata jsonb, payload bytea, tenant text)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
#variable_conflict use_column
DECLARE
    xid xid8 := pg_current_xact_id();
    drawn bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1024 + (random() * 1023)::bigint;
    owned smallint[];
    here text := coalesce(after, '');
    first_deadline timestamptz;
    latest timestamptz;
    lap int := 1;
    start text := coalesce(after, '');
    batch tid[];
    cap int;
    heads tid[] := '{}';
    seen int := 0;
    more text[] := '{}';
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    owned := ARRAY(SELECT o.partition_id FROM partitions o
        WHERE o.queue_id = $1 AND o.owner = $2 AND NOT o.draining AND o.lease_expires_at > clock_timestamp()
            AND EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = $1 AND d.owner = $2 AND d.generation = $4));
    WHILE cardinality(owned) > 0 AND visits > 0 AND cardinality(heads) < max LOOP
        SELECT c.tenant, c.deadline INTO here, first_deadline FROM requests c
            WHERE c.ready AND c.tenant <> '' AND c.queue_id = $1 AND c.tenant > here
            ORDER BY c.queue_id, c.tenant, c.deadline, c.seq LIMIT 1;
        IF here IS NULL THEN
            EXIT WHEN lap = 2 OR start = '';
            lap := 2;
            here := '';
            CONTINUE;
        END IF;
        EXIT WHEN lap = 2 AND here > start;
        visits := visits - 1;
        cap := coalesce(caps[array_position(capped, here)], max);
        latest := CASE WHEN ended_only OR cap = 0 THEN clock_timestamp() ELSE 'infinity' END;
        CONTINUE WHEN first_deadline > latest;
        cap := CASE WHEN cap = 0 THEN quantum ELSE least(cap, quantum) END;
        IF past_locked THEN
            batch := ARRAY(SELECT c.ctid FROM requests c
                WHERE c.ready AND c.tenant <> '' AND c.queue_id = $1 AND c.tenant = here AND c.deadline <= latest
                    AND c.epoch = 0 AND c.partition_id = ANY (owned)
                ORDER BY c.deadline, c.seq LIMIT least(cap, max - cardinality(heads)) FOR UPDATE SKIP LOCKED);
        ELSE
            batch := ARRAY(SELECT c.ctid FROM requests c
                WHERE c.ready AND c.tenant <> '' AND c.queue_id = $1 AND c.tenant = here AND c.deadline <= latest
                    AND c.epoch = 0 AND c.partition_id = ANY (owned)
                ORDER BY c.deadline, c.seq LIMIT least(cap, max - cardinality(heads)));
        END IF;
        CONTINUE WHEN batch = '{}';
        seen := seen + 1;
        heads := heads || batch;
        IF cardinality(batch) >= quantum AND array_position(capped, here) IS NULL AND NOT past_locked THEN
            more := more || here;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(more) LOOP
        EXIT WHEN cardinality(heads) >= max;
        latest := CASE WHEN ended_only THEN clock_timestamp() ELSE 'infinity' END;
        batch := ARRAY(SELECT c.ctid FROM requests c
            WHERE c.ready AND c.tenant <> '' AND c.queue_id = $1 AND c.tenant = more[i] AND c.deadline <= latest
                AND c.epoch = 0 AND c.partition_id = ANY (owned)
            ORDER BY c.deadline, c.seq OFFSET quantum
            LIMIT ceil((max - cardinality(heads))::float8 / (cardinality(more) - i + 1)));
        heads := heads || batch;
    END LOOP;
    RETURN QUERY
    UPDATE requests r
    SET epoch = p.epoch, attempt = drawn, deliveries = r.deliveries + 1, dispatched_at = clock_timestamp()
    FROM partitions p
    WHERE r.ctid = ANY (heads)
        AND r.ready AND r.epoch = 0
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2 AND NOT p.draining
        AND p.lease_expires_at > clock_timestamp()
    RETURNING r.seq, r.id, r.token, r.attempt, r.epoch, r.partition_id, r.deliveries, r.cancelled,
        r.deadline <= clock_timestamp() AND isfinite(r.deadline),
        CASE WHEN isfinite(r.deadline) AND r.deadline < '9999-12-30' THEN r.deadline END, r.enqueued_at,
        r.dispatched_at, r.route, r.headers, r.metadata, r.payload, r.tenant;
    seq := NULL;
    deliveries := seen;
    tenant := here;
    RETURN NEXT;
END
$$;

CREATE OR REPLACE FUNCTION configure_queue(queue text, config jsonb) RETURNS void
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
                WHEN 'tenant_attributes' THEN q.tenant_attributes := check_tenant_attributes(config -> key);
            END CASE;
        EXCEPTION
            WHEN case_not_found THEN
                PERFORM fail('LH001', format('unknown setting "%s"; known are route, result_ttl, default_deadline, '
                    'max_deliveries, max_payload_bytes, tenant_attributes', key));
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
            max_deliveries = q.max_deliveries, max_payload_bytes = q.max_payload_bytes,
            tenant_attributes = q.tenant_attributes
        WHERE t.queue_id = q.queue_id;
END
$$;

CREATE OR REPLACE FUNCTION grants() RETURNS TABLE (role text, statement text)
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
            %1$I.dispatch_tenants(int, text, int, bigint, text, text[], int[], int, int, boolean, boolean),
            %1$I.ensure_tenant_attributes(int, text[]), %1$I.tenant_of(jsonb, text[]), %1$I.label_tenants(int, smallint, int),
            %1$I.backlog(text, interval[]), %1$I.result_depth(text)'),
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
        format(regexp_replace(w.objects, '\s+', ' ', 'g'), current_schema()), w.role) FROM all_wanted w
$$;

CREATE OR REPLACE FUNCTION apply_grants() RETURNS SETOF text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    wanted text;
    step record;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['leasehold_producer', 'leasehold_poller', 'leasehold_dispatcher',
            'leasehold_quota', 'leasehold_admin'] LOOP
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
