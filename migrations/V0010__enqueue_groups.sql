-- What producers call, with groups, deduplication, and messages.

DROP FUNCTION enqueue(text, text, text, text, timestamptz, text, timestamptz, jsonb, jsonb);
DROP FUNCTION enqueue(text, json, text, text, timestamptz, text, timestamptz, jsonb, jsonb);
DROP FUNCTION enqueue(text, jsonb, text, text, timestamptz, text, timestamptz, jsonb, jsonb);
DROP FUNCTION enqueue(text, bytea, text, text, timestamptz, text, timestamptz, jsonb, jsonb);
DROP FUNCTION enqueue_many(text, json[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]);
DROP FUNCTION enqueue_many(text, jsonb[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]);
DROP FUNCTION enqueue_many(text, text[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]);
DROP FUNCTION enqueue_many(text, bytea[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[]);

-- Who sends to a queue holds this, shared, to the end of the transaction, so that it is not deleted meanwhile.
CREATE FUNCTION sending_to(queue text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(queue, 4207849484)
$$;

-- Under REPEATABLE READ a sender may see a queue that was deleted or changed meanwhile, and would send to what is no more: it
-- fails with 40001 instead.
CREATE FUNCTION hold_queue(queue text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM queues q WHERE q.name = hold_queue.queue FOR SHARE;
END
$$;

CREATE FUNCTION check_not_topic(q queues) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF q.kind = 'topic' THEN
        RAISE EXCEPTION USING ERRCODE = 'LH008',
            MESSAGE = format('"%s" is a topic: send to it, or name one of its subscriptions', q.name);
    END IF;
END
$$;

-- What orders each of many: its group, or '' where the whole queue is one. NULL: nothing orders any of them.
CREATE FUNCTION lanes_of(q queues, group_ids text[], count int) RETURNS text[]
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    lane text;
BEGIN
    FOREACH lane IN ARRAY coalesce(group_ids, '{}') LOOP
        IF lane IS NOT NULL THEN
            PERFORM check_name('group_id', lane);
        END IF;
    END LOOP;
    IF q.ordering = 'strict_fifo' THEN
        RETURN array_fill(''::text, ARRAY[count]);
    ELSIF q.ordering = 'group_fifo' AND count > 0 AND (group_ids IS NULL OR array_position(group_ids, NULL) IS NOT NULL) THEN
        PERFORM fail('LH009', format('group_id must not be null: queue "%s" is ordered by group', q.name));
    END IF;
    RETURN CASE WHEN array_to_string(group_ids, '') <> '' THEN group_ids END;
END
$$;

-- After the rows are in: what came to a group and did not open it takes its place, and who waits is woken.
CREATE FUNCTION accepted(q queues, lanes text[], opens boolean[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF lanes IS NOT NULL THEN
        PERFORM sent_to_group(q.queue_id, l.lane) FROM (SELECT u.lane FROM unnest(lanes, opens) AS u (lane, opens)
            WHERE u.lane IS NOT NULL GROUP BY u.lane HAVING NOT coalesce(bool_or(u.opens), false)) AS l;
    END IF;
    PERFORM ring_queue(q.queue_id, NULL);
    IF q.receivers THEN
        PERFORM ring_receivers(q.queue_id);
    END IF;
END
$$;

CREATE FUNCTION dedup_key(id text, body bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN id IS NOT NULL THEN convert_to('i' || id, 'UTF8') ELSE convert_to('b', 'UTF8') || sha256(body) END
$$;

-- Claims a key for its window. Where it is taken, the first is returned, and whether its body was another.
-- Whoever comes at the same time waits for the first to commit or roll back.
CREATE FUNCTION claim_key(q queues, given_id text, body bytea, seq bigint, id text, token text,
    OUT first_seq bigint, OUT first_id text, OUT first_token text, OUT conflict boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    wanted bytea := dedup_key(given_id, body);
BEGIN
    INSERT INTO dedup AS d (queue_id, key, seq, digest, id, token, expires_at)
        VALUES (q.queue_id, wanted, claim_key.seq, sha256(body), claim_key.id, claim_key.token, clock_timestamp() + q.dedup_window)
        ON CONFLICT (queue_id, key) DO UPDATE SET seq = excluded.seq, digest = excluded.digest, id = excluded.id,
            token = excluded.token, expires_at = clock_timestamp() + q.dedup_window
        WHERE d.expires_at <= clock_timestamp();
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT d.seq, d.id, d.token, d.digest <> sha256(body) INTO first_seq, first_id, first_token, conflict
        FROM dedup d WHERE d.queue_id = q.queue_id AND d.key = wanted;
    IF NOT FOUND THEN
        PERFORM fail('40001', 'what was deduplicated against was just forgotten');
    END IF;
END
$$;

CREATE FUNCTION enqueue_many(queue text, payloads bytea[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
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
    bad text;
    forgotten boolean;
    lanes text[];
    opens boolean[];
    kept_ids text[];
    kept_tokens text[];
    kept_seqs bigint[];
    kept_digests bytea[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(sending_to(enqueue_many.queue));
    IF NOT sees_commits() THEN
        PERFORM hold_queue(enqueue_many.queue);
    END IF;
    q := open_queue(enqueue_many.queue);
    PERFORM check_not_topic(q);
    IF payloads IS NULL THEN
        PERFORM fail('LH001', 'payloads must not be null; an empty array is allowed');
    END IF;
    SELECT a.name INTO bad FROM (VALUES ('ids', cardinality(ids)), ('tokens', cardinality(tokens)),
            ('deadlines', cardinality(deadlines)), ('routes', cardinality(routes)),
            ('not_befores', cardinality(not_befores)), ('headers', cardinality(headers)),
            ('metadata', cardinality(metadata)), ('group_ids', cardinality(group_ids))) AS a (name, size)
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

    lanes := lanes_of(q, group_ids, cardinality(payloads));
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
    END IF;

    IF tokens IS NULL THEN
        opens := opens_group(q.queue_id, lanes, ARRAY(SELECT coalesce(u.not_before > at, false)
            FROM unnest(not_befores, payloads) WITH ORDINALITY AS u (not_before, payload, n) WHERE lanes IS NOT NULL ORDER BY u.n));
        RETURN QUERY INSERT INTO requests AS r (queue_id, partition_id, id, token, payload, deadline, route, ready,
                due_at, headers, metadata, enqueued_at, tenant, receivable, group_id, group_given, held)
            SELECT q.queue_id, partition_of(coalesce(i.lane, i.id)), i.id, gen_random_uuid()::text, i.payload, i.deadline, i.route,
                NOT i.parked AND (i.lane IS NULL OR i.opens), CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers,
                i.metadata, at, CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.metadata, q.tenant_attributes) END,
                q.receivers, i.lane, CASE WHEN i.lane = '' THEN i.group_id END,
                CASE WHEN i.parked THEN 's'::"char" WHEN NOT i.opens THEN 'g'::"char" END
            FROM (SELECT u.payload, coalesce(u.id, new_id()) AS id, coalesce(u.deadline, at + q.default_deadline,
                        'infinity') AS deadline, coalesce(q.route, u.route) AS route,
                        coalesce(u.not_before > at, false) AS parked, u.not_before, u.headers, u.metadata,
                        u.lane, CASE WHEN u.lane IS NOT NULL THEN u.opens END AS opens, u.group_id, u.n
                    FROM unnest(payloads, ids, deadlines, routes, not_befores, headers, metadata, lanes, group_ids, opens)
                        WITH ORDINALITY
                        AS u (payload, id, deadline, route, not_before, headers, metadata, lane, group_id, opens, n)
                    OFFSET 0) AS i
            ORDER BY i.n
            RETURNING r.id, r.token, r.seq;
        PERFORM accepted(q, lanes, opens);
        RETURN;
    END IF;

    SELECT format('%s (token %s)', i.id, i.token) INTO bad FROM unnest(ids, tokens) AS i (id, token)
        WHERE i.id IS NOT NULL AND i.token IS NOT NULL GROUP BY i.id, i.token HAVING count(*) > 1 LIMIT 1;
    IF bad IS NOT NULL THEN
        PERFORM fail('LH003', format('id %s is given twice', bad));
    END IF;

    opens := opens_group(q.queue_id, lanes, ARRAY(SELECT coalesce(u.not_before > at, false)
        FROM unnest(not_befores, payloads) WITH ORDINALITY AS u (not_before, payload, n) WHERE lanes IS NOT NULL ORDER BY u.n));

    -- The submissions' key decides who is first; both tables are written in key order against deadlocks.
    WITH input AS MATERIALIZED (
        SELECT u.*, nextval('request_seq') AS seq, partition_of(coalesce(u.lane, u.id)) AS partition_id
        FROM (SELECT coalesce(u.id, new_id()) AS id, coalesce(u.token, gen_random_uuid()::text) AS token,
                    u.token IS NOT NULL AS named, u.payload,
                    coalesce(u.deadline, at + q.default_deadline, 'infinity') AS deadline,
                    coalesce(q.route, u.route) AS route, coalesce(u.not_before > at, false) AS parked, u.not_before,
                    u.headers, u.metadata, u.lane, CASE WHEN u.lane IS NOT NULL THEN u.opens END AS opens, u.group_id, u.n,
                    CASE WHEN u.token IS NOT NULL THEN
                        submission_digest(enqueue_many.queue, u.payload, u.route, u.headers, u.metadata) END AS digest
                FROM unnest(payloads, ids, tokens, deadlines, routes, not_befores, headers, metadata, lanes, group_ids, opens)
                    WITH ORDINALITY
                    AS u (payload, id, token, deadline, route, not_before, headers, metadata, lane, group_id, opens, n)
                ORDER BY u.n OFFSET 0) AS u
    ), named AS (
        INSERT INTO submissions AS s (id, token, seq, digest, accepted_at)
        SELECT i.id, i.token, i.seq, i.digest, at FROM input i WHERE i.named ORDER BY i.id, i.token
        ON CONFLICT (id, token) DO NOTHING RETURNING s.seq
    ), fresh AS (
        INSERT INTO requests AS r (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at,
            headers, metadata, enqueued_at, tenant, receivable, group_id, group_given, held)
        SELECT i.seq, q.queue_id, i.partition_id, i.id, i.token, i.payload, i.deadline, i.route,
            NOT i.parked AND (i.lane IS NULL OR i.opens), CASE WHEN i.parked THEN least(i.not_before, i.deadline) END, i.headers, i.metadata, at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(i.metadata, q.tenant_attributes) END,
            q.receivers, i.lane, CASE WHEN i.lane = '' THEN i.group_id END,
            CASE WHEN i.parked THEN 's'::"char" WHEN NOT i.opens THEN 'g'::"char" END
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
    -- One that was there already opened nothing.
    PERFORM accepted(q, lanes, ARRAY(SELECT u.opens AND u.seq IS NOT NULL FROM unnest(opens, kept_seqs) WITH ORDINALITY
        AS u (opens, seq, n) WHERE lanes IS NOT NULL ORDER BY u.n));
END
$$;

CREATE FUNCTION enqueue(queue text, payload bytea, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    xid xid8 := pg_current_xact_id(); -- first: see enqueue_many
    q queues;
    at timestamptz := clock_timestamp();
    parked boolean := coalesce(not_before > at, false);
    same boolean;
    share smallint;
    lane text;
    opens boolean;
    given_id text := id;
    claimed record;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(sending_to(queue));
    IF NOT sees_commits() THEN
        PERFORM hold_queue(queue);
    END IF;
    SELECT * INTO q FROM queues WHERE queues.name = queue;
    IF NOT FOUND THEN
        q := open_queue(queue);
    END IF;
    IF payload IS NULL OR octet_length(payload) > q.max_payload_bytes OR octet_length(id) NOT BETWEEN 1 AND 512
        OR octet_length(token) NOT BETWEEN 1 AND 255 OR deadline = '-infinity' OR not_before = 'infinity'
        OR not_before = '-infinity' OR octet_length(route) NOT BETWEEN 1 AND 255 OR route ~ '[[:cntrl:]]'
        OR headers IS NOT NULL OR jsonb_typeof(metadata) <> 'object' OR q.kind <> 'queue' THEN
        PERFORM check_not_topic(q);
        PERFORM check_request('', q.max_payload_bytes, payload, id, token, deadline, route, not_before, headers, metadata);
    END IF;
    IF group_id IS NOT NULL OR q.ordering <> 'standard' THEN
        lane := (lanes_of(q, ARRAY[group_id], 1))[1];
        PERFORM lock_groups(q.queue_id, ARRAY[lane]); -- before the seq is drawn: their order is that of the commits
    END IF;
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
    IF q.dedup_window IS NOT NULL THEN
        SELECT * INTO claimed FROM claim_key(q, given_id, payload, seq, id, token);
        IF claimed.conflict THEN
            PERFORM fail('LH007', format('%s was already accepted with another payload',
                CASE WHEN given_id IS NULL THEN 'the payload' ELSE format('id %s', given_id) END));
        ELSIF claimed.first_seq IS NOT NULL THEN
            UPDATE submissions s SET seq = claimed.first_seq WHERE s.id = enqueue.id AND s.token = enqueue.token;
            id := claimed.first_id;
            token := claimed.first_token;
            seq := claimed.first_seq;
            RETURN;
        END IF;
    END IF;
    deadline := coalesce(deadline, at + q.default_deadline, 'infinity');
    share := partition_of(coalesce(lane, id));
    IF lane IS NOT NULL THEN
        opens := (opens_group(q.queue_id, ARRAY[lane], ARRAY[parked]))[1];
    END IF;
    INSERT INTO requests (seq, queue_id, partition_id, id, token, payload, deadline, route, ready, due_at, headers,
            metadata, enqueued_at, tenant, receivable, group_id, group_given, held)
        VALUES (seq, q.queue_id, share, id, token, payload, deadline, coalesce(q.route, route),
            NOT parked AND (lane IS NULL OR opens),
            CASE WHEN parked THEN least(not_before, deadline) END, headers, metadata, at,
            CASE WHEN q.tenant_attributes IS NULL THEN '' ELSE tenant_of(metadata, q.tenant_attributes) END,
            q.receivers, lane, CASE WHEN lane = '' THEN group_id END,
            CASE WHEN parked THEN 's'::"char" WHEN NOT opens THEN 'g'::"char" END);
    IF lane IS NOT NULL OR q.receivers THEN
        PERFORM accepted(q, CASE WHEN NOT parked THEN ARRAY[lane] END, ARRAY[opens]);
    ELSIF EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = q.queue_id AND d.asleep) THEN
        PERFORM ring_queue(q.queue_id, CASE WHEN NOT parked THEN share END);
    END IF;
END
$$;

-- The payload as text, json or jsonb: the bytes are its UTF-8 text. An untyped literal is taken as text. These
-- bodies are bound to the functions they call when they are made, so that no search path matters.
CREATE FUNCTION enqueue(queue text, payload text, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue(queue, convert_to(payload, 'UTF8'), id, token, deadline, route, not_before, headers, metadata,
        group_id);
END;

CREATE FUNCTION enqueue(queue text, payload json, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue(queue, convert_to(payload::text, 'UTF8'), id, token, deadline, route, not_before, headers,
        metadata, group_id);
END;

CREATE FUNCTION enqueue(queue text, payload jsonb, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue(queue, convert_to(payload::text, 'UTF8'), id, token, deadline, route, not_before, headers,
        metadata, group_id);
END;

CREATE FUNCTION enqueue_many(queue text, payloads text[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL, group_ids text[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue_many(queue, CASE WHEN payloads IS NOT NULL THEN ARRAY(SELECT convert_to(p, 'UTF8')
        FROM unnest(payloads) WITH ORDINALITY AS u (p, n) ORDER BY n) END, ids, tokens, deadlines, routes, not_befores,
        headers, metadata,
        group_ids);
END;

CREATE FUNCTION enqueue_many(queue text, payloads json[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL, group_ids text[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue_many(queue, payloads::text[], ids, tokens, deadlines, routes, not_befores, headers, metadata,
        group_ids);
END;

CREATE FUNCTION enqueue_many(queue text, payloads jsonb[], ids text[] DEFAULT NULL, tokens text[] DEFAULT NULL,
    deadlines timestamptz[] DEFAULT NULL, routes text[] DEFAULT NULL, not_befores timestamptz[] DEFAULT NULL,
    headers jsonb[] DEFAULT NULL, metadata jsonb[] DEFAULT NULL, group_ids text[] DEFAULT NULL)
RETURNS TABLE (id text, token text, seq bigint)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM enqueue_many(queue, payloads::text[], ids, tokens, deadlines, routes, not_befores, headers, metadata,
        group_ids);
END;

-- The queue or topic that something is sent to.
CREATE FUNCTION enter_queue(queue text) RETURNS queues
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    q queues;
BEGIN
    PERFORM pg_current_xact_id(), pg_advisory_xact_lock_shared(sending_to(queue)); -- before the queue is read: see adopt
    IF NOT sees_commits() THEN
        PERFORM hold_queue(queue);
    END IF;
    SELECT * INTO q FROM queues t WHERE t.name = enter_queue.queue;
    IF NOT FOUND THEN
        PERFORM find_queue(queue); -- raises
    END IF;
    RETURN q;
END
$$;
