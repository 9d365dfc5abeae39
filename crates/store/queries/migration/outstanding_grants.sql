-- leasehold_store::Store::migrate
--
-- Roles that are missing, then the grants of every role that may not enter the schema: USAGE is the first of them.
SELECT format('CREATE ROLE %I NOLOGIN', g.role) FROM (SELECT DISTINCT role FROM grants()) g
WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = g.role)
UNION ALL
SELECT g.statement FROM grants() g
WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = g.role AND has_schema_privilege(r.oid, current_schema(), 'USAGE'))
