-- leasehold_store::Store::set_asleep
UPDATE dispatchers SET asleep = $3 WHERE queue_id = $1 AND owner = $2
