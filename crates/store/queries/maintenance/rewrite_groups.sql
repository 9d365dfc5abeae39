-- leasehold_store::Store::compact
VACUUM (FULL, ANALYZE) groups
