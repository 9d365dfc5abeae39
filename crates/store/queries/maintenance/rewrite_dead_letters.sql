-- leasehold_store::Store::compact
VACUUM (FULL, ANALYZE) dead_letters
