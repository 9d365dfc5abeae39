-- Arguments that were answered with an error of the server's own, which names none of them, or read in part: arrays of more
-- than one dimension or that do not begin at 1, rates next to nothing, windows beyond any time, and more slots than are counted.
--
-- Each function is as before but for that.

-- The requests of a queue that are not finished, and how many of them have their deadline within each
-- window from now (cumulative, in the order of the windows).
CREATE OR REPLACE FUNCTION backlog(queue text, windows interval[] DEFAULT '{}') RETURNS TABLE (depth bigint, due bigint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    q queues := find_queue(queue);
BEGIN
    IF EXISTS (SELECT FROM unnest(windows) AS w (span) WHERE w.span NOT BETWEEN '-100 years' AND '100 years') THEN
        PERFORM fail('LH001', 'windows must be from -100 years to 100 years');
    END IF;
    RETURN QUERY
        WITH live AS MATERIALIZED (SELECT r.deadline FROM requests r WHERE r.queue_id = q.queue_id)
        SELECT (SELECT count(*) FROM live), ARRAY(
            SELECT (SELECT count(*) FROM live l WHERE l.deadline <= now() + w.span)
            FROM unnest(windows) WITH ORDINALITY AS w (span, n) ORDER BY w.n);
END
$$;

-- Locks deferred messages, all or none. One of a group at most, and none beside one in flight of its group: one with a smaller
-- number may have come due, or been redriven, since, and waits if it is only ready. So that none becomes ready meanwhile, the
-- group's row for settling is held.
CREATE OR REPLACE FUNCTION receive_deferred(queue text, seqs bigint[]) RETURNS SETOF message
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET enable_bitmapscan = off SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    q queues := find_receivers(queue);
    tids tid[];
    missing bigint;
    behind bigint;
    entered text[];
BEGIN
    IF seqs IS NULL THEN
        PERFORM fail('LH001', 'seqs must not be null; an empty array is allowed');
    END IF;
    IF q.adopting IS NOT NULL THEN
        PERFORM adopt(q);
    END IF;
    PERFORM FROM groups g WHERE g.queue_id = q.queue_id AND g.settles AND g.group_id = ANY (ARRAY(SELECT r.group_id FROM requests r
        WHERE r.receivable AND r.queue_id = q.queue_id AND NOT r.ready AND r.seq = ANY (receive_deferred.seqs) AND r.held = 'd'
            AND r.group_id IS NOT NULL)) ORDER BY g.group_id FOR UPDATE;
    WITH found AS (
        SELECT r.ctid AS tid, r.seq, r.group_id FROM requests r
        WHERE r.receivable AND r.queue_id = q.queue_id AND NOT r.ready AND r.seq = ANY (receive_deferred.seqs) AND r.held = 'd'
            AND r.deadline > clock_timestamp() ORDER BY r.seq FOR UPDATE
    )
    SELECT array_agg(f.tid), min(w.seq) FILTER (WHERE f.seq IS NULL), array_agg(f.group_id) FILTER (WHERE f.group_id IS NOT NULL)
        INTO tids, missing, entered
        FROM unnest(receive_deferred.seqs) AS w (seq) LEFT JOIN found f ON f.seq = w.seq;
    IF missing IS NOT NULL OR EXISTS (SELECT FROM unnest(seqs) AS w (seq) WHERE w.seq IS NULL) THEN
        PERFORM fail('LH011', format('queue "%s" has no deferred message %s', queue, coalesce(missing::text, 'null')));
    END IF;
    SELECT min(d.seq) INTO behind FROM (
        SELECT r.seq, r.group_id, row_number() OVER (PARTITION BY r.group_id ORDER BY r.seq) AS place
        FROM requests r WHERE r.ctid = ANY (tids) AND r.group_id IS NOT NULL) AS d
        WHERE d.place > 1 OR EXISTS (SELECT FROM requests r WHERE r.queue_id = q.queue_id AND r.group_id = d.group_id
            AND r.ready AND r.held IS DISTINCT FROM 's' AND (r.epoch > 0 OR r.locked_until > clock_timestamp()));
    IF behind IS NOT NULL THEN
        PERFORM fail('LH011', format('message %s of queue "%s" waits for another of its group', behind, queue));
    END IF;
    IF entered IS NOT NULL THEN -- what would come next in the group waits for these; it may be an earlier one that came since
        UPDATE requests r SET ready = false, held = 'g'
            WHERE r.queue_id = q.queue_id AND r.group_id = ANY (entered) AND r.ready AND r.held IS DISTINCT FROM 's'
                AND (r.epoch = 0 OR r.locked_until <= clock_timestamp()) AND r.deliveries < q.max_deliveries AND NOT r.cancelled;
    END IF;
    RETURN QUERY WITH taken AS (
        UPDATE requests r SET ready = true, held = NULL, epoch = -1, attempt = 0, deliveries = r.deliveries + 1,
            dispatched_at = clock_timestamp(), locked_until = clock_timestamp() + q.lock_time, lock_token = gen_random_uuid()
        WHERE r.ctid = ANY (tids) RETURNING r.*)
    SELECT t.seq, t.id, given_group(t.group_id, t.group_given), t.correlation_id, t.route, t.subject, t.content_type,
        coalesce(t.metadata, '{}'), t.ttl, t.payload, t.deliveries, t.enqueued_at, t.locked_until, t.lock_token::text
    FROM taken t ORDER BY t.seq;
END
$$;

CREATE OR REPLACE FUNCTION quota_acquire(holder text, key text, n int DEFAULT 1, max bigint DEFAULT NULL,
    limit_keys text[] DEFAULT NULL, give_back int DEFAULT 0) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    told quota_keys;
    me bigint;
    other bigint;
    used bigint;
    mine bigint;
    left_to_waiter int;
    starves boolean;
    served boolean;
    leaves boolean;
    granted int;
    at timestamptz;
BEGIN
    PERFORM check_name('holder', holder);
    PERFORM quota_check(key, n, max);
    IF give_back IS NULL OR give_back < 0 THEN
        PERFORM fail('LH001', format('give_back must not be null or negative, not %s', coalesce(give_back::text, 'null')));
    END IF;
    max := quota_limit(key, '0', max, limit_keys);
    LOOP
        SELECT * INTO told FROM quota_keys k WHERE k.key = quota_acquire.key FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO quota_keys (key) VALUES (key) ON CONFLICT ON CONSTRAINT quota_keys_pkey DO NOTHING;
    END LOOP;
    SELECT h.holder_id INTO me FROM quota_holders h
        WHERE h.name = holder AND NOT h.lapsed AND h.expires_at > clock_timestamp();
    IF me IS NULL THEN
        PERFORM fail('LH005', format('holder "%s" has lapsed, or was never registered', holder));
    END IF;
    FOR other IN SELECT s.holder_id FROM quota_slots s LEFT JOIN quota_holders h ON h.holder_id = s.holder_id
            WHERE s.key = quota_acquire.key AND s.slots > 0
                AND (h.holder_id IS NULL OR h.lapsed OR h.expires_at <= clock_timestamp())
            ORDER BY s.holder_id LOOP
        UPDATE quota_holders h SET lapsed = true WHERE h.holder_id = other AND h.expires_at <= clock_timestamp();
        IF FOUND OR NOT EXISTS (SELECT FROM quota_holders h WHERE h.holder_id = other) THEN
            DELETE FROM quota_slots s WHERE s.key = quota_acquire.key AND s.holder_id = other;
        END IF;
    END LOOP;
    at := clock_timestamp();
    IF give_back > 0 THEN
        UPDATE quota_slots s SET slots = greatest(0, s.slots - give_back),
                since = CASE WHEN s.slots > give_back THEN s.since ELSE at END
            WHERE s.key = quota_acquire.key AND s.holder_id = me;
    END IF;
    left_to_waiter := coalesce(told.waiter <> me AND told.waits_until > at AND (coalesce(told.left_until > at, false)
        OR give_back > 0 AND (told.turn_at IS NULL OR told.turn_at < at - interval '5 seconds')), false)::int;
    SELECT coalesce(sum(s.slots), 0), coalesce(sum(s.slots) FILTER (WHERE s.holder_id = me), 0) INTO used, mine
        FROM quota_slots s WHERE s.key = quota_acquire.key AND s.slots > 0;
    granted := greatest(0, least(n, max - used - left_to_waiter, 2147483647 - mine)); -- as many as are counted
    starves := granted < n AND mine + granted = 0 AND (told.waiter IS NULL OR told.waiter = me OR told.waits_until <= at);
    IF granted > 0 THEN
        INSERT INTO quota_slots AS s (key, holder_id, slots, since) VALUES (key, me, granted, at)
            ON CONFLICT ON CONSTRAINT quota_slots_pkey DO UPDATE SET slots = s.slots + excluded.slots,
                since = CASE WHEN s.slots > 0 THEN s.since ELSE excluded.since END;
    END IF;
    served := granted > 0 AND told.waiter = me;
    leaves := left_to_waiter = 1 AND NOT coalesce(told.left_until > at, false);
    IF told.max IS DISTINCT FROM max OR starves OR served OR leaves
        OR granted < n AND (told.refused_at IS NULL OR told.refused_at < at - interval '1 second') THEN
        UPDATE quota_keys k SET max = quota_acquire.max,
                refused_at = CASE WHEN granted < n THEN at ELSE k.refused_at END,
                waiter = CASE WHEN starves THEN me WHEN NOT coalesce(served, false) THEN k.waiter END,
                waits_until = CASE WHEN starves THEN at + interval '2 seconds' ELSE k.waits_until END,
                left_until = CASE WHEN leaves THEN at + interval '2 seconds' WHEN NOT coalesce(served, false) THEN k.left_until END,
                turn_at = CASE WHEN served THEN at ELSE k.turn_at END
            WHERE k.key = quota_acquire.key;
    END IF;
    RETURN granted;
END
$$;

CREATE OR REPLACE FUNCTION quota_acquire_many(holder text, keys text[], ns int[], maxes bigint[], default_keys text[],
    give_backs int[]) RETURNS int[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    me bigint;
    other bigint;
    gone bigint[] := '{}';
    missing text[];
    one text;
    locked text[];
    granted int[];
    waits text := current_setting('lock_timeout');
    at timestamptz;
BEGIN
    PERFORM check_name('holder', holder);
    IF cardinality(keys) IS NULL OR cardinality(ns) IS DISTINCT FROM cardinality(keys)
        OR cardinality(maxes) IS DISTINCT FROM cardinality(keys) OR cardinality(give_backs) IS DISTINCT FROM cardinality(keys)
        OR cardinality(default_keys) IS DISTINCT FROM cardinality(keys) THEN
        PERFORM fail('LH001', 'keys, ns, maxes, default_keys and give_backs must have as many elements as each other');
    ELSIF EXISTS (SELECT FROM unnest(maxes, give_backs) AS a (max, give_back)
            WHERE a.max IS NULL OR a.give_back IS NULL OR a.give_back < 0) THEN
        PERFORM fail('LH001', 'maxes and give_backs must not be null, nor give_backs negative');
    ELSIF EXISTS (SELECT FROM unnest(keys) AS k (key) GROUP BY k.key HAVING count(*) > 1) THEN
        PERFORM fail('LH001', 'keys must be given once each');
    END IF;
    -- A cheap look at all, and a thorough one at the first and at whatever may be wrong.
    PERFORM quota_check(a.key, a.n, a.max) FROM unnest(keys, ns, maxes) WITH ORDINALITY AS a (key, n, max, i)
        WHERE a.i = 1 OR a.key IS NULL OR octet_length(a.key) NOT BETWEEN 1 AND 1024 OR a.key ~ '[[:cntrl:]]'
            OR a.n IS NULL OR a.n < 1 OR a.max NOT BETWEEN 0 AND 1000000000000;
    missing := ARRAY(SELECT a.key FROM unnest(keys) AS a (key)
        WHERE NOT EXISTS (SELECT FROM quota_keys k WHERE k.key = a.key) ORDER BY a.key);
    IF missing <> '{}' THEN
        BEGIN -- nor for one that another transaction is just making: then they are made one by one, but for that
            PERFORM set_config('lock_timeout', '20ms', true);
            INSERT INTO quota_keys (key) SELECT m.key FROM unnest(missing) AS m (key)
                ON CONFLICT ON CONSTRAINT quota_keys_pkey DO NOTHING;
            PERFORM set_config('lock_timeout', waits, true);
        EXCEPTION WHEN lock_not_available THEN -- which undoes the setting, too
            FOREACH one IN ARRAY missing LOOP
                BEGIN
                    PERFORM set_config('lock_timeout', '5ms', true);
                    INSERT INTO quota_keys (key) VALUES (one) ON CONFLICT ON CONSTRAINT quota_keys_pkey DO NOTHING;
                    PERFORM set_config('lock_timeout', waits, true);
                EXCEPTION WHEN lock_not_available THEN NULL;
                END;
            END LOOP;
        END;
    END IF;
    locked := ARRAY(SELECT k.key FROM quota_keys k WHERE k.key = ANY (keys) FOR UPDATE SKIP LOCKED);
    SELECT h.holder_id INTO me FROM quota_holders h
        WHERE h.name = holder AND NOT h.lapsed AND h.expires_at > clock_timestamp();
    IF me IS NULL THEN
        PERFORM fail('LH005', format('holder "%s" has lapsed, or was never registered', holder));
    END IF;
    FOR other IN SELECT DISTINCT s.holder_id FROM quota_slots s LEFT JOIN quota_holders h ON h.holder_id = s.holder_id
            WHERE s.key = ANY (locked) AND s.slots > 0
                AND (h.holder_id IS NULL OR h.lapsed OR h.expires_at <= clock_timestamp())
            ORDER BY s.holder_id LOOP
        UPDATE quota_holders h SET lapsed = true WHERE h.holder_id = other AND h.expires_at <= clock_timestamp();
        IF FOUND OR NOT EXISTS (SELECT FROM quota_holders h WHERE h.holder_id = other) THEN
            gone := gone || other;
        END IF;
    END LOOP;
    IF gone <> '{}' THEN
        DELETE FROM quota_slots s WHERE s.key = ANY (locked) AND s.holder_id = ANY (gone);
    END IF;
    at := clock_timestamp();
    WITH used AS MATERIALIZED (
        SELECT s.key, sum(s.slots) AS slots, coalesce(sum(s.slots) FILTER (WHERE s.holder_id = me), 0) AS mine
        FROM quota_slots s WHERE s.key = ANY (locked) AND s.slots > 0 GROUP BY s.key
    ), asked AS MATERIALIZED (
        SELECT a.key, a.n, a.i, o.key IS NOT NULL AS ours, coalesce(u.slots, 0) AS slots,
            least(a.give_back, coalesce(u.mine, 0)) AS back, coalesce(u.mine, 0) AS mine,
            k.waiter = me AS waits, k.waiter IS NULL OR k.waiter = me OR k.waits_until <= at AS may_wait,
            coalesce(k.left_until > at, false) AS was_left,
            coalesce(k.waiter <> me AND k.waits_until > at AND (coalesce(k.left_until > at, false) OR a.give_back > 0
                AND (k.turn_at IS NULL OR k.turn_at < at - interval '5 seconds')), false)::int AS left_to_waiter,
            CASE WHEN a.default_key IS NULL THEN a.max ELSE coalesce(
                (SELECT l.max FROM quota_limits l WHERE l.key = a.key AND l.window_length = '0'),
                (SELECT l.max FROM quota_limits l WHERE l.key = a.default_key AND l.window_length = '0'), a.max) END AS max
        FROM unnest(keys, ns, maxes, default_keys, give_backs) WITH ORDINALITY AS a (key, n, max, default_key, give_back, i)
            LEFT JOIN unnest(locked) AS o (key) ON o.key = a.key LEFT JOIN used u ON u.key = a.key
            LEFT JOIN quota_keys k ON k.key = o.key
    ), answered AS MATERIALIZED (
        SELECT a.*, CASE WHEN a.ours THEN greatest(0, least(a.n, a.max - a.slots + a.back - a.left_to_waiter,
                2147483647 - a.mine + a.back))::int END
            AS granted FROM asked a
    ), told AS MATERIALIZED (
        SELECT a.*, a.may_wait AND a.granted < a.n AND a.mine - a.back + a.granted = 0 AS starves,
            coalesce(a.waits AND a.granted > 0, false) AS served FROM answered a
    ), taken AS (
        INSERT INTO quota_slots AS s (key, holder_id, slots, since)
        SELECT t.key, me, t.granted - t.back, at FROM told t WHERE t.ours AND t.granted <> t.back
        ON CONFLICT ON CONSTRAINT quota_slots_pkey DO UPDATE SET slots = greatest(0, s.slots + excluded.slots),
            since = CASE WHEN s.slots > 0 AND s.slots + excluded.slots > 0 THEN s.since ELSE excluded.since END
    ), remembered AS (
        UPDATE quota_keys k SET max = t.max, refused_at = CASE WHEN t.granted < t.n THEN at ELSE k.refused_at END,
            waiter = CASE WHEN t.starves THEN me WHEN NOT t.served THEN k.waiter END,
            waits_until = CASE WHEN t.starves THEN at + interval '2 seconds' ELSE k.waits_until END,
            left_until = CASE WHEN t.left_to_waiter = 1 AND NOT t.was_left THEN at + interval '2 seconds'
                WHEN NOT t.served THEN k.left_until END,
            turn_at = CASE WHEN t.served THEN at ELSE k.turn_at END
        FROM told t WHERE t.ours AND k.key = t.key AND (k.max IS DISTINCT FROM t.max OR t.starves OR t.served
            OR t.left_to_waiter = 1 AND NOT t.was_left
            OR t.granted < t.n AND (k.refused_at IS NULL OR k.refused_at < at - interval '1 second'))
    )
    SELECT array_agg(t.granted ORDER BY t.i) INTO granted FROM told t;
    RETURN coalesce(granted, '{}');
END
$$;

CREATE OR REPLACE FUNCTION quota_admit_parts(key text, parts bigint[], max bigint, window_length interval,
    limit_keys text[] DEFAULT NULL, OUT granted int, OUT at timestamptz, OUT retry_after interval, OUT applied bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    span interval := quota_check_window(window_length);
    grain float8 := extract(epoch FROM span) / 64;
    log quota_windows;
    times timestamptz[];
    sums bigint[];
    used bigint;
    before bigint;
    part bigint;
    latest int;
BEGIN
    PERFORM quota_check(key, 1, max);
    IF array_ndims(parts) > 1 OR array_lower(parts, 1) <> 1 THEN
        parts := ARRAY(SELECT u.part FROM unnest(parts) WITH ORDINALITY AS u (part, n) ORDER BY u.n);
    END IF;
    IF parts IS NULL OR array_position(parts, NULL) IS NOT NULL OR NOT 1 <= ALL (parts) OR NOT 1000000000000 >= ALL (parts) THEN
        PERFORM fail('LH001', 'parts must not be null, and each from 1 to 1000000000000');
    END IF;
    max := quota_limit(key, span, max, limit_keys);
    applied := max;
    LOOP
        SELECT * INTO log FROM quota_windows w WHERE w.key = quota_admit_parts.key AND w.window_length = span FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO quota_windows (key, window_length) VALUES (key, span)
            ON CONFLICT ON CONSTRAINT quota_windows_pkey DO NOTHING;
    END LOOP;
    -- Read when the row is ours, so that the log is in order; a clock set back does not make it forget.
    at := greatest(clock_timestamp(), log.admitted_at[cardinality(log.admitted_at)]);
    SELECT coalesce(array_agg(e.at ORDER BY e.i), '{}'), coalesce(array_agg(e.n ORDER BY e.i), '{}'), coalesce(sum(e.n), 0)
        INTO times, sums, used
        FROM unnest(log.admitted_at, log.counts) WITH ORDINALITY AS e (at, n, i) WHERE e.at > quota_admit_parts.at - span;
    before := used;
    granted := 0;
    FOREACH part IN ARRAY parts LOOP
        EXIT WHEN used + part > max;
        used := used + part;
        granted := granted + 1;
    END LOOP;
    latest := cardinality(times);
    IF used > before THEN
        IF floor(extract(epoch FROM times[latest]) / grain) = floor(extract(epoch FROM at) / grain) THEN
            times[latest] := at;
            sums[latest] := sums[latest] + used - before;
        ELSE
            times := times || at;
            sums := sums || used - before;
        END IF;
    END IF;
    -- After this one is in the log, since it may have moved the latest on. Enough is freed by the end: all of `used`.
    IF granted < cardinality(parts) AND parts[granted + 1] <= max THEN
        SELECT e.at + span - quota_admit_parts.at INTO retry_after
            FROM (SELECT u.at, sum(u.n) OVER (ORDER BY u.i) AS freed FROM unnest(times, sums) WITH ORDINALITY AS u (at, n, i)) AS e
            WHERE e.freed >= used + parts[granted + 1] - max ORDER BY e.at LIMIT 1;
    END IF;
    IF used > before OR log.max IS DISTINCT FROM max
        OR granted < cardinality(parts) AND (log.refused_at IS NULL OR log.refused_at < at - interval '1 second') THEN
        UPDATE quota_windows w SET admitted_at = times, counts = sums, max = quota_admit_parts.max,
                refused_at = CASE WHEN granted < cardinality(parts) THEN quota_admit_parts.at ELSE w.refused_at END
            WHERE w.key = quota_admit_parts.key AND w.window_length = span;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION quota_settle(key text, window_length interval, admitted_ats timestamptz[], changes bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    span interval := quota_check_window(window_length);
    grain float8 := extract(epoch FROM span) / 64;
    log quota_windows;
    entry int;
    more bigint := 0;
    at timestamptz;
BEGIN
    PERFORM quota_check(key, 1, NULL);
    IF array_ndims(admitted_ats) > 1 OR array_lower(admitted_ats, 1) <> 1 THEN
        admitted_ats := ARRAY(SELECT u.at FROM unnest(admitted_ats) WITH ORDINALITY AS u (at, n) ORDER BY u.n);
    END IF;
    IF array_ndims(changes) > 1 OR array_lower(changes, 1) <> 1 THEN
        changes := ARRAY(SELECT u.change FROM unnest(changes) WITH ORDINALITY AS u (change, n) ORDER BY u.n);
    END IF;
    IF admitted_ats IS NULL OR changes IS NULL OR cardinality(admitted_ats) <> cardinality(changes)
        OR array_position(admitted_ats, NULL) IS NOT NULL OR array_position(changes, NULL) IS NOT NULL
        OR NOT 1000000000000 >= ALL (changes) OR NOT -1000000000000 <= ALL (changes) THEN
        PERFORM fail('LH001', 'admitted_ats and changes must have as many elements as each other, none of them null, '
            'and no change beyond 1000000000000');
    END IF;
    LOOP
        SELECT * INTO log FROM quota_windows w WHERE w.key = quota_settle.key AND w.window_length = span FOR UPDATE;
        EXIT WHEN FOUND;
        -- Reaped: the admissions have long left the window. What they cost beyond has not.
        IF 0 >= ALL (changes) THEN
            RETURN;
        END IF;
        INSERT INTO quota_windows (key, window_length) VALUES (quota_settle.key, span)
            ON CONFLICT ON CONSTRAINT quota_windows_pkey DO NOTHING;
    END LOOP;
    FOR i IN 1 .. cardinality(changes) LOOP
        IF changes[i] > 0 THEN
            more := more + changes[i];
            CONTINUE;
        END IF;
        -- An entry of another 64th is another's admission: ours has left the log.
        SELECT e.n INTO entry FROM unnest(log.admitted_at) WITH ORDINALITY AS e (t, n)
            WHERE e.t >= admitted_ats[i]
                AND floor(extract(epoch FROM e.t) / grain) = floor(extract(epoch FROM admitted_ats[i]) / grain)
            ORDER BY e.n LIMIT 1;
        CONTINUE WHEN entry IS NULL;
        log.counts[entry] := greatest(0, log.counts[entry] + changes[i]);
    END LOOP;
    IF more > 0 THEN
        -- As an admission does, so that the log stays as short.
        at := greatest(clock_timestamp(), log.admitted_at[cardinality(log.admitted_at)]);
        SELECT coalesce(array_agg(e.t ORDER BY e.i), '{}'), coalesce(array_agg(e.n ORDER BY e.i), '{}')
            INTO log.admitted_at, log.counts
            FROM unnest(log.admitted_at, log.counts) WITH ORDINALITY AS e (t, n, i) WHERE e.t > at - span;
        entry := cardinality(log.counts);
        IF entry = 0 OR floor(extract(epoch FROM log.admitted_at[entry]) / grain) <> floor(extract(epoch FROM at) / grain) THEN
            entry := entry + 1;
        END IF;
        log.admitted_at[entry] := at;
        log.counts[entry] := coalesce(log.counts[entry], 0) + more;
    END IF;
    UPDATE quota_windows w SET admitted_at = log.admitted_at, counts = log.counts
        WHERE w.key = quota_settle.key AND w.window_length = span;
END
$$;

CREATE OR REPLACE FUNCTION quota_set_rate(key text, rate float8, ttl interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    PERFORM quota_check(key, 1, NULL);
    PERFORM quota_check_ttl(ttl);
    IF rate IS NULL OR rate NOT BETWEEN 0 AND 1000000 THEN
        PERFORM fail('LH001', format('rate must be from 0 to 1000000 a second, not %s', coalesce(rate::text, 'null')));
    ELSIF rate > 0 AND rate < 1e-9 THEN
        PERFORM fail('LH001', format('rate must be 0, or at least 0.000000001 a second, not %s', rate));
    END IF;
    INSERT INTO quota_rates AS r (key, rate, expires_at, refilled_at) VALUES (key, rate, at + ttl, at)
        ON CONFLICT ON CONSTRAINT quota_rates_pkey DO UPDATE SET rate = excluded.rate, expires_at = excluded.expires_at,
            tokens = r.tokens + r.rate * greatest(0, extract(epoch FROM least(at, r.expires_at) - r.refilled_at)),
            refilled_at = excluded.refilled_at;
END
$$;
