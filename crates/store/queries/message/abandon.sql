-- leasehold_store::Store::abandon
SELECT abandon($1, $2, $3, $4::float8 * interval '1 second')
