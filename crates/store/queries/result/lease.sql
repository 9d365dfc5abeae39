-- leasehold_store::Store::lease_results
SELECT * FROM lease_results($1, $2, $3::float8 * interval '1 second')
