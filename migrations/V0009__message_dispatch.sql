-- What is sent as a message can be dispatched, and what a receiver's lapsed lock leaves behind, too.

-- With the content type of a message, which a request has among its headers.
CREATE FUNCTION headers_of(headers jsonb, content_type text) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN content_type IS NULL THEN headers
        ELSE coalesce(headers, '{}') || jsonb_build_object('content-type', content_type) END
$$;

-- As before, and past locks that have lapsed.
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
    lapsed timestamptz := clock_timestamp();
    heads tid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    heads := (
        SELECT ARRAY(SELECT head.ctid FROM (
            (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[1] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[2] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[3] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[4] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[5] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[6] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[7] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[8] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[9] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[10] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[11] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[12] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[13] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[14] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[15] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[16] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[17] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[18] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[19] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[20] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[21] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[22] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[23] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[24] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[25] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[26] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[27] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[28] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[29] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[30] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[31] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[32] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[33] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[34] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[35] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[36] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[37] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[38] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[39] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[40] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[41] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[42] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[43] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[44] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[45] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[46] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[47] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[48] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[49] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[50] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[51] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[52] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[53] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[54] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[55] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[56] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[57] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[58] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[59] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[60] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[61] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[62] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[63] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            UNION ALL (SELECT c.ctid, c.deadline, c.seq FROM requests c WHERE c.ready AND c.tenant = '' AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.queue_id = $1 AND c.partition_id = owned.ids[64] AND c.deadline <= latest ORDER BY c.deadline, c.seq)
            ) AS head ORDER BY head.deadline, head.seq LIMIT candidates)
        FROM (SELECT array_agg(o.partition_id ORDER BY o.partition_id) AS ids FROM partitions o
            WHERE o.queue_id = $1 AND o.owner = $2 AND NOT o.draining AND o.lease_expires_at > clock_timestamp()
                AND EXISTS (SELECT FROM dispatchers d WHERE d.queue_id = $1 AND d.owner = $2 AND d.generation = $4)
            ) AS owned);
    IF past_locked THEN
        heads := ARRAY(SELECT c.ctid FROM requests c WHERE c.ctid = ANY (heads) AND c.ready AND (c.epoch = 0 OR c.locked_until <= lapsed)
            ORDER BY c.deadline, c.seq LIMIT $3 FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY
    UPDATE requests r
    SET epoch = p.epoch, attempt = drawn, deliveries = r.deliveries + 1, dispatched_at = clock_timestamp(),
        locked_until = NULL, lock_token = NULL
    FROM partitions p
    WHERE r.ctid = ANY (heads)
        AND r.ready AND (r.epoch = 0 OR r.locked_until <= lapsed)
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2 AND NOT p.draining
        AND p.lease_expires_at > clock_timestamp()
    RETURNING r.seq, r.id, r.token, r.attempt, r.epoch, r.partition_id, r.deliveries, r.cancelled,
        r.deadline <= clock_timestamp() AND isfinite(r.deadline),
        CASE WHEN isfinite(r.deadline) AND r.deadline < '9999-12-30' THEN r.deadline END, r.enqueued_at,
        r.dispatched_at, r.route, headers_of(r.headers, r.content_type), r.metadata, r.payload;
END
$$;

CREATE OR REPLACE FUNCTION dispatch_tenants(queue_id int, owner text, max int, generation bigint, after text, capped text[],
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
    lapsed timestamptz := clock_timestamp();
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
                    AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.partition_id = ANY (owned)
                ORDER BY c.deadline, c.seq LIMIT least(cap, max - cardinality(heads)) FOR UPDATE SKIP LOCKED);
        ELSE
            batch := ARRAY(SELECT c.ctid FROM requests c
                WHERE c.ready AND c.tenant <> '' AND c.queue_id = $1 AND c.tenant = here AND c.deadline <= latest
                    AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.partition_id = ANY (owned)
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
                AND (c.epoch = 0 OR c.locked_until <= lapsed) AND c.partition_id = ANY (owned)
            ORDER BY c.deadline, c.seq OFFSET quantum
            LIMIT ceil((max - cardinality(heads))::float8 / (cardinality(more) - i + 1)));
        heads := heads || batch;
    END LOOP;
    RETURN QUERY
    UPDATE requests r
    SET epoch = p.epoch, attempt = drawn, deliveries = r.deliveries + 1, dispatched_at = clock_timestamp(),
        locked_until = NULL, lock_token = NULL
    FROM partitions p
    WHERE r.ctid = ANY (heads)
        AND r.ready AND (r.epoch = 0 OR r.locked_until <= lapsed)
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $2 AND NOT p.draining
        AND p.lease_expires_at > clock_timestamp()
    RETURNING r.seq, r.id, r.token, r.attempt, r.epoch, r.partition_id, r.deliveries, r.cancelled,
        r.deadline <= clock_timestamp() AND isfinite(r.deadline),
        CASE WHEN isfinite(r.deadline) AND r.deadline < '9999-12-30' THEN r.deadline END, r.enqueued_at,
        r.dispatched_at, r.route, headers_of(r.headers, r.content_type), r.metadata, r.payload, r.tenant;
    seq := NULL;
    deliveries := seen;
    tenant := here;
    RETURN NEXT;
END
$$;
