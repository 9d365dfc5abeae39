-- leasehold_store::Store::ack
--
-- As ack, where some did not succeed: what its queue keeps of those is a dead letter, too. One that was cancelled is none.
WITH input AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::int[], $6::text[], $7::text[], $8::text[],
        $9::bytea[], $10::boolean[]) AS i (id, token, attempt, status, code, message, content_type, body, body_is_text)
), done AS (
    DELETE FROM requests r USING input i, partitions p, queues q
    WHERE r.id = i.id AND r.token = i.token AND r.attempt = i.attempt AND r.epoch <> 0
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $1 AND p.epoch = r.epoch
        AND q.queue_id = r.queue_id
    RETURNING r.seq, r.enqueued_at, r.dispatched_at, r.deadline, r.queue_id, r.deliveries, r.answered, r.group_id, r.group_given,
        r.route AS own_route, coalesce(r.route, 'default') AS route, r.correlation_id, r.subject,
        r.content_type AS own_content_type, r.ttl, r.headers, r.metadata, r.payload, q.result_ttl,
        q.dead_letters AND i.code <> 'CANCELLED' AND (i.code <> 'DEADLINE_EXCEEDED' OR q.dead_letter_on_expiry) AS is_kept, i.*
), recorded AS (
    INSERT INTO results (enqueued_at, dispatched_at, finished_at, expires_at, attempt, queue_id, deliveries, status,
        body_is_text, route, id, token, code, message, content_type, body)
    SELECT d.enqueued_at, d.dispatched_at, clock_timestamp(), clock_timestamp() + d.result_ttl, d.attempt, d.queue_id,
        d.deliveries, d.status, d.body_is_text, d.route, d.id, d.token, d.code, d.message, d.content_type, d.body
    FROM done d
), kept AS (
    INSERT INTO dead_letters (seq, queue_id, dead_at, enqueued_at, visible_at, expires_at, deliveries, answered, id, token,
        group_id, group_given, route, correlation_id, subject, content_type, reason, description, ttl, headers, metadata, payload)
    SELECT d.seq, d.queue_id, clock_timestamp(), d.enqueued_at, d.enqueued_at, CASE WHEN isfinite(d.deadline) THEN d.deadline END,
        d.deliveries, d.answered, d.id, d.token, d.group_id, d.group_given, d.own_route, d.correlation_id, d.subject,
        d.own_content_type, CASE d.code WHEN 'MAX_DELIVERIES_EXCEEDED' THEN 'MaxDeliveryCountExceeded'
            WHEN 'DEADLINE_EXCEEDED' THEN 'TTLExpired' ELSE d.code END, d.message, d.ttl, d.headers, d.metadata, d.payload
    FROM done d WHERE d.is_kept
)
SELECT d.id, d.token, d.attempt, (
    SELECT count(pg_notify(channel('route', w.route_id), '')) FROM routes w
    WHERE w.route = ANY (ARRAY(SELECT done.route FROM done)) AND w.awaited_until > now()) AS rung,
    CASE WHEN d.group_id IS NOT NULL THEN free_group(d.queue_id, d.group_id) END AS freed
FROM done d
