-- What is searched for has a column; the rest of a record is JSON (`doc`, `spec`, `state`, `data`).
-- Times are milliseconds since 1970, money is millionths of a dollar, amounts are thousandths.

CREATE TABLE users (
    id         INTEGER PRIMARY KEY,
    username   TEXT NOT NULL,
    name_key   TEXT NOT NULL UNIQUE, -- the name in lower case
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE credentials (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,
    hash       TEXT NOT NULL UNIQUE,
    expires_at INTEGER,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE nodes (
    id             INTEGER PRIMARY KEY,
    node_id        TEXT NOT NULL UNIQUE,
    name           TEXT NOT NULL UNIQUE,
    last_heartbeat INTEGER, -- counts, not the one in `doc`
    doc            TEXT NOT NULL
) STRICT;

CREATE TABLE agents (
    id       INTEGER PRIMARY KEY,
    agent_id TEXT NOT NULL UNIQUE,
    doc      TEXT NOT NULL
) STRICT;

CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY,
    user_id    INTEGER NOT NULL,
    queue      TEXT NOT NULL,
    status     TEXT NOT NULL,
    name       TEXT NOT NULL, -- in lower case, for searching
    created_at INTEGER NOT NULL,
    spec       TEXT NOT NULL, -- never changes
    state      TEXT NOT NULL
) STRICT;
CREATE INDEX jobs_by_user ON jobs (user_id, id);
CREATE INDEX jobs_by_status ON jobs (status, id);
CREATE INDEX jobs_by_queue ON jobs (queue, id);

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    doc  TEXT NOT NULL
) STRICT;

CREATE TABLE events (
    seq     INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    message TEXT NOT NULL,
    job_id  INTEGER,
    node_id TEXT,
    user_id INTEGER,
    data    TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX events_by_node ON events (node_id, seq) WHERE node_id IS NOT NULL;
CREATE INDEX events_by_user ON events (user_id, seq) WHERE user_id IS NOT NULL;

CREATE TABLE ledger (
    id          INTEGER PRIMARY KEY,
    at          INTEGER NOT NULL,
    day         TEXT NOT NULL, -- of `at`, in UTC
    kind        TEXT NOT NULL,
    user_id     INTEGER NOT NULL,
    job_id      INTEGER,
    attempt     INTEGER,
    task        INTEGER,
    queue       TEXT,
    node_id     TEXT,
    gpu_milli   INTEGER NOT NULL,
    cpu_milli   INTEGER NOT NULL,
    memory      INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    micros      INTEGER NOT NULL,
    note        TEXT
) STRICT;
CREATE INDEX ledger_by_user ON ledger (user_id, id);
CREATE INDEX ledger_by_job ON ledger (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX ledger_by_time ON ledger (at);

CREATE TABLE idempotency (
    user_id INTEGER NOT NULL,
    key     TEXT NOT NULL,
    body    TEXT NOT NULL,
    job_id  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (user_id, key)
) STRICT;
CREATE INDEX idempotency_by_time ON idempotency (at);

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- The highest number of anything that was removed, by table: numbers are not given out twice.
CREATE TABLE gone (
    name TEXT PRIMARY KEY,
    id   INTEGER NOT NULL
) STRICT;
