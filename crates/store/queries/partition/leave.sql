-- leasehold_store::Store::leave
WITH gone AS (DELETE FROM dispatchers WHERE queue_id = $1 AND owner = $2)
UPDATE partitions SET owner = NULL, lease_expires_at = NULL, draining = false WHERE queue_id = $1 AND owner = $2
