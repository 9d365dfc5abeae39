-- leasehold_store::Store::retry
--
-- A cancelled one is pending at once, and first: its outcome does not wait.
-- In a group, one with a smaller number may have come due, which goes first.
WITH parked AS (
    UPDATE requests r SET epoch = 0, attempt = 0, arrival = DEFAULT, ready = r.cancelled, headers = i.headers, metadata = i.metadata,
        deadline = CASE WHEN r.cancelled THEN '-infinity' ELSE r.deadline END,
        due_at = CASE WHEN NOT r.cancelled THEN least(clock_timestamp() + i.delay * interval '1 second', r.deadline) END
    FROM unnest($2::text[], $3::text[], $4::bigint[], $5::float8[], $6::jsonb[], $7::jsonb[])
        AS i (id, token, attempt, delay, headers, metadata), partitions p
    WHERE r.id = i.id AND r.token = i.token AND r.attempt = i.attempt AND r.epoch <> 0
        AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $1 AND p.epoch = r.epoch
    RETURNING i.id, i.token, i.attempt, r.queue_id, r.group_id
)
SELECT p.id, p.token, p.attempt, (SELECT free_group(p.queue_id, p.group_id) WHERE p.group_id IS NOT NULL) FROM parked p
