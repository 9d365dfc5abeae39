-- leasehold_store::Store::migrate
SELECT apply_grants()
