-- leasehold_store::Store::status
SELECT queue_id, partition_id, owner, epoch, draining, lease_expires_at <= now() AS lapsed
FROM partitions ORDER BY queue_id, partition_id
