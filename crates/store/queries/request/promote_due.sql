-- leasehold_store::Store::promote_due
--
-- Parked requests that have come due are pending again; groups that were left for later are settled. The wait for the next
-- is returned in seconds.
SELECT p.promoted, extract(epoch FROM p.next_due)::float8 AS next_seconds, check_groups($1) FROM promote_due($1, $2) AS p
