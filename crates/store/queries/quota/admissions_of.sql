-- leasehold_store::Store::quota_admissions_of
SELECT extract(epoch FROM window_length)::float8 AS window_seconds, admitted_at, count FROM quota_admissions_of($1)
