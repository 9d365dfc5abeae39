-- leasehold_store::Listener
SELECT set_config('leasehold.channel', $1, false)
