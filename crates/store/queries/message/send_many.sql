-- leasehold_store::Store::send
SELECT send_many($1, $2::bytea[], message_ids => $3, group_ids => $4, correlation_ids => $5, reply_tos => $6,
    subjects => $7, content_types => $8, properties => $9,
    ttls => (SELECT array_agg(s * interval '1 second' ORDER BY n) FROM unnest($10::float8[]) WITH ORDINALITY AS w (s, n)),
    ats => $11)
