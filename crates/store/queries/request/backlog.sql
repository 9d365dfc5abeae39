-- leasehold_store::Store::backlog
SELECT depth, due FROM backlog($1, (SELECT array_agg(s * interval '1 second' ORDER BY n)
    FROM unnest($2::float8[]) WITH ORDINALITY AS w (s, n)))
