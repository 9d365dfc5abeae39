-- leasehold_store::Store::queue_settings
SELECT route, extract(epoch FROM result_ttl)::float8 AS result_ttl_seconds,
    extract(epoch FROM default_deadline)::float8 AS default_deadline_seconds, max_deliveries, max_payload_bytes,
    channel('queue', queue_id) AS channel, tenant_attributes,
    tenant_attributes IS NOT NULL OR EXISTS (SELECT FROM requests r WHERE r.queue_id = $1 AND r.ready AND r.tenant <> '') AS has_tenants
FROM queues WHERE queue_id = $1
