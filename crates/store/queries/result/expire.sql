-- leasehold_store::Store::expire_results
WITH gone AS (
    DELETE FROM results r WHERE r.ctid = ANY (ARRAY(
        SELECT c.ctid FROM results c WHERE c.expires_at < now() ORDER BY c.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone
