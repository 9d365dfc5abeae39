-- leasehold_store::Store::ack_results
SELECT * FROM ack_results($1, $2, $3)
