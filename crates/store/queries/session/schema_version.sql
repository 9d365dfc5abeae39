-- leasehold_store::Store::schema_version
SELECT version, name FROM schema_history ORDER BY version
