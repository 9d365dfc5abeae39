-- leasehold_store::Store::compact
VACUUM (ANALYZE) dead_letters
