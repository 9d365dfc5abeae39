-- leasehold_store::Store::compact
VACUUM (ANALYZE) dedup
