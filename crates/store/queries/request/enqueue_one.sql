-- leasehold_store::Store::enqueue
SELECT id, token, seq FROM enqueue($1, ($2::bytea[])[1], ($3::text[])[1], ($4::text[])[1], ($5::timestamptz[])[1],
    ($6::text[])[1], ($7::timestamptz[])[1], ($8::jsonb[])[1], ($9::jsonb[])[1], ($10::text[])[1])
