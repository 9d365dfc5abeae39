-- leasehold_store::Store::receive
SELECT seq, message_id, group_id, correlation_id, reply_to, subject, content_type, properties,
    extract(epoch FROM ttl)::float8 AS ttl_seconds, body, delivery_count, enqueued_at, locked_until,
    extract(epoch FROM locked_until - clock_timestamp())::float8 AS locked_seconds, lock_token
FROM receive($1, $2, $3, $4)
