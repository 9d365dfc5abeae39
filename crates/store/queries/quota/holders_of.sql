-- leasehold_store::Store::quota_holders_of
SELECT holder, slots, since, expires_at FROM quota_holders_of($1)
