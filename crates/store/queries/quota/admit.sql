-- leasehold_store::Store::admit_quota
SELECT granted, at, extract(epoch FROM retry_after)::float8, applied
FROM quota_admit_parts($1, $2, $3, $4::float8 * interval '1 second', $5)
