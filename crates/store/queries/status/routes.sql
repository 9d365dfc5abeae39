-- leasehold_store::Store::status
--
-- A loose scan: one descent of the key for each route, and a bounded count of each.
WITH RECURSIVE named AS (
    (SELECT route FROM results ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT r.route FROM results r WHERE r.route > n.route ORDER BY r.route LIMIT 1) FROM named n
    WHERE n.route IS NOT NULL
)
SELECT n.route, (SELECT count(*) FROM (SELECT FROM results r WHERE r.route = n.route LIMIT $1) x) AS waiting
FROM named n WHERE n.route IS NOT NULL ORDER BY n.route
