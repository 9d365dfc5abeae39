-- leasehold_store::Store::purge
SELECT purge($1, $2, $3::float8 * interval '1 second')
