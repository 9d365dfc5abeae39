-- leasehold_store::Store::enqueue
SELECT id, token, seq FROM enqueue_many($1, $2::bytea[], $3, $4, $5, $6, $7, $8, $9, $10)
