-- Where everything lives. Times that decide are whole milliseconds since 1970 (`*_ms`); the
-- timestamps beside them are for people. Keys sort by their bytes, as everywhere in Leasehold.

-- A JSON text as a document, or NULL when it is none: a report or a record may hold any text.
CREATE FUNCTION lh_json(value text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN value::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;

-- Milliseconds as a moment.
CREATE FUNCTION lh_moment(millis bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT to_timestamp(millis::double precision / 1000)
$$;

-- A whole number out of a document, or NULL: a generated column must never refuse a record.
CREATE FUNCTION lh_number(body jsonb, field text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN body ->> field ~ '^-?[0-9]{1,15}$' THEN (body ->> field)::bigint END
$$;

-- The authority's clock and counters: one row, locked by every statement that decides. It makes
-- revisions gapless and in the order of the commits, so that a reader never misses one (L20).
CREATE TABLE lease_clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The newest revision.
    revision bigint NOT NULL DEFAULT 0,
    -- The latest time that was decided by; time never goes back.
    at_ms bigint NOT NULL DEFAULT 0,
    -- Every new token is larger than this (L3).
    floor bigint NOT NULL DEFAULT 0,
    -- The oldest revision that the history still has, once it has any.
    oldest bigint NOT NULL DEFAULT 1,
    -- How many wait, so that nobody looks for waiters when there are none.
    waiters bigint NOT NULL DEFAULT 0,
    -- The last ticket of a wait.
    ticket bigint NOT NULL DEFAULT 0,
    -- When the leader of expiry looks next; an earlier lapse wakes it.
    timer_ms bigint NOT NULL DEFAULT 9007199254740991,
    -- Until when some replica watches: no notifications about events otherwise.
    watched_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO lease_clock DEFAULT VALUES;

-- One row per grant. Ended ones stay until the history forgets them.
CREATE TABLE leases (
    lease_id uuid PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" GENERATED ALWAYS AS (split_part(key, ':', 1)) STORED,
    id text COLLATE "C" GENERATED ALWAYS AS (substr(key, strpos(key, ':') + 1)) STORED,
    camera_uuid text GENERATED ALWAYS AS (CASE WHEN key LIKE 'camera:%' THEN substr(key, 8) END) STORED,
    -- The holder's name, and its process start.
    runner_id text COLLATE "C" NOT NULL,
    incarnation text COLLATE "C" NOT NULL,
    shard_id text GENERATED ALWAYS AS (labels ->> 'shard') STORED,
    tenant_id text GENERATED ALWAYS AS (labels ->> 'tenant') STORED,
    site_id text GENERATED ALWAYS AS (labels ->> 'site') STORED,
    token bigint NOT NULL,
    ttl_ms bigint NOT NULL,
    -- What happens while the holder cannot reach the authority (L13).
    on_outage jsonb NOT NULL,
    -- How long the key is withheld after it expired.
    withheld_ms bigint NOT NULL,
    release_on_death boolean NOT NULL,
    acquired_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    renewed_ms bigint,
    acquired_at timestamptz GENERATED ALWAYS AS (to_timestamp(acquired_ms::double precision / 1000)) STORED,
    expires_at timestamptz GENERATED ALWAYS AS (to_timestamp(expires_ms::double precision / 1000)) STORED,
    renewed_at timestamptz GENERATED ALWAYS AS (to_timestamp(renewed_ms::double precision / 1000)) STORED,
    last_heartbeat timestamptz GENERATED ALWAYS AS
        (to_timestamp(coalesce(renewed_ms, acquired_ms)::double precision / 1000)) STORED,
    -- `active`, then one of `expired`, `released`, `revoked`.
    status text NOT NULL,
    stats text,
    processing_stats jsonb GENERATED ALWAYS AS (lh_json(stats)) STORED,
    config_version text GENERATED ALWAYS AS (labels ->> 'config_version') STORED,
    zone_version text GENERATED ALWAYS AS (labels ->> 'zone_version') STORED,
    labels jsonb NOT NULL,
    handoff jsonb,
    -- When to look whether it lapsed. A renewal leaves it alone, so that it touches no index at all:
    -- whoever finds it due and renewed sets it anew.
    timer_ms bigint NOT NULL,
    ended_ms bigint,
    -- Why it ended, as its former holder is told (L7).
    loss text,
    why text,
    CONSTRAINT leases_ended CHECK (
        (status = 'active') = (ended_ms IS NULL) AND (status = 'active') = (loss IS NULL))
) WITH (fillfactor = 70);
-- Each index of the live leases says in its own words what is live: `status` when they are looked for by
-- key, `loss` by holder, `ended_ms` by time. So none of them serves a search for another: in a table that
-- was empty when the plan was made they cost the same, and the wrong one is a walk over all live leases.
CREATE UNIQUE INDEX idx_leases_key ON leases (key) WHERE status = 'active';
CREATE INDEX idx_leases_runner_id ON leases (runner_id, incarnation) WHERE loss IS NULL;
CREATE INDEX idx_leases_expires_at ON leases (timer_ms) WHERE ended_ms IS NULL;
CREATE INDEX idx_leases_ended ON leases (ended_ms) WHERE status <> 'active';
CREATE INDEX idx_leases_camera_uuid ON leases (camera_uuid) WHERE camera_uuid IS NOT NULL;

-- The newest token of a key without a lease, and how its lease ended: outlives the lease (L3).
CREATE TABLE lease_fences (
    key text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    lease_id uuid NOT NULL,
    loss text NOT NULL,
    why text,
    ended_ms bigint NOT NULL
) WITH (fillfactor = 80);

-- Every change, in order (L19).
CREATE TABLE lease_events (
    revision bigint PRIMARY KEY,
    event_id uuid NOT NULL DEFAULT gen_random_uuid(),
    lease_id uuid,
    event_type text NOT NULL,
    at_ms bigint NOT NULL,
    "timestamp" timestamptz GENERATED ALWAYS AS (to_timestamp(at_ms::double precision / 1000)) STORED,
    key text COLLATE "C" NOT NULL,
    token bigint,
    runner_id text,
    incarnation text,
    expires_ms bigint,
    labels jsonb,
    details jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX idx_lease_events_key ON lease_events (key, revision);
CREATE INDEX idx_lease_events_lease_id ON lease_events (lease_id);
-- Time grows with the revision, so a summary per block finds a moment.
CREATE INDEX idx_lease_events_timestamp ON lease_events USING brin ("timestamp");

-- Who waits (L6). A replica that stopped showing itself waits no more.
CREATE TABLE lease_replicas (
    replica text PRIMARY KEY,
    seen_ms bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE lease_waiters (
    ticket bigint PRIMARY KEY,
    replica text NOT NULL,
    runner_id text COLLATE "C" NOT NULL,
    incarnation text COLLATE "C" NOT NULL,
    request jsonb NOT NULL,
    since_ms bigint NOT NULL,
    deadline_ms bigint NOT NULL,
    -- Set once, when the wait is over; fetched by its replica.
    answer text
);
CREATE INDEX idx_lease_waiters_replica ON lease_waiters (replica);
CREATE TABLE lease_waiter_keys (
    key text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL,
    PRIMARY KEY (key, ticket)
);

-- Documents. Those of four kinds have tables of their own, whose columns follow the document.
CREATE TABLE records (
    key text COLLATE "C" PRIMARY KEY,
    value text NOT NULL,
    revision bigint NOT NULL
);
CREATE TABLE runners (
    PRIMARY KEY (key),
    body jsonb,
    runner_id text GENERATED ALWAYS AS (substr(key, 8)) STORED,
    tenant_id text GENERATED ALWAYS AS (body ->> 'tenant_id') STORED,
    site_id text GENERATED ALWAYS AS (body ->> 'site_id') STORED,
    registered_at timestamptz GENERATED ALWAYS AS (lh_moment(lh_number(body, 'registered_at'))) STORED,
    last_heartbeat timestamptz GENERATED ALWAYS AS (lh_moment(lh_number(body, 'last_heartbeat'))) STORED,
    deployment_group text GENERATED ALWAYS AS (body ->> 'deployment_group') STORED,
    deployment_version text GENERATED ALWAYS AS (body ->> 'deployment_version') STORED,
    host text GENERATED ALWAYS AS (body ->> 'host') STORED,
    port bigint GENERATED ALWAYS AS (lh_number(body, 'port')) STORED,
    status text GENERATED ALWAYS AS (body ->> 'status') STORED,
    capacity bigint GENERATED ALWAYS AS (lh_number(body, 'capacity')) STORED,
    current_load bigint GENERATED ALWAYS AS (lh_number(body, 'current_load')) STORED,
    metrics jsonb GENERATED ALWAYS AS (body -> 'metrics') STORED
) INHERITS (records);
CREATE INDEX idx_runners_tenant_site ON runners (tenant_id, site_id);
CREATE INDEX idx_runners_status ON runners (status);
CREATE INDEX idx_runners_deployment ON runners (deployment_group, deployment_version);
CREATE TABLE cameras (
    PRIMARY KEY (key),
    body jsonb,
    camera_uuid text GENERATED ALWAYS AS (coalesce(body ->> 'camera_uuid', substr(key, 8))) STORED,
    tenant_id text GENERATED ALWAYS AS (body ->> 'tenant_id') STORED,
    site_id text GENERATED ALWAYS AS (body ->> 'site_id') STORED
) INHERITS (records);
CREATE INDEX idx_cameras_tenant_site ON cameras (tenant_id, site_id);
CREATE TABLE zones (
    PRIMARY KEY (key),
    body jsonb,
    zone_id bigint GENERATED ALWAYS AS (lh_number(body, 'zone_id')) STORED,
    camera_uuid text GENERATED ALWAYS AS (body ->> 'camera_uuid') STORED,
    name text GENERATED ALWAYS AS (body ->> 'name') STORED,
    tenant_id text GENERATED ALWAYS AS (body ->> 'tenant_id') STORED,
    site_id text GENERATED ALWAYS AS (body ->> 'site_id') STORED
) INHERITS (records);
-- How far each publisher of events got.
CREATE TABLE outbox (
    PRIMARY KEY (key),
    body jsonb,
    publisher text GENERATED ALWAYS AS (substr(key, 8)) STORED
) INHERITS (records);

-- The chain of digests over the history, so that tampering shows. Written by the replica that has the
-- leader, soon after the events and outside the statement that decides.
CREATE TABLE lease_seals (
    -- The seal covers the events `first` to `last`.
    last bigint PRIMARY KEY,
    first bigint NOT NULL,
    -- The digest of the seal before. No two seals continue the same one: the chain cannot fork, even
    -- when two replicas believe to be the leader.
    previous bytea NOT NULL UNIQUE,
    digest bytea NOT NULL,
    -- A mark per event: 8 bytes for its key, 32 for the whole.
    marks bytea NOT NULL
);
