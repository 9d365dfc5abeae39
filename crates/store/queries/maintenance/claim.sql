-- leasehold_store::Store::claim_maintenance
SELECT claim_maintenance($1, $2::float8 * interval '1 second')
