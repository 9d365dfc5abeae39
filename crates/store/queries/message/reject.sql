-- leasehold_store::Store::reject
SELECT reject($1, $2, $3, coalesce($4::text, 'AppRequested'), $5)
