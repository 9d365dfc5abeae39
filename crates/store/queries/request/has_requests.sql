-- leasehold_store::Store::has_requests
SELECT EXISTS (SELECT FROM requests WHERE queue_id = $1 AND ready AND tenant = '')
    OR EXISTS (SELECT FROM requests WHERE queue_id = $1 AND ready AND tenant <> '')
    OR EXISTS (SELECT FROM requests WHERE queue_id = $1 AND NOT ready)
