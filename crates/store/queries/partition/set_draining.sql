-- leasehold_store::Store::set_draining
UPDATE partitions SET draining = $4
WHERE queue_id = $1 AND owner = $2 AND partition_id = ANY ($3)
RETURNING partition_id
