-- leasehold_store::Store::cancel_scheduled
SELECT cancel_scheduled($1, $2)
