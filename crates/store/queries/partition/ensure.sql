-- leasehold_store::Store::ensure_partitions
INSERT INTO partitions (queue_id, partition_id) SELECT $1, n FROM generate_series(0, 63) AS n ON CONFLICT DO NOTHING
