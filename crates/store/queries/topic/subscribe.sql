-- leasehold_store::Store::subscribe
SELECT subscribe($1, $2, $3)
