-- Quotas: limits that hold across every process, judged by the database's clock. A program in any language can
-- gate itself by the same limits with the functions here.
--
-- They must see what others committed before they had the key's lock, so they run at READ COMMITTED only, and
-- their locks last to the end of the caller's transaction: call them in one of their own. An answer that was lost
-- may have been granted. Never repeat such a call: give the holder up, and delete it when its grants are done.
--
-- SQLSTATE LH005: the holder has lapsed, or was never registered.

-- A process's lease on concurrency. Its slots count only while the lease is live, so a crash frees them by itself.
CREATE TABLE quota_holders (
    holder_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    registered_at   timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    lapsed          boolean NOT NULL DEFAULT false,    -- somebody counted without it: it cannot be renewed any more
    name            text COLLATE "C" NOT NULL UNIQUE
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

-- One row to lock for each key with slots, and what the last asker was told.
CREATE TABLE quota_keys (
    refused_at  timestamptz,                           -- of the last refusal, to the second
    max         bigint,                                -- the limit last applied
    waiter      bigint,                                -- a holder that was refused and has none: see quota_acquire
    waits_until timestamptz,
    left_until  timestamptz,                           -- one slot is for it alone
    turn_at     timestamptz,                           -- when a waiter last had its turn
    key         text COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE quota_slots (
    holder_id   bigint NOT NULL,
    since       timestamptz NOT NULL,                  -- of the first of these slots; of the last one's end when 0
    slots       int NOT NULL,
    key         text COLLATE "C" NOT NULL,
    PRIMARY KEY (key, holder_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

CREATE INDEX quota_slots_holder ON quota_slots (holder_id);

-- The log of one window on one key: at most 65 entries, oldest first, in the row that is locked anyway. Admissions
-- within the same 64th of the window share an entry, under the time of the latest. So an admission may count up to a
-- 64th longer than it must, and never shorter; where they are few, each has its own time.
CREATE TABLE quota_windows (
    refused_at      timestamptz,
    max             bigint,
    key             text COLLATE "C" NOT NULL,
    window_length   interval NOT NULL,
    admitted_at     timestamptz[] NOT NULL DEFAULT '{}',
    counts          bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (key, window_length)
) WITH (fillfactor = 30, toast_tuple_target = 4080, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Who was refused lately, among any number of keys. A refusal is written once a second and key; what is not one
-- leaves the indexes alone.
CREATE INDEX quota_keys_refused ON quota_keys (refused_at) WHERE refused_at IS NOT NULL;
CREATE INDEX quota_windows_refused ON quota_windows (refused_at) WHERE refused_at IS NOT NULL;

ALTER TABLE quota_windows ALTER COLUMN admitted_at SET STORAGE PLAIN, ALTER COLUMN counts SET STORAGE PLAIN;

-- Limits that live here, changed without a restart of anything. A window_length of 0 is a limit of slots.
CREATE TABLE quota_limits (
    changed_at      timestamptz NOT NULL,
    max             bigint NOT NULL,
    key             text COLLATE "C" NOT NULL,
    window_length   interval NOT NULL,
    PRIMARY KEY (key, window_length)
);

-- Numbers from 0 to 1, set from outside.
CREATE TABLE quota_budgets (
    changed_at  timestamptz NOT NULL,
    budget      float8 NOT NULL,
    key         text COLLATE "C" PRIMARY KEY
);

-- Rates set from outside with an expiry, and the token bucket that all processes share.
CREATE TABLE quota_rates (
    expires_at  timestamptz NOT NULL,
    refilled_at timestamptz NOT NULL,
    rate        float8 NOT NULL,                       -- a second
    tokens      float8 NOT NULL DEFAULT 0,
    key         text COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

CREATE FUNCTION quota_check(key text, n bigint, max bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF octet_length(key) BETWEEN 1 AND 1024 AND key !~ '[[:cntrl:]]' THEN NULL;
    ELSIF key IS NULL THEN PERFORM fail('LH001', 'key must not be null');
    ELSE PERFORM fail('LH001', 'key must have 1 to 1024 bytes and no control characters');
    END IF;
    IF n IS NULL OR n NOT BETWEEN 1 AND 1000000000000 THEN
        PERFORM fail('LH001', format('n must be from 1 to 1000000000000, not %s', coalesce(n::text, 'null')));
    ELSIF max NOT BETWEEN 0 AND 1000000000000 THEN
        PERFORM fail('LH001', format('max must be from 0 to 1000000000000, not %s', max));
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM fail('LH001', format('quotas need a transaction at READ COMMITTED, not %s',
            upper(current_setting('transaction_isolation'))));
    END IF;
END
$$;

CREATE FUNCTION quota_check_window(window_length interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF window_length IS NULL OR window_length NOT BETWEEN '1 millisecond' AND '31 days' THEN
        PERFORM fail('LH001', format('window_length must be from 1 millisecond to 31 days, not %s',
            coalesce(window_length::text, 'null')));
    END IF;
    RETURN make_interval(secs => extract(epoch FROM window_length)::float8);
END
$$;

CREATE FUNCTION quota_check_ttl(ttl interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF ttl IS NULL OR ttl NOT BETWEEN '1 millisecond' AND '31 days' THEN
        PERFORM fail('LH001', format('ttl must be from 1 millisecond to 31 days, not %s', coalesce(ttl::text, 'null')));
    END IF;
END
$$;

CREATE FUNCTION quota_check_rows(max_rows int) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF max_rows IS NULL OR max_rows < 0 THEN
        PERFORM fail('LH001', format('max_rows must not be null or negative, not %s', coalesce(max_rows::text, 'null')));
    END IF;
END
$$;

-- The limit that applies: the first of `limit_keys` that has one in the database, else `max`. Where neither is
-- given, the key's own.
CREATE FUNCTION quota_limit(key text, window_length interval, max bigint, limit_keys text[]) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    wanted text[] := limit_keys;
    found_max bigint;
BEGIN
    IF wanted IS NULL AND max IS NULL THEN
        wanted := ARRAY[key];
    END IF;
    IF cardinality(wanted) > 0 THEN
        SELECT l.max INTO found_max
            FROM unnest(wanted) WITH ORDINALITY AS w (key, n) JOIN quota_limits l ON l.key = w.key
            WHERE l.window_length = quota_limit.window_length ORDER BY w.n LIMIT 1;
    END IF;
    IF found_max IS NULL AND max IS NULL THEN
        PERFORM fail('LH001', format('key "%s" has no such limit: give max, or set one with quota_set', key));
    END IF;
    RETURN coalesce(found_max, max);
END
$$;

-- Registers a holder for `ttl` from now. A name is used once: that it is taken is an error (LH003).
CREATE FUNCTION quota_register(holder text, ttl interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_name('holder', holder);
    PERFORM quota_check_ttl(ttl);
    INSERT INTO quota_holders (name, registered_at, expires_at)
        VALUES (holder, clock_timestamp(), clock_timestamp() + ttl) ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM fail('LH003', format('holder "%s" is already registered', holder));
    END IF;
END
$$;

-- False when it has lapsed: it grants nothing more and is never live again. Register another.
CREATE FUNCTION quota_renew(holder text, ttl interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_name('holder', holder);
    PERFORM quota_check_ttl(ttl);
    UPDATE quota_holders h SET expires_at = clock_timestamp() + ttl
        WHERE h.name = holder AND NOT h.lapsed AND h.expires_at > clock_timestamp();
    RETURN FOUND;
END
$$;

-- Frees whatever the holder has. False: there was none of that name.
CREATE FUNCTION quota_delete(holder text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    gone bigint;
BEGIN
    PERFORM check_name('holder', holder);
    DELETE FROM quota_holders h WHERE h.name = holder RETURNING h.holder_id INTO gone;
    DELETE FROM quota_slots s WHERE s.holder_id = gone;
    RETURN gone IS NOT NULL;
END
$$;

-- Takes up to `n` slots of `key` for the holder, and says how many: min(n, limit - slots of live holders). Before that
-- it gives back `give_back` of its own, down to none.
--
-- Whoever gives back and takes in one call leaves nobody a gap. So where another holder was refused, has no slot at
-- all, and keeps asking, one of those given back is left to it alone, once in five seconds at most, for as long as it
-- may take to ask again: two seconds.
--
-- A holder that seems lapsed is marked so before it is left out of the count. Marking waits for a renewal under way,
-- and looks again; a renewal that comes after finds the mark. So none is counted as gone and lives on. Its slots go
-- at once, as they never count again.
CREATE FUNCTION quota_acquire(holder text, key text, n int DEFAULT 1, max bigint DEFAULT NULL,
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
    granted := greatest(0, least(n, max - used - left_to_waiter));
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

-- As quota_acquire, for many keys, each given once: what was granted of each. A limit in the database counts where
-- `default_keys[i]` is not null: the key's own, else that of the default. A key that another transaction holds is not
-- waited for: null, and nothing was done about it.
CREATE FUNCTION quota_acquire_many(holder text, keys text[], ns int[], maxes bigint[], default_keys text[],
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
    ELSIF array_position(maxes, NULL) IS NOT NULL OR array_position(give_backs, NULL) IS NOT NULL OR NOT 0 <= ALL (give_backs) THEN
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
        SELECT a.*, CASE WHEN a.ours THEN greatest(0, least(a.n, a.max - a.slots + a.back - a.left_to_waiter))::int END
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

-- Gives back `counts[i]` of the holder's own slots of `keys[i]`, down to none. Rows are locked in key order.
CREATE FUNCTION quota_release(holder text, keys text[], counts int[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_name('holder', holder);
    IF keys IS NULL OR counts IS NULL OR cardinality(keys) <> cardinality(counts) THEN
        PERFORM fail('LH001', format('keys and counts must have as many elements as each other, not %s and %s',
            coalesce(cardinality(keys)::text, 'null'), coalesce(cardinality(counts)::text, 'null')));
    ELSIF EXISTS (SELECT FROM unnest(counts) AS c (n) WHERE c.n IS NULL OR c.n < 0) THEN
        PERFORM fail('LH001', 'counts must not be null or negative');
    END IF;
    WITH given AS (
        SELECT g.key, sum(g.n) AS n FROM unnest(keys, counts) AS g (key, n) GROUP BY g.key
    ), held AS MATERIALIZED (
        SELECT s.key, s.holder_id, g.n FROM given g, quota_slots s
        WHERE s.key = g.key AND s.holder_id = (SELECT h.holder_id FROM quota_holders h WHERE h.name = holder)
        ORDER BY s.key FOR UPDATE OF s
    )
    UPDATE quota_slots s SET slots = greatest(0, s.slots - h.n),
            since = CASE WHEN s.slots > h.n THEN s.since ELSE clock_timestamp() END
        FROM held h WHERE s.key = h.key AND s.holder_id = h.holder_id;
END
$$;

-- Admits `parts` in their order, each whole or not at all, up to the first that does not fit: says how many, when
-- (which quota_settle wants), how long until the next would fit (null: it never will), and the limit that applies.
CREATE FUNCTION quota_admit_parts(key text, parts bigint[], max bigint, window_length interval,
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

-- Admits up to `n` uses of `key`, and says how many: min(n, limit - admitted in the trailing window). Each window
-- keeps its own log.
CREATE FUNCTION quota_admit(key text, n int DEFAULT 1, max bigint DEFAULT NULL,
    window_length interval DEFAULT '1 minute', limit_keys text[] DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF n IS NULL OR n NOT BETWEEN 1 AND 100000 THEN
        PERFORM fail('LH001', format('n must be from 1 to 100000, not %s', coalesce(n::text, 'null')));
    END IF;
    RETURN (SELECT a.granted FROM quota_admit_parts(key, array_fill(1::bigint, ARRAY[n]), max, window_length, limit_keys) AS a);
END
$$;

-- Corrects admissions made at `admitted_ats[i]` by `changes[i]`: a reservation that turned out smaller gives back at
-- its own time, if that is still in the window; one that turned out larger counts from now, whatever the limit.
CREATE FUNCTION quota_settle(key text, window_length interval, admitted_ats timestamptz[], changes bigint[]) RETURNS void
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

-- Sets a limit of slots, or of admissions in each window of `window_length`. Null takes it away. A key that ends
-- in `:*` is the default that gates with `limits = "database"` use for the keys before it.
CREATE FUNCTION quota_set(key text, max bigint, window_length interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    span interval := '0';
BEGIN
    PERFORM quota_check(key, 1, max);
    IF window_length IS NOT NULL THEN
        span := quota_check_window(window_length);
    END IF;
    IF max IS NULL THEN
        DELETE FROM quota_limits l WHERE l.key = quota_set.key AND l.window_length = span;
    ELSE
        INSERT INTO quota_limits (key, window_length, max, changed_at) VALUES (key, span, max, clock_timestamp())
            ON CONFLICT ON CONSTRAINT quota_limits_pkey DO UPDATE SET max = excluded.max, changed_at = excluded.changed_at;
    END IF;
END
$$;

-- Sets the budget of a key, 0 to 1. Null takes it away, which is 1.
CREATE FUNCTION quota_set_budget(key text, budget float8) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
BEGIN
    PERFORM quota_check(key, 1, NULL);
    IF budget NOT BETWEEN 0 AND 1 THEN
        PERFORM fail('LH001', format('budget must be from 0 to 1, not %s', budget));
    ELSIF budget IS NULL THEN
        DELETE FROM quota_budgets b WHERE b.key = quota_set_budget.key;
    ELSE
        INSERT INTO quota_budgets (key, budget, changed_at) VALUES (key, budget, clock_timestamp())
            ON CONFLICT ON CONSTRAINT quota_budgets_pkey DO UPDATE SET budget = excluded.budget, changed_at = excluded.changed_at;
    END IF;
END
$$;

CREATE FUNCTION quota_budget(key text) RETURNS float8
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT coalesce((SELECT b.budget FROM quota_budgets b WHERE b.key = quota_budget.key), 1)
$$;

-- Takes the rate of a key away, with its bucket: nothing passes, as when it has expired. False: there was none.
CREATE FUNCTION quota_remove_rate(key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM quota_check(key, 1, NULL);
    DELETE FROM quota_rates r WHERE r.key = quota_remove_rate.key;
    RETURN FOUND;
END
$$;

-- Allows `rate` admissions a second on `key` for `ttl` from now; 0 is a pause. What the bucket holds is kept.
CREATE FUNCTION quota_set_rate(key text, rate float8, ttl interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    PERFORM quota_check(key, 1, NULL);
    PERFORM quota_check_ttl(ttl);
    IF rate IS NULL OR rate NOT BETWEEN 0 AND 1000000 THEN
        PERFORM fail('LH001', format('rate must be from 0 to 1000000 a second, not %s', coalesce(rate::text, 'null')));
    END IF;
    INSERT INTO quota_rates AS r (key, rate, expires_at, refilled_at) VALUES (key, rate, at + ttl, at)
        ON CONFLICT ON CONSTRAINT quota_rates_pkey DO UPDATE SET rate = excluded.rate, expires_at = excluded.expires_at,
            tokens = r.tokens + r.rate * greatest(0, extract(epoch FROM least(at, r.expires_at) - r.refilled_at)),
            refilled_at = excluded.refilled_at;
END
$$;

-- Takes up to `n` from the bucket of `key`, which holds at most max(1, rate x burst). Nothing when its rate is 0, has
-- expired or was never set. Says how many, and how long until there is one more (null: not known).
CREATE FUNCTION quota_take(key text, n int, burst interval, OUT granted int, OUT retry_after interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    bucket quota_rates;
    level float8;
    at timestamptz;
BEGIN
    PERFORM quota_check(key, n, NULL);
    IF burst IS NULL OR burst NOT BETWEEN '0' AND '1 day' THEN
        PERFORM fail('LH001', format('burst must be from 0 to 1 day, not %s', coalesce(burst::text, 'null')));
    END IF;
    granted := 0;
    SELECT * INTO bucket FROM quota_rates r WHERE r.key = quota_take.key FOR UPDATE;
    at := clock_timestamp();
    IF NOT FOUND OR bucket.expires_at <= at OR bucket.rate = 0 THEN
        RETURN;
    END IF;
    level := least(greatest(1, bucket.rate * extract(epoch FROM burst)),
        bucket.tokens + bucket.rate * greatest(0, extract(epoch FROM at - bucket.refilled_at)));
    granted := least(n, floor(level));
    IF granted < n AND bucket.rate > 0 THEN
        retry_after := make_interval(secs => (1 - (level - granted)) / bucket.rate);
    END IF;
    UPDATE quota_rates r SET tokens = level - granted, refilled_at = greatest(at, r.refilled_at) WHERE r.key = quota_take.key;
END
$$;

-- Deletes up to `max_rows` holders that lapsed more than `grace` ago, with their slots. Says how many.
CREATE FUNCTION quota_reap_holders(grace interval, max_rows int DEFAULT 1000) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    gone bigint[];
BEGIN
    IF grace IS NULL OR grace < '0' THEN
        PERFORM fail('LH001', 'grace must not be null or negative');
    END IF;
    PERFORM quota_check_rows(max_rows);
    WITH dead AS (
        DELETE FROM quota_holders h WHERE h.holder_id = ANY (ARRAY(
            SELECT c.holder_id FROM quota_holders c WHERE c.expires_at <= clock_timestamp() - grace
            ORDER BY c.expires_at LIMIT max_rows FOR UPDATE SKIP LOCKED))
        RETURNING h.holder_id)
    SELECT array_agg(d.holder_id) INTO gone FROM dead d;
    DELETE FROM quota_slots s WHERE s.holder_id = ANY (gone);
    RETURN coalesce(cardinality(gone), 0);
END
$$;

-- Removes up to `max_rows` of each kind that no longer counts: windows whose last admission has left them, slot
-- rows that have held nothing for a minute or whose holder is gone, keys without slots. What another transaction holds is left for later;
-- whoever waits for a row that is gone makes it anew. Says how many.
CREATE FUNCTION quota_reap(max_rows int DEFAULT 1000) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    removed int;
    total int := 0;
    idle tid[];
BEGIN
    PERFORM quota_check_rows(max_rows);
    DELETE FROM quota_windows w WHERE w.ctid = ANY (ARRAY(
        SELECT c.ctid FROM quota_windows c
        WHERE coalesce(c.admitted_at[cardinality(c.admitted_at)], '-infinity') <= clock_timestamp() - c.window_length
            AND coalesce(c.refused_at, '-infinity') <= clock_timestamp() - interval '1 minute'
        LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    total := total + removed;
    DELETE FROM quota_slots s WHERE s.ctid = ANY (ARRAY(
        SELECT c.ctid FROM quota_slots c WHERE c.slots = 0 AND c.since <= clock_timestamp() - interval '1 minute'
            OR NOT EXISTS (SELECT FROM quota_holders h WHERE h.holder_id = c.holder_id)
        LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    total := total + removed;
    -- Looked at again when they are locked: slots may have been taken just before.
    idle := ARRAY(SELECT c.ctid FROM quota_keys c WHERE NOT EXISTS (SELECT FROM quota_slots s WHERE s.key = c.key)
            AND coalesce(c.refused_at, '-infinity') <= clock_timestamp() - interval '1 minute'
        LIMIT max_rows FOR UPDATE SKIP LOCKED);
    DELETE FROM quota_keys k WHERE k.ctid = ANY (idle) AND NOT EXISTS (SELECT FROM quota_slots s WHERE s.key = k.key);
    GET DIAGNOSTICS removed = ROW_COUNT;
    total := total + removed;
    DELETE FROM quota_rates r WHERE r.ctid = ANY (ARRAY(
        SELECT c.ctid FROM quota_rates c WHERE c.expires_at <= clock_timestamp() - interval '1 day'
        LIMIT max_rows FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN total + removed;
END
$$;

-- Slots of live holders.
CREATE FUNCTION quota_slots_used(key text) RETURNS bigint
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce(sum(s.slots), 0)::bigint FROM quota_slots s JOIN quota_holders h USING (holder_id)
    WHERE s.key = quota_slots_used.key AND s.slots > 0 AND NOT h.lapsed AND h.expires_at > clock_timestamp()
$$;

-- What a log still counts.
CREATE FUNCTION quota_window_used(admitted_at timestamptz[], counts bigint[], window_length interval) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(e.n), 0)::bigint FROM unnest(admitted_at, counts) AS e (at, n)
    WHERE e.at > clock_timestamp() - window_length
$$;

-- What begins so, for LIKE: with the pattern known to the planner, only that part of an index is read.
CREATE FUNCTION quota_prefix_pattern(prefix text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(prefix, '([\\%_])', '\\\1', 'g') || '%'
$$;

-- What is in use or has a limit here, by key: slots where window_length is null, else admissions in that window now.
-- `max` is the limit last applied, `set_max` the one set here. The first `max_rows`.
CREATE FUNCTION quota_list(prefix text DEFAULT '', max_rows int DEFAULT 1000) RETURNS TABLE (key text,
    window_length interval, used bigint, max bigint, set_max bigint, refused_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    pattern text := quota_prefix_pattern(prefix);
BEGIN
    PERFORM quota_check_rows(max_rows);
    RETURN QUERY
        WITH named AS (
            SELECT n.key, n.span FROM (
                (SELECT k.key, interval '0' AS span FROM quota_keys k
                    WHERE k.key LIKE pattern ORDER BY k.key LIMIT max_rows)
                UNION
                (SELECT w.key, w.window_length FROM quota_windows w
                    WHERE w.key LIKE pattern ORDER BY w.key, w.window_length LIMIT max_rows)
                UNION
                (SELECT l.key, l.window_length FROM quota_limits l
                    WHERE l.key LIKE pattern ORDER BY l.key, l.window_length LIMIT max_rows)
            ) AS n ORDER BY n.key, n.span LIMIT max_rows
        )
        SELECT n.key, nullif(n.span, '0'), CASE WHEN n.span = '0' THEN quota_slots_used(n.key)
                ELSE quota_window_used(w.admitted_at, w.counts, n.span) END, coalesce(k.max, w.max), l.max,
            coalesce(k.refused_at, w.refused_at)
        FROM named n LEFT JOIN quota_keys k ON n.span = '0' AND k.key = n.key
            LEFT JOIN quota_windows w ON w.key = n.key AND w.window_length = n.span
            LEFT JOIN quota_limits l ON l.key = n.key AND l.window_length = n.span
        ORDER BY n.key, n.span;
END
$$;

-- Keys refused in the last `within`, worst first: those with the largest share of their limit in use. The first
-- `max_rows` of the latest 1,000 of each kind, and how many these are.
CREATE FUNCTION quota_saturated(within interval DEFAULT '10 seconds', max_rows int DEFAULT 20) RETURNS TABLE (key text,
    window_length interval, used bigint, max bigint, refused_at timestamptz, saturated_keys bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH refused AS (
        (SELECT k.key, NULL::interval AS span, quota_slots_used(k.key) AS used, k.max, k.refused_at FROM quota_keys k
            WHERE k.refused_at > statement_timestamp() - within ORDER BY k.refused_at DESC LIMIT 1000)
        UNION ALL
        (SELECT w.key, w.window_length, quota_window_used(w.admitted_at, w.counts, w.window_length), w.max, w.refused_at
            FROM quota_windows w
            WHERE w.refused_at > statement_timestamp() - within ORDER BY w.refused_at DESC LIMIT 1000)
    )
    SELECT r.key, r.span, r.used, r.max, r.refused_at, count(*) OVER () FROM refused r
    ORDER BY r.used::float8 / nullif(r.max, 0) DESC NULLS FIRST, r.key, r.span NULLS FIRST LIMIT max_rows
$$;

-- Budgets, and rates with what is left of their bucket (before the burst of whoever takes from it), by key. The first
-- `max_rows`.
CREATE FUNCTION quota_controls(prefix text DEFAULT '', max_rows int DEFAULT 1000) RETURNS TABLE (key text,
    budget float8, rate float8, tokens float8, expires_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    pattern text := quota_prefix_pattern(prefix);
BEGIN
    PERFORM quota_check_rows(max_rows);
    RETURN QUERY
        WITH named AS (
            SELECT n.key FROM (
                (SELECT b.key FROM quota_budgets b WHERE b.key LIKE pattern
                    ORDER BY b.key LIMIT max_rows)
                UNION
                (SELECT r.key FROM quota_rates r WHERE r.key LIKE pattern
                    ORDER BY r.key LIMIT max_rows)
            ) AS n ORDER BY n.key LIMIT max_rows
        )
        SELECT n.key, b.budget, r.rate,
            r.tokens + r.rate * greatest(0, extract(epoch FROM least(clock_timestamp(), r.expires_at) - r.refilled_at)), r.expires_at
        FROM named n LEFT JOIN quota_budgets b ON b.key = n.key LEFT JOIN quota_rates r ON r.key = n.key ORDER BY n.key;
END
$$;

-- Who holds slots of a key: live holders only.
CREATE FUNCTION quota_holders_of(key text) RETURNS TABLE (holder text, slots int, since timestamptz, expires_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT h.name, s.slots, s.since, h.expires_at FROM quota_slots s JOIN quota_holders h USING (holder_id)
    WHERE s.key = quota_holders_of.key AND s.slots > 0 AND NOT h.lapsed AND h.expires_at > clock_timestamp() ORDER BY s.since, h.name
$$;

-- What each window of a key still counts, oldest first.
CREATE FUNCTION quota_admissions_of(key text) RETURNS TABLE (window_length interval, admitted_at timestamptz, count bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT w.window_length, e.at, e.n FROM quota_windows w, unnest(w.admitted_at, w.counts) WITH ORDINALITY AS e (at, n, i)
    WHERE w.key = quota_admissions_of.key AND e.n > 0 AND e.at > clock_timestamp() - w.window_length ORDER BY w.window_length, e.i
$$;
