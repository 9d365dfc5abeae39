-- leasehold_store::Store::status
SELECT queue_id, owner, member, asleep, extract(epoch FROM expires_at - now())::float8 AS expires_seconds
FROM dispatchers WHERE expires_at > now() ORDER BY queue_id, owner
