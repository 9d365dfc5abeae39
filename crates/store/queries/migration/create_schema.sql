-- leasehold_store::Store::migrate
DO $$ BEGIN EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', current_setting('leasehold.schema')); END $$
