-- leasehold_store::Store::next_receivable
SELECT extract(epoch FROM next_receivable($1))::float8 AS next_seconds
