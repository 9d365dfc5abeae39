-- leasehold_store::Store::queue_stats
SELECT active, locked, deferred, scheduled, dead, total, extract(epoch FROM oldest_age)::float8 AS oldest_seconds
FROM queue_stats($1)
