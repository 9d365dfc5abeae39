-- leasehold_store::Store::release_partitions
UPDATE partitions SET owner = NULL, lease_expires_at = NULL, draining = false
WHERE queue_id = $1 AND owner = $2 AND partition_id = ANY ($3)
RETURNING partition_id
