-- leasehold_store::Store::renew
SELECT renew($1, $2, $3)
