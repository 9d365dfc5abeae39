-- leasehold_store::Store::promote_due
--
-- Parked requests that have come due are pending again, labelled with their tenant where they were not. The next
-- one's wait is returned in seconds.
WITH due AS MATERIALIZED (
    SELECT ctid FROM requests WHERE queue_id = $1 AND NOT ready AND due_at <= now()
    ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
), promoted AS (
    UPDATE requests r SET ready = true, due_at = NULL, tenant = CASE WHEN r.tenant <> '' THEN r.tenant ELSE
        coalesce((SELECT tenant_of(r.metadata, q.tenant_attributes) FROM queues q
            WHERE q.queue_id = $1 AND q.tenant_attributes IS NOT NULL), '') END
    WHERE r.ctid = ANY (ARRAY(SELECT ctid FROM due)) AND NOT r.ready
    RETURNING 1
)
SELECT (SELECT count(*) FROM promoted) AS promoted, (
    SELECT extract(epoch FROM due_at - now())::float8 FROM requests
    WHERE queue_id = $1 AND NOT ready AND due_at > now() ORDER BY due_at LIMIT 1) AS next_seconds
