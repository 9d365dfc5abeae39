-- leasehold_store::Store::ensure_tenant_attributes
SELECT now_attributes, changed FROM ensure_tenant_attributes($1, $2)
