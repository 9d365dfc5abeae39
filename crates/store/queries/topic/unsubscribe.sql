-- leasehold_store::Store::unsubscribe
SELECT unsubscribe($1, $2, $3)
