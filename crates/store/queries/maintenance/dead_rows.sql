-- leasehold_store::Store::dead_rows
--
-- What may vacuum: the owner of the table or of the database, or, since 17, who may maintain the table. Anybody else is only warned.
SELECT s.relname::text AS name, s.n_dead_tup AS dead, s.n_tup_upd + s.n_tup_del AS died, s.n_live_tup AS live, pg_has_role(c.relowner, 'USAGE')
    OR pg_has_role((SELECT d.datdba FROM pg_database d WHERE d.datname = current_database()), 'USAGE')
    OR CASE WHEN current_setting('server_version_num')::int >= 170000 THEN has_table_privilege(c.oid, 'MAINTAIN') ELSE false END
    AS may_vacuum
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = current_schema() AND s.relname = ANY ($1)
