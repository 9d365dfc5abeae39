-- leasehold_store::Store::redrive
SELECT redrive($1, $2, $3, $4::float8 * interval '1 second')
