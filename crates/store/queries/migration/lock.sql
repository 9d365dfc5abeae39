-- leasehold_store::Store::migrate
SELECT pg_advisory_lock(hashtextextended('leasehold migration of ' || $1::text, 0)),
    set_config('leasehold.schema', $1::text, false)
