-- For people: columns that are filled by what servers write, views, and what everything is.

-- The document in a record. Servers write documents with the times of their making and changing around
-- them; what other programs wrote by hand is the document itself.
CREATE FUNCTION lh_document(value text) RETURNS jsonb
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN jsonb_typeof(lh_json(value) -> 'value') = 'object' THEN lh_json(value) -> 'value'
        ELSE lh_json(value) END
$$;

-- A runner's key is `runner:tenant/site/name`.
ALTER TABLE runners DROP COLUMN runner_id;
ALTER TABLE runners ADD COLUMN runner_id text
    GENERATED ALWAYS AS (coalesce(body ->> 'runner_id', substr(key, 8))) STORED;
CREATE INDEX idx_runners_runner_id ON runners (runner_id);
CREATE INDEX idx_cameras_camera_uuid ON cameras (camera_uuid);
UPDATE runners SET body = lh_document(value);
UPDATE cameras SET body = lh_document(value);
UPDATE zones SET body = lh_document(value);

CREATE VIEW live_leases AS
SELECT key, kind, id, runner_id AS holder, incarnation, tenant_id, site_id, token,
    acquired_at, renewed_at, expires_at, lease_id
FROM leases
WHERE status = 'active';

CREATE VIEW ended_leases AS
SELECT key, kind, id, runner_id AS holder, incarnation, tenant_id, site_id, token, acquired_at,
    lh_moment(ended_ms) AS ended_at, status, loss AS reason, why AS detail, lease_id
FROM leases
WHERE status <> 'active';

CREATE VIEW runner_overview AS
SELECT r.runner_id, r.tenant_id, r.site_id, r.deployment_group, r.deployment_version, r.host, r.port,
    r.status, r.capacity, r.registered_at, r.last_heartbeat,
    p.lease_id IS NOT NULL AS present, p.expires_at AS present_until,
    (SELECT count(*) FROM leases c
        WHERE c.runner_id = r.runner_id AND c.status = 'active' AND c.camera_uuid IS NOT NULL) AS cameras
FROM runners r
LEFT JOIN leases p ON p.key = 'runner:' || r.runner_id AND p.status = 'active';

-- Without the address of the camera: it may hold a password.
CREATE VIEW camera_overview AS
SELECT c.camera_uuid, c.tenant_id, c.site_id,
    c.body ->> 'enabled' IS DISTINCT FROM 'false' AS enabled,
    l.runner_id, l.token, l.acquired_at, l.expires_at
FROM cameras c
LEFT JOIN leases l ON l.key = 'camera:' || c.camera_uuid AND l.status = 'active';

-- What a database administrator calls after a restore (docs/postgresql.md): goes on beyond every revision
-- and token that can have been handed out since the copy was made (L3, L20). The history begins anew.
CREATE FUNCTION leasehold_restored(OUT revision bigint, OUT floor bigint)
LANGUAGE plpgsql AS $$
DECLARE
    n bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
BEGIN
    UPDATE lease_clock AS c
    SET revision = c.revision + (greatest(n - c.at_ms, 0) + 1) * 1000,
        floor = greatest(c.floor, greatest(n, c.at_ms) + 60000),
        oldest = c.revision + (greatest(n - c.at_ms, 0) + 1) * 1000 + 1
    RETURNING c.revision, c.floor INTO leasehold_restored.revision, leasehold_restored.floor;
    DELETE FROM lease_events;
    DELETE FROM lease_seals WHERE last < (SELECT max(last) FROM lease_seals);
END $$;

COMMENT ON VIEW live_leases IS 'Who owns what at this moment';
COMMENT ON VIEW ended_leases IS 'Leases that are over, as long as the history keeps them';
COMMENT ON VIEW runner_overview IS 'Hosts that work on cameras: what they registered, whether they are present, how many cameras they have';
COMMENT ON VIEW camera_overview IS 'Cameras and who has them; runner_id is NULL while nobody has';
COMMENT ON FUNCTION leasehold_restored() IS 'Call once after a restore, before a server starts: no token and no revision comes twice';
COMMENT ON TABLE lease_clock IS 'The clock and counters of the authority, one row, locked by every decision';
COMMENT ON COLUMN lease_clock.revision IS 'The newest revision';
COMMENT ON COLUMN lease_clock.at_ms IS 'The latest time that was decided by, in ms since 1970; never goes back';
COMMENT ON COLUMN lease_clock.floor IS 'Every new token is larger';
COMMENT ON COLUMN lease_clock.oldest IS 'The oldest revision of the history';
COMMENT ON TABLE leases IS 'One row per grant; ended ones stay until the history forgets them';
COMMENT ON COLUMN leases.key IS 'What is owned: kind:id';
COMMENT ON COLUMN leases.runner_id IS 'The name of the holder, whatever it is';
COMMENT ON COLUMN leases.incarnation IS 'The process start of the holder';
COMMENT ON COLUMN leases.token IS 'The fencing token: only grows for one key';
COMMENT ON COLUMN leases.ttl_ms IS 'How long a grant or a renewal lasts';
COMMENT ON COLUMN leases.on_outage IS 'What the holder does while it cannot reach the authority';
COMMENT ON COLUMN leases.withheld_ms IS 'How long the key is withheld after it expired';
COMMENT ON COLUMN leases.release_on_death IS 'Whether proven death of the holder ends it';
COMMENT ON COLUMN leases.status IS 'active, then one of expired, released, revoked';
COMMENT ON COLUMN leases.stats IS 'What the holder last reported';
COMMENT ON COLUMN leases.timer_ms IS 'When to look whether it lapsed';
COMMENT ON COLUMN leases.loss IS 'Why it ended, as its former holder is told';
COMMENT ON COLUMN leases.why IS 'The reason that a person gave';
COMMENT ON TABLE lease_fences IS 'The newest token of each key without a lease; outlives the lease';
COMMENT ON TABLE lease_events IS 'Every change, in order, without gaps';
COMMENT ON COLUMN lease_events.revision IS 'Its place in the history';
COMMENT ON COLUMN lease_events.event_type IS 'lease_acquired, lease_released, lease_expired, lease_revoked, lease_stolen, record_put, …';
COMMENT ON TABLE lease_seals IS 'Digests over the history, so that tampering shows: leasehold lease verify';
COMMENT ON TABLE lease_waiters IS 'Acquires that wait in a queue';
COMMENT ON TABLE lease_waiter_keys IS 'What they wait for';
COMMENT ON TABLE lease_replicas IS 'Servers at work on this database';
COMMENT ON TABLE records IS 'Documents: sessions, runners, cameras, zones, cursors; some kinds have tables of their own';
COMMENT ON COLUMN records.value IS 'The document as it was written; may hold secrets';
COMMENT ON COLUMN records.revision IS 'The revision of its last change';
COMMENT ON TABLE runners IS 'Hosts that work on cameras; the columns follow the document';
COMMENT ON COLUMN runners.status IS 'What the runner is ordered to do; whether it is present shows in runner_overview';
COMMENT ON TABLE cameras IS 'Cameras; body holds addresses with their logins';
COMMENT ON TABLE zones IS 'Zones of cameras';
COMMENT ON TABLE outbox IS 'How far each publisher of events got, and the identity in the ids of messages';
