-- leasehold_store::Store::compact
VACUUM (FULL, ANALYZE) receipts
