-- leasehold_store::Store::compact
VACUUM (ANALYZE) groups
