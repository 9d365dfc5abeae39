-- leasehold_store::Store::delete_queue
SELECT delete_queue($1, $2)
