-- The rows everything works on. Names are unqualified: the migration runs with the search path set to the
-- installation's schema, and every function pins that path for itself (SET search_path FROM CURRENT).

CREATE SEQUENCE request_seq AS bigint;

CREATE TABLE queues (
    queue_id            int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name                text COLLATE "C" NOT NULL UNIQUE,
    route               text COLLATE "C",              -- overrides the request's own
    result_ttl          interval,                      -- NULL: results do not expire
    default_deadline    interval,                      -- for requests that name none; NULL: no deadline
    max_deliveries      int NOT NULL DEFAULT 10,
    max_payload_bytes   int NOT NULL DEFAULT 16777216,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row a request, whether a leased dispatcher or a receiver takes it.
--
-- A stamp (epoch, attempt, deliveries, dispatched_at) changes no indexed column, and the fill factor leaves
-- room beside the row, so that dispatch, hand-back and reset are heap-only updates. epoch = 0 means that
-- nobody has the row. `ready` is false for what must not be found by a poll (parked, deferred), so that
-- such rows stand in no dispatch's way.
CREATE TABLE requests (
    seq             bigint NOT NULL DEFAULT nextval('request_seq'),
    deadline        timestamptz NOT NULL,              -- infinity: none; -infinity: cancelled before a dispatch
    enqueued_at     timestamptz NOT NULL,
    dispatched_at   timestamptz,                       -- of the last dispatch
    due_at          timestamptz,                       -- parked until then; at the deadline at the latest
    epoch           bigint NOT NULL DEFAULT 0,
    attempt         bigint NOT NULL DEFAULT 0,
    queue_id        int NOT NULL,
    deliveries      int NOT NULL DEFAULT 0,
    partition_id    smallint NOT NULL,
    ready           boolean NOT NULL DEFAULT true,
    cancelled       boolean NOT NULL DEFAULT false,
    id              text COLLATE "C" NOT NULL,
    token           text COLLATE "C" NOT NULL,
    group_id        text COLLATE "C",
    route           text COLLATE "C",
    headers         jsonb,
    metadata        jsonb,
    payload         bytea NOT NULL,
    PRIMARY KEY (id, token)
) WITH (
    fillfactor = 50,                                   -- a batch stamps whole pages: each row needs room for one more
    toast_tuple_target = 256,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0
);

-- Partition first: a poll costs its batch and one descent per owned partition, whatever the backlog.
CREATE INDEX requests_ready ON requests (queue_id, partition_id, deadline, seq) WHERE ready;
CREATE INDEX requests_parked ON requests (queue_id, due_at) WHERE NOT ready;

CREATE TABLE results (
    seq             bigint GENERATED ALWAYS AS IDENTITY,
    enqueued_at     timestamptz NOT NULL,
    dispatched_at   timestamptz,
    finished_at     timestamptz NOT NULL,
    expires_at      timestamptz,                       -- NULL: never
    leased_until    timestamptz,                       -- at-least-once pollers: hidden until then
    lease           uuid,
    attempt         bigint NOT NULL,
    queue_id        int NOT NULL,
    deliveries      int NOT NULL,
    status          int,                               -- HTTP status; NULL: no answer
    body_is_text    boolean NOT NULL,                  -- the body is valid UTF-8 without NUL
    route           text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,
    token           text COLLATE "C" NOT NULL,
    code            text COLLATE "C",                  -- NULL: success
    message         text,
    content_type    text COLLATE "C",
    body            bytea,                             -- NULL: none; empty is an empty body
    PRIMARY KEY (route, seq)
) WITH (
    fillfactor = 90,
    toast_tuple_target = 256,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX results_expiry ON results (expires_at) WHERE expires_at IS NOT NULL;

-- Wide values leave the row at 256 bytes, so that what a stamp rewrites stays small; lz4 costs a tenth of
-- pglz. A server built without lz4 keeps them uncompressed.
DO $$
BEGIN
    ALTER TABLE requests ALTER COLUMN payload SET COMPRESSION lz4;
    ALTER TABLE results ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    ALTER TABLE requests ALTER COLUMN payload SET STORAGE EXTERNAL;
    ALTER TABLE results ALTER COLUMN body SET STORAGE EXTERNAL;
END
$$;

-- The shares of a queue. The epoch rises each time a partition changes hands and never falls.
CREATE TABLE partitions (
    queue_id            int NOT NULL,
    partition_id        smallint NOT NULL CHECK (partition_id BETWEEN 0 AND 63),
    epoch               bigint NOT NULL DEFAULT 0,
    lease_expires_at    timestamptz,
    draining            boolean NOT NULL DEFAULT false,
    owner               text COLLATE "C",
    PRIMARY KEY (queue_id, partition_id)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Who serves a queue. `asleep` asks producers to ring; see ring_queue.
CREATE TABLE dispatchers (
    queue_id    int NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    expires_at  timestamptz NOT NULL,
    generation  bigint NOT NULL,                       -- of its polls: fences one whose reply was lost
    member      boolean NOT NULL,                      -- false: leaving, not counted for a share
    asleep      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (queue_id, owner)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Routes somebody listens to. `awaited_until` asks dispatchers to ring; see listen_results.
CREATE TABLE routes (
    route_id        int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    route           text COLLATE "C" NOT NULL UNIQUE,
    awaited_until   timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Submissions whose token the producer named: what makes a repeat after a lost reply return the original,
-- even when that one is already done. Pruned by age.
CREATE TABLE submissions (
    seq             bigint NOT NULL,
    accepted_at     timestamptz NOT NULL,
    id              text COLLATE "C" NOT NULL,
    token           text COLLATE "C" NOT NULL,
    digest          bytea NOT NULL,                    -- SHA-256 of what was submitted
    PRIMARY KEY (id, token)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX submissions_age ON submissions (accepted_at);
