-- leasehold_store::Store::peek
SELECT seq, message_id, group_id, correlation_id, reply_to, subject, content_type, properties,
    extract(epoch FROM ttl)::float8 AS ttl_seconds, body, delivery_count, enqueued_at, state, locked_until, visible_at,
    expires_at, dead_at, dead_letter_reason, dead_letter_description
FROM peek($1, $2, $3, $4)
