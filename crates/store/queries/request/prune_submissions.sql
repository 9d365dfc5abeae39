-- leasehold_store::Store::prune_submissions
--
-- A submission is kept while its request lives, so that a repeat cannot enqueue beside it.
WITH gone AS (
    DELETE FROM submissions s WHERE s.ctid = ANY (ARRAY(
        SELECT c.ctid FROM submissions c
        WHERE c.accepted_at < now() - $1::float8 * interval '1 second'
            AND NOT EXISTS (SELECT FROM requests r WHERE r.id = c.id AND r.token = c.token)
        ORDER BY c.accepted_at LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone
