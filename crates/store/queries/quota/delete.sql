-- leasehold_store::Store::delete_quota_holder
SELECT quota_delete($1)
