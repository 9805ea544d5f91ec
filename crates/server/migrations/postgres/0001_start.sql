-- What is searched for has a column; the rest of a record is JSON (`doc`, `spec`, `state`, `data`).
-- Times are milliseconds since 1970, money is millionths of a dollar, amounts are thousandths.

CREATE TABLE users (
    id         BIGINT PRIMARY KEY,
    username   TEXT NOT NULL,
    name_key   TEXT NOT NULL UNIQUE, -- the name in lower case
    doc        JSONB NOT NULL
);

CREATE TABLE credentials (
    id         BIGINT PRIMARY KEY,
    kind       TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    expires_at BIGINT,
    doc        JSONB NOT NULL
);

CREATE TABLE nodes (
    id             BIGINT PRIMARY KEY,
    node_id        TEXT NOT NULL UNIQUE,
    name           TEXT NOT NULL UNIQUE,
    last_heartbeat BIGINT, -- counts, not the one in `doc`
    doc            JSONB NOT NULL
);

CREATE TABLE agents (
    id       BIGINT PRIMARY KEY,
    agent_id TEXT NOT NULL UNIQUE,
    doc      JSONB NOT NULL
);

CREATE TABLE jobs (
    id         BIGINT PRIMARY KEY,
    user_id    BIGINT NOT NULL,
    queue      TEXT NOT NULL,
    status     TEXT NOT NULL,
    name       TEXT NOT NULL, -- in lower case, for searching
    created_at BIGINT NOT NULL,
    spec       JSONB NOT NULL, -- never changes
    state      JSONB NOT NULL
);
CREATE INDEX jobs_by_user ON jobs (user_id, id);
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_by_queue ON jobs (queue, id);

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    doc  JSONB NOT NULL
);

CREATE TABLE events (
    seq     BIGINT PRIMARY KEY,
    at      BIGINT NOT NULL,
    kind    TEXT NOT NULL,
    message TEXT NOT NULL,
    job_id  BIGINT,
    node_id TEXT,
    user_id BIGINT,
    data    JSONB NOT NULL
);
CREATE INDEX events_by_job ON events (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX events_by_node ON events (node_id, seq) WHERE node_id IS NOT NULL;
CREATE INDEX events_by_user ON events (user_id, seq) WHERE user_id IS NOT NULL;

CREATE TABLE ledger (
    id          BIGINT PRIMARY KEY,
    at          BIGINT NOT NULL,
    day         TEXT NOT NULL, -- of `at`, in UTC
    kind        TEXT NOT NULL,
    user_id     BIGINT NOT NULL,
    job_id      BIGINT,
    attempt     BIGINT,
    task        BIGINT,
    queue       TEXT,
    node_id     TEXT,
    gpu_milli   BIGINT NOT NULL,
    cpu_milli   BIGINT NOT NULL,
    memory      BIGINT NOT NULL,
    duration_ms BIGINT NOT NULL,
    micros      BIGINT NOT NULL,
    note        TEXT
);
CREATE INDEX ledger_by_user ON ledger (user_id, id);
CREATE INDEX ledger_by_job ON ledger (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX ledger_by_time ON ledger (at);

CREATE TABLE idempotency (
    user_id BIGINT NOT NULL,
    key     TEXT NOT NULL,
    body    TEXT NOT NULL,
    job_id  BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (user_id, key)
);
CREATE INDEX idempotency_by_time ON idempotency (at);

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- The highest number of anything that was removed, by table: numbers are not given out twice.
CREATE TABLE gone (
    name TEXT PRIMARY KEY,
    id   BIGINT NOT NULL
);

-- Which server may write: each start counts up, and every transaction looks whether it is still the last.
CREATE TABLE leader (
    id    BIGINT PRIMARY KEY CHECK (id = 1),
    epoch BIGINT NOT NULL
);
INSERT INTO leader VALUES (1, 0);
