-- leasehold_store::Store::heartbeat
--
-- A leaving owner keeps its row (it can still be woken) and is not counted. A lapsed member's row keeps polls of its
-- older generations out: it is forgotten an hour after its lapse, and not while a partition names it. A heartbeat that was given up
-- does not make it anew with such a generation, however late it runs: it is void from $6 on. Rows are locked in key order.
WITH me AS (
    INSERT INTO dispatchers AS d (queue_id, owner, expires_at, member, generation)
    SELECT $1, $2, clock_timestamp() + $3::float8 * interval '1 second', $4, $5 WHERE clock_timestamp() < $6
    ON CONFLICT (queue_id, owner) DO UPDATE SET expires_at = excluded.expires_at, member = excluded.member, generation = greatest(d.generation, excluded.generation)
    RETURNING true
), lapsed AS (
    DELETE FROM dispatchers d WHERE d.ctid = ANY (ARRAY(
        SELECT c.ctid FROM dispatchers c WHERE c.queue_id = $1 AND c.owner <> $2 AND c.expires_at <= now() - interval '1 hour'
            AND NOT EXISTS (SELECT FROM partitions p WHERE p.queue_id = $1 AND p.owner = c.owner)
        FOR UPDATE SKIP LOCKED))
), held AS MATERIALIZED (
    SELECT p.partition_id FROM partitions p WHERE p.queue_id = $1 AND p.owner = $2 AND clock_timestamp() < $6
    ORDER BY p.partition_id FOR UPDATE
), renewed AS (
    UPDATE partitions p SET lease_expires_at = clock_timestamp() + $3::float8 * interval '1 second'
    FROM held h WHERE p.queue_id = $1 AND p.partition_id = h.partition_id AND p.owner = $2
    RETURNING p.partition_id, p.epoch, p.draining
)
SELECT (SELECT count(*) FROM dispatchers d WHERE d.queue_id = $1 AND d.owner <> $2 AND d.member AND d.expires_at > now())
        + $4::boolean::int AS members,
    array_agg(partition_id ORDER BY partition_id) AS partition_ids, array_agg(epoch ORDER BY partition_id) AS epochs,
    array_agg(draining ORDER BY partition_id) AS draining, clock_timestamp() AS at, EXISTS (SELECT FROM me) AS counted
FROM renewed
