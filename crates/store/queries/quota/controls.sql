-- leasehold_store::Store::quota_controls
SELECT key, budget, rate, tokens, expires_at, extract(epoch FROM expires_at - clock_timestamp())::float8 AS expires_seconds
FROM quota_controls($1, $2)
