-- Forgets what is too old, a part at a time. `from` is where the last part of the fences ended; the
-- answer says where this one did. Only what was forgotten here counts as forgotten (`oldest`): an event that somebody else deleted is missing. Tokens of keys that nobody used
-- for long, or that are too many (`idle_until`, if given), go into the floor (L3).
CREATE FUNCTION lh_forget(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    most integer := (r ->> 'most')::integer;
    newest bigint := current_setting('leasehold.revision')::bigint;
    events bigint;
    ended bigint;
    last_fence text;
    top bigint;
    forgotten bigint;
    first_kept lease_events;
BEGIN
    WITH first_ones AS MATERIALIZED (
        SELECT revision FROM lease_events ORDER BY revision LIMIT most
    ), gone AS (
        DELETE FROM lease_events USING first_ones
        WHERE lease_events.revision = first_ones.revision
            AND (at_ms < n - (r ->> 'history_ms')::bigint
                OR lease_events.revision <= newest - (r ->> 'history_events')::bigint)
        RETURNING lease_events.revision
    )
    SELECT count(*), max(revision) INTO events, forgotten FROM gone;
    -- Only what was forgotten here counts as forgotten: an event that somebody else deleted is missing.
    PERFORM set_config('leasehold.oldest',
        greatest(forgotten + 1, current_setting('leasehold.oldest')::bigint)::text, true);
    SELECT * INTO first_kept FROM lease_events ORDER BY revision LIMIT 1;
    WITH old AS MATERIALIZED (
        SELECT lease_id FROM leases
        WHERE status <> 'active' AND ended_ms < coalesce(first_kept.at_ms, n)
        ORDER BY ended_ms LIMIT most
    )
    DELETE FROM leases USING old WHERE leases.lease_id = old.lease_id;
    GET DIAGNOSTICS ended = ROW_COUNT;
    WITH part AS MATERIALIZED (
        SELECT key FROM lease_fences WHERE key > r ->> 'from' ORDER BY key LIMIT most
    ), gone AS (
        DELETE FROM lease_fences USING part WHERE lease_fences.key = part.key
            AND (ended_ms < n - (r ->> 'idle_ms')::bigint OR ended_ms <= (r ->> 'idle_until')::bigint)
        RETURNING token
    )
    SELECT (SELECT max(key) FROM part), (SELECT max(token) FROM gone) INTO last_fence, top;
    PERFORM set_config('leasehold.floor',
        greatest(top, current_setting('leasehold.floor')::bigint)::text, true);
    DELETE FROM lease_replicas WHERE seen_ms < n - {REPLICA_KEPT_MS}
        AND replica NOT IN (SELECT replica FROM lease_waiters);
    RETURN json_build_object('events', events, 'leases', ended, 'from', coalesce(last_fence, ''));
END $$;
