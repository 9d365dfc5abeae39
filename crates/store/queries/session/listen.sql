-- leasehold_store::Listener
DO $$ BEGIN EXECUTE format('LISTEN %I', current_setting('leasehold.channel')); END $$
