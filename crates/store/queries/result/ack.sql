-- leasehold_store::Store::ack
--
-- Removes requests and records their results in one statement, under the fence: in flight, with this attempt,
-- in a partition the caller owns, with that partition's epoch. Rings each route that somebody waits for, once. The next of a
-- group is ready then.
WITH input AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::int[], $6::text[], $7::text[], $8::text[],
        $9::bytea[], $10::boolean[]) AS i (id, token, attempt, status, code, message, content_type, body, body_is_text)
), done AS (
    DELETE FROM requests r USING input i, partitions p
    WHERE r.id = i.id AND r.token = i.token AND r.attempt = i.attempt AND r.epoch <> 0
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $1 AND p.epoch = r.epoch
    RETURNING r.enqueued_at, r.dispatched_at, r.queue_id, r.deliveries, r.group_id, coalesce(r.route, 'default') AS route, i.*
), recorded AS (
    INSERT INTO results (enqueued_at, dispatched_at, finished_at, expires_at, attempt, queue_id, deliveries, status,
        body_is_text, route, id, token, code, message, content_type, body)
    SELECT d.enqueued_at, d.dispatched_at, clock_timestamp(),
        clock_timestamp() + (SELECT q.result_ttl FROM queues q WHERE q.queue_id = d.queue_id), d.attempt, d.queue_id,
        d.deliveries, d.status, d.body_is_text, d.route, d.id, d.token, d.code, d.message, d.content_type, d.body
    FROM done d
)
SELECT d.id, d.token, d.attempt, (
    SELECT count(pg_notify(channel('route', w.route_id), '')) FROM routes w
    WHERE w.route = ANY (ARRAY(SELECT done.route FROM done)) AND w.awaited_until > now()) AS rung,
    CASE WHEN d.group_id IS NOT NULL THEN free_group(d.queue_id, d.group_id) END AS freed
FROM done d
