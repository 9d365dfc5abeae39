-- leasehold_store::Store::label_tenants
SELECT label_tenants($1, $2, $3)
