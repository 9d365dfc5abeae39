-- leasehold_store::Store::cancel
SELECT cancel($1)
