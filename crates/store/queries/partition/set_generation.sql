-- leasehold_store::Store::set_generation
--
-- A row that will be forgotten soon, an hour after its lapse, is as good as none: it keeps out nothing for long.
UPDATE dispatchers SET generation = greatest(generation, $3)
WHERE queue_id = $1 AND owner = $2 AND expires_at > now() - interval '45 minutes'
RETURNING true
