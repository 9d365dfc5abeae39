-- leasehold_store::Store::cancelled_keys
SELECT i.id, i.token
FROM unnest($1::text[], $2::text[]) AS i (id, token)
JOIN requests r ON r.id = i.id AND r.token = i.token AND r.cancelled
