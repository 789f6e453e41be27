-- What happens to one lease: it is found, granted, kept and ended. Functions run inside the entry
-- function, under the lock of the clock's row. `n` is the authority's time in milliseconds. Counters of
-- the running statement are settings of its transaction (`leasehold.*`).

CREATE FUNCTION lh_next_revision() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN set_config('leasehold.revision',
        (current_setting('leasehold.revision')::bigint + 1)::text, true)::bigint;
END $$;

-- The id of a grant: its moment and its revision, as the kernel makes it.
CREATE FUNCTION lh_lease_id(n bigint, rev bigint) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN {LEASE_ID};
END $$;

CREATE FUNCTION lh_holder_json(name text, incarnation text) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN json_build_object('name', name, 'incarnation', incarnation);
END $$;

CREATE FUNCTION lh_lease_json(l leases) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN json_build_object(
        'id', l.lease_id, 'key', l.key,
        'holder', json_build_object('name', l.runner_id, 'incarnation', l.incarnation),
        'token', l.token, 'ttl', l.ttl_ms, 'on_outage', l.on_outage,
        'release_on_death', l.release_on_death,
        'acquired_at', l.acquired_ms, 'expires_at', l.expires_ms, 'renewed_at', l.renewed_ms,
        'status', l.status, 'labels', l.labels, 'stats', l.stats, 'handoff', l.handoff);
END $$;

-- The lease on a key; a row of NULLs when there is none. A lease that looks lapsed is locked and
-- read again, since a renewal may just have kept it.
CREATE FUNCTION lh_find(k text, n bigint) RETURNS leases LANGUAGE plpgsql AS $$
DECLARE l leases;
BEGIN
    SELECT * INTO l FROM leases WHERE key = k AND status = 'active';
    IF l.expires_ms + l.withheld_ms <= n THEN
        SELECT * INTO l FROM leases WHERE lease_id = l.lease_id FOR UPDATE;
    END IF;
    RETURN l;
END $$;

CREATE FUNCTION lh_lapsed(l leases, n bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(l.expires_ms + l.withheld_ms <= n, false);
END $$;

-- `details`: the event's cause, for programs, and its detail, in words for people.
CREATE FUNCTION lh_announce(l leases, n bigint, kind text, rev bigint, details jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id,
        incarnation, expires_ms, labels, details)
    VALUES (rev, l.lease_id, kind, n, l.key, l.token, l.runner_id, l.incarnation, l.expires_ms,
        l.labels, coalesce(lh_announce.details, '{}'));
END $$;

-- Ends a lease. Its token stays behind.
CREATE FUNCTION lh_end(l leases, n bigint, kind text, new_status text, new_loss text, new_why text,
    details jsonb) RETURNS leases LANGUAGE plpgsql AS $$
BEGIN
    UPDATE leases SET status = new_status, ended_ms = n, loss = new_loss, why = new_why
    WHERE lease_id = l.lease_id RETURNING * INTO l;
    INSERT INTO lease_fences (key, token, lease_id, loss, why, ended_ms)
    VALUES (l.key, l.token, l.lease_id, new_loss, new_why, n)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id,
        loss = excluded.loss, why = excluded.why, ended_ms = excluded.ended_ms;
    PERFORM lh_announce(l, n, kind, lh_next_revision(), details);
    RETURN l;
END $$;

-- Puts a new lease on a key that has none.
CREATE FUNCTION lh_grant(k text, next_token bigint, name text, inc text, ttl bigint, outage jsonb,
    on_death boolean, facts jsonb, expires bigint, moved jsonb, n bigint) RETURNS leases
LANGUAGE plpgsql AS $$
DECLARE
    l leases;
    rev bigint := lh_next_revision();
    withheld bigint := 0;
BEGIN
    IF outage ->> 'policy' = 'hold' THEN
        withheld := (outage ->> 'grace_ms')::bigint;
    END IF;
    INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, withheld_ms,
        release_on_death, acquired_ms, expires_ms, status, labels, handoff, timer_ms)
    VALUES (lh_lease_id(n, rev), k, name, inc, next_token, ttl, outage, withheld,
        on_death, n, expires, 'active', facts, moved, expires + withheld)
    RETURNING * INTO l;
    PERFORM lh_announce(l, n, 'lease_acquired', rev,
        CASE WHEN moved IS NOT NULL THEN '{"cause": "handed_over"}'::jsonb END);
    IF l.timer_ms < current_setting('leasehold.timer')::bigint THEN
        PERFORM set_config('leasehold.timer', l.timer_ms::text, true);
    END IF;
    RETURN l;
END $$;

-- The largest token of a key without a lease, or 0.
CREATE FUNCTION lh_last_token(k text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE last bigint;
BEGIN
    SELECT token INTO last FROM lease_fences WHERE key = k;
    RETURN coalesce(last, 0);
END $$;

-- The token of the next grant (L3); NULL when 2^53 is reached.
CREATE FUNCTION lh_token_after(last bigint, n bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE next_token bigint :=
    greatest(greatest(last, current_setting('leasehold.floor')::bigint) + 1, n);
BEGIN
    RETURN CASE WHEN next_token <= {MAX_TOKEN} THEN next_token END;
END $$;

-- Sets expiry to now + ttl, never backwards (L8). Confirms a handoff that moved the key here (L18).
CREATE FUNCTION lh_extend(l leases, n bigint, new_ttl bigint, new_stats text) RETURNS leases
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE leases SET
        ttl_ms = coalesce(new_ttl, ttl_ms),
        expires_ms = greatest(expires_ms, n + coalesce(new_ttl, ttl_ms)),
        renewed_ms = n,
        stats = coalesce(new_stats, stats),
        handoff = CASE WHEN handoff ->> 'stage' = 'committed' THEN NULL ELSE handoff END
    WHERE lease_id = l.lease_id RETURNING * INTO l;
    IF current_setting('leasehold.renewals') = 'kept' THEN
        PERFORM lh_announce(l, n, 'lease_renewed', lh_next_revision(), NULL);
    END IF;
    RETURN l;
END $$;

-- Why a holder lost its lease: the reason as the kernel writes it.
CREATE FUNCTION lh_loss_json(loss text, why text) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF loss = 'revoked' THEN
        RETURN json_build_object('reason', loss, 'why', why);
    END IF;
    RETURN json_build_object('reason', loss);
END $$;
