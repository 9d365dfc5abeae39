-- leasehold_store::Store::set_generation
UPDATE dispatchers SET generation = greatest(generation, $3) WHERE queue_id = $1 AND owner = $2
RETURNING true
