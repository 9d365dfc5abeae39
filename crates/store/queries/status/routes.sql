-- leasehold_store::Store::status
--
-- A loose scan: one descent of the key for each route, and a bounded count of each. Routes with a mark are known, and are
-- begun there: only between them is anything looked for, so that nothing walks over what is long gone.
WITH RECURSIVE marked AS (
    SELECT DISTINCT ON (m.route) m.route, m.seq, m.stragglers FROM route_marks m ORDER BY m.route, m.seq DESC, m.drawn DESC
), named AS (
    SELECT NULL::text COLLATE "C" AS route, (SELECT min(m.route) FROM marked m) AS next_marked
    UNION ALL
    SELECT f.route, (SELECT min(m.route) FROM marked m WHERE m.route > f.route) FROM named n, LATERAL (
        SELECT coalesce(CASE WHEN n.next_marked IS NULL
            THEN (SELECT r.route FROM results r WHERE r.route > coalesce(n.route, '') ORDER BY r.route LIMIT 1)
            ELSE (SELECT r.route FROM results r WHERE r.route > coalesce(n.route, '') AND r.route < n.next_marked
                ORDER BY r.route LIMIT 1) END, n.next_marked) AS route) f
    WHERE f.route IS NOT NULL
), counted AS (
    SELECT n.route, (SELECT count(*) FROM (SELECT FROM results r WHERE r.route = n.route AND r.seq >= coalesce(m.seq, 0) LIMIT $1) x)
        + (SELECT count(*) FROM results r WHERE r.route = n.route AND r.seq = ANY (m.stragglers)) AS waiting
    FROM named n LEFT JOIN marked m USING (route) WHERE n.route IS NOT NULL
)
SELECT c.route, least(c.waiting, $1) AS waiting FROM counted c WHERE c.waiting > 0 ORDER BY c.route
