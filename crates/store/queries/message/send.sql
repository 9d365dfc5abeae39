-- leasehold_store::Store::send_one
SELECT send($1, $2::bytea, message_id => $3, group_id => $4, correlation_id => $5, reply_to => $6, subject => $7,
    content_type => $8, properties => $9, ttl => $10::float8 * interval '1 second')
