-- What pollers call. A route belongs to whoever polls it.

CREATE TYPE result AS (
    seq bigint, id text, token text, queue text, status int, code text, message text, content_type text, body bytea,
    body_text text, attempt bigint, deliveries int, enqueued_at timestamptz, dispatched_at timestamptz,
    finished_at timestamptz, expires_at timestamptz, lease uuid, leased_until timestamptz
);

-- body_text is NULL where the body is no text Postgres can hold (NUL bytes, invalid UTF-8); body never is.
-- A set of one, so that the planner inlines it; called by functions that pin the search path.
CREATE FUNCTION result_of(r results) RETURNS SETOF result ROWS 1
LANGUAGE sql STABLE AS $$
    SELECT r.seq, r.id, r.token, (SELECT q.name FROM queues q WHERE q.queue_id = r.queue_id), r.status, r.code,
        r.message, r.content_type, r.body, CASE WHEN r.body_is_text THEN convert_from(r.body, 'UTF8') END, r.attempt,
        r.deliveries, r.enqueued_at, r.dispatched_at, r.finished_at, r.expires_at, r.lease, r.leased_until
$$;

CREATE FUNCTION check_poll(route text, max int) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_name('route', route);
    IF max IS NULL OR max < 1 THEN
        PERFORM fail('LH001', format('max must be at least 1, not %s', coalesce(max::text, 'null')));
    END IF;
END
$$;

-- At most once: removes up to `max` results, lowest seq first, past those that other pollers hold. A result
-- that expires exactly now is still returned.
--
-- The plan is pinned: a fresh table has no statistics, and a bitmap scan or a join over the route would be
-- many times slower, and leave dead index entries unmarked.
CREATE FUNCTION pop_results(route text, max int DEFAULT 100) RETURNS SETOF result
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    PERFORM check_poll(route, max);
    RETURN QUERY WITH popped AS (
        DELETE FROM results r WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM results c
            WHERE c.route = pop_results.route AND (c.expires_at IS NULL OR c.expires_at >= now())
                AND (c.leased_until IS NULL OR c.leased_until <= now())
            ORDER BY c.seq LIMIT pop_results.max FOR UPDATE SKIP LOCKED))
        RETURNING r
    )
    SELECT x.* FROM popped p, result_of(p.r) x ORDER BY x.seq;
END
$$;

-- At least once: hides up to `max` results for a while. Whoever acks them with their lease removes them;
-- otherwise they come again.
CREATE FUNCTION lease_results(route text, max int DEFAULT 100, lease_time interval DEFAULT '30 seconds')
RETURNS SETOF result
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    drawn uuid := gen_random_uuid();
BEGIN
    PERFORM check_poll(route, max);
    IF lease_time IS NULL OR lease_time NOT BETWEEN '1 millisecond' AND '12 hours' THEN
        PERFORM fail('LH001', 'lease_time must be from 1 millisecond to 12 hours');
    END IF;
    RETURN QUERY WITH leased AS (
        UPDATE results r SET lease = drawn, leased_until = clock_timestamp() + lease_time WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM results c
            WHERE c.route = lease_results.route AND (c.expires_at IS NULL OR c.expires_at >= now())
                AND (c.leased_until IS NULL OR c.leased_until <= now())
            ORDER BY c.seq LIMIT lease_results.max FOR UPDATE SKIP LOCKED))
        RETURNING r
    )
    SELECT x.* FROM leased l, result_of(l.r) x ORDER BY x.seq;
END
$$;

-- Removes leased results and returns the seqs removed: one that is missing had lapsed, or was acked before.
CREATE FUNCTION ack_results(route text, lease uuid, seqs bigint[]) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH held AS (
        SELECT r.seq FROM results r
        WHERE r.route = ack_results.route AND r.seq = ANY (seqs) AND r.lease = ack_results.lease
            AND r.leased_until > clock_timestamp()
        ORDER BY r.seq FOR UPDATE
    )
    DELETE FROM results r USING held h WHERE r.route = ack_results.route AND r.seq = h.seq RETURNING r.seq
$$;

-- Gives leased results back at once, and returns the seqs given back.
CREATE FUNCTION release_results(route text, lease uuid, seqs bigint[]) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH held AS (
        SELECT r.seq FROM results r
        WHERE r.route = release_results.route AND r.seq = ANY (seqs) AND r.lease = release_results.lease
            AND r.leased_until > clock_timestamp()
        ORDER BY r.seq FOR UPDATE
    )
    UPDATE results r SET lease = NULL, leased_until = NULL FROM held h
    WHERE r.route = release_results.route AND r.seq = h.seq RETURNING r.seq
$$;

-- Results that wait on a route, leased ones included, expired ones not.
CREATE FUNCTION result_depth(route text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT count(*) FROM results r
    WHERE r.route = result_depth.route AND (r.expires_at IS NULL OR r.expires_at >= now())
$$;

-- Returns the channel to LISTEN on for a route, and asks for it to be rung for the next minute. Call it
-- again before that; look (pop) after LISTEN and whenever it rings, and every few seconds in any case.
CREATE FUNCTION listen_results(route text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    number int;
BEGIN
    PERFORM check_name('route', route);
    INSERT INTO routes AS r (route, awaited_until) VALUES (listen_results.route, clock_timestamp() + interval '1 minute')
        ON CONFLICT ON CONSTRAINT routes_route_key DO UPDATE SET awaited_until = excluded.awaited_until
        RETURNING r.route_id INTO number;
    RETURN channel('route', number);
END
$$;
