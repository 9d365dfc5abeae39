-- Calls for less: with one row or a few, most of what they cost was spent before the first. docs/decisions/0013.

-- The plan of an insert does not depend on what is inserted. But one for just so few rows is estimated to be cheaper than one for
-- any number, so calls with a few rows made their plans anew, which took longer than the rows. A plan that is kept must not have
-- seen an empty table: what a repeated submission is compared with is found by its key.
ALTER FUNCTION enqueue_many(text, bytea[], text[], text[], timestamptz[], text[], timestamptz[], jsonb[], jsonb[], text[])
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off;
ALTER FUNCTION send_many(text, bytea[], text[], text[], text[], text[], text[], text[], jsonb[], interval[], timestamptz[])
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off;

-- As before, in a form that the planner puts in its callers' place. All of them have this schema as their search path.
CREATE OR REPLACE FUNCTION channel(kind text, number int) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT format('leasehold_%s_%s_%s', to_regnamespace(quote_ident(current_schema()))::oid, kind, number)
$$;

-- As before. A function in SQL is planned anew in each transaction.

CREATE OR REPLACE FUNCTION enqueue(queue text, payload text, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
BEGIN
    SELECT e.* INTO id, token, seq
        FROM enqueue(queue, convert_to(payload, 'UTF8'), id, token, deadline, route, not_before, headers, metadata, group_id) AS e;
END
$$;

CREATE OR REPLACE FUNCTION enqueue(queue text, payload json, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
BEGIN
    SELECT e.* INTO id, token, seq
        FROM enqueue(queue, convert_to(payload::text, 'UTF8'), id, token, deadline, route, not_before, headers, metadata, group_id) AS e;
END
$$;

CREATE OR REPLACE FUNCTION enqueue(queue text, payload jsonb, INOUT id text DEFAULT NULL, INOUT token text DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, route text DEFAULT NULL, not_before timestamptz DEFAULT NULL,
    headers jsonb DEFAULT NULL, metadata jsonb DEFAULT NULL, group_id text DEFAULT NULL, OUT seq bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
BEGIN
    SELECT e.* INTO id, token, seq
        FROM enqueue(queue, convert_to(payload::text, 'UTF8'), id, token, deadline, route, not_before, headers, metadata, group_id) AS e;
END
$$;
