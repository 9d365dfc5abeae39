-- leasehold_store::Store::acquire_partitions
UPDATE partitions p SET owner = $2, epoch = p.epoch + 1, draining = false,
    lease_expires_at = clock_timestamp() + $3::float8 * interval '1 second'
WHERE p.queue_id = $1 AND p.partition_id = ANY (ARRAY(
    SELECT c.partition_id FROM partitions c
    WHERE c.queue_id = $1 AND (c.owner IS NULL OR c.lease_expires_at <= now())
    ORDER BY c.lease_expires_at NULLS FIRST, c.partition_id LIMIT $4 FOR UPDATE SKIP LOCKED))
RETURNING p.partition_id, p.epoch
