-- leasehold_store::Store::undispatch
--
-- One that is not labelled with its tenant yet, or with other attributes than the queue's, is labelled on the way. One
-- that was cancelled meanwhile comes first from now on, whatever its tenant may not: see cancel.
UPDATE requests r SET epoch = 0, attempt = 0, arrival = DEFAULT, deliveries = r.deliveries - $5::int,
    deadline = CASE WHEN r.cancelled THEN '-infinity' ELSE r.deadline END,
    tenant = coalesce((SELECT tenant_of(r.metadata, q.tenant_attributes) FROM queues q
        WHERE q.queue_id = r.queue_id AND q.tenant_attributes IS NOT NULL), r.tenant)
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS i (id, token, attempt), partitions p
WHERE r.id = i.id AND r.token = i.token AND r.attempt = i.attempt AND r.epoch <> 0
    AND p.queue_id = r.queue_id AND p.partition_id = r.partition_id AND p.owner = $1 AND p.epoch = r.epoch
RETURNING i.id, i.token, i.attempt
