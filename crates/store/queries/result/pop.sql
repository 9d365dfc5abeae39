-- leasehold_store::Store::pop_results
SELECT r.*, set_config('synchronous_commit', 'off', true) FROM pop_results($1, $2) r
