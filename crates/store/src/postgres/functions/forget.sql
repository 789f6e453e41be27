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
    WITH gone AS (
        DELETE FROM lease_events
        WHERE revision IN (SELECT revision FROM lease_events ORDER BY revision LIMIT most)
            AND (at_ms < n - (r ->> 'history_ms')::bigint
                OR revision <= newest - (r ->> 'history_events')::bigint)
        RETURNING revision
    )
    SELECT count(*), max(revision) INTO events, forgotten FROM gone;
    -- Only what was forgotten here counts as forgotten: an event that somebody else deleted is missing.
    PERFORM set_config('leasehold.oldest',
        greatest(forgotten + 1, current_setting('leasehold.oldest')::bigint)::text, true);
    SELECT * INTO first_kept FROM lease_events ORDER BY revision LIMIT 1;
    DELETE FROM leases WHERE lease_id IN (SELECT lease_id FROM leases
        WHERE status <> 'active' AND ended_ms < coalesce(first_kept.at_ms, n)
        ORDER BY ended_ms LIMIT most);
    GET DIAGNOSTICS ended = ROW_COUNT;
    WITH part AS (
        SELECT key FROM lease_fences WHERE key > r ->> 'from' ORDER BY key LIMIT most
    ), gone AS (
        DELETE FROM lease_fences WHERE key IN (SELECT key FROM part)
            AND (ended_ms < n - (r ->> 'idle_ms')::bigint OR ended_ms <= (r ->> 'idle_until')::bigint)
        RETURNING token
    )
    SELECT (SELECT max(key) FROM part), (SELECT max(token) FROM gone) INTO last_fence, top;
    PERFORM set_config('leasehold.floor',
        greatest(top, current_setting('leasehold.floor')::bigint)::text, true);
    DELETE FROM lease_replicas WHERE seen_ms < n - 3600000
        AND replica NOT IN (SELECT replica FROM lease_waiters);
    RETURN json_build_object('events', events, 'leases', ended, 'from', coalesce(last_fence, ''));
END $$;
