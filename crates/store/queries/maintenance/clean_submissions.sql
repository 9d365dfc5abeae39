-- leasehold_store::Store::vacuum
VACUUM (INDEX_CLEANUP ON, TRUNCATE OFF, SKIP_LOCKED) submissions
