-- Keeping (L7–L9), losing (L15–L17), handing over (L18), records.

-- The live lease that belongs to this holder under this token. Otherwise a row without an id, whose
-- `loss` and `why` say why it is lost. A lapsed lease is expired on the spot, so that what the holder
-- is told is what everyone sees.
CREATE FUNCTION lh_owned(k text, held_token bigint, holder jsonb, n bigint) RETURNS leases
LANGUAGE plpgsql AS $$
DECLARE
    l leases := lh_find(k, n);
    lost leases;
    fence lease_fences;
BEGIN
    IF l.lease_id IS NULL THEN
        SELECT * INTO fence FROM lease_fences WHERE key = k;
        lost.loss := CASE
            WHEN held_token < fence.token THEN 'stolen'
            WHEN held_token = fence.token THEN fence.loss
            ELSE 'unknown' END;
        lost.why := fence.why;
    ELSIF l.token <> held_token THEN
        lost.loss := CASE WHEN held_token < l.token THEN 'stolen' ELSE 'unknown' END;
    ELSIF l.runner_id <> holder ->> 'name' OR l.incarnation <> holder ->> 'incarnation' THEN
        lost.loss := 'unknown';
    ELSIF lh_lapsed(l, n) THEN
        PERFORM lh_expire(l, n);
        lost.loss := 'expired';
    ELSE
        RETURN l;
    END IF;
    RETURN lost;
END $$;

-- One renewal, whose key and token the asker knows.
CREATE FUNCTION lh_keep(k text, held_token bigint, holder jsonb, ttl bigint, report text, n bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE l leases := lh_owned(k, held_token, holder, n);
BEGIN
    IF l.lease_id IS NULL THEN
        RETURN json_build_object('key', k, 'token', held_token,
            'outcome', json_build_object('Err', lh_loss_json(l.loss, l.why)));
    END IF;
    RETURN json_build_object('key', k, 'token', held_token,
        'outcome', json_build_object('Ok', lh_lease_json(lh_extend(l, n, ttl, report))));
END $$;

-- Renewals one by one: for those that the one-statement renewal could not keep.
CREATE FUNCTION lh_renew(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    holder jsonb := r -> 'holder';
    item jsonb;
    held record;
    answers text[] := '{}';
BEGIN
    IF jsonb_typeof(r -> 'leases') = 'string' THEN
        FOR held IN
            SELECT key, token FROM leases WHERE status = 'active'
                AND runner_id = holder ->> 'name' AND incarnation = holder ->> 'incarnation'
            ORDER BY key
        LOOP
            answers := answers || lh_keep(held.key, held.token, holder, NULL, NULL, n);
        END LOOP;
    ELSE
        FOR item IN SELECT jsonb_array_elements(r -> 'leases' -> 'these') LOOP
            answers := answers || lh_keep(item ->> 'key', (item ->> 'token')::bigint, holder,
                (item ->> 'ttl')::bigint, item ->> 'stats', n);
        END LOOP;
    END IF;
    RETURN '[' || array_to_string(answers, ',') || ']';
END $$;

CREATE FUNCTION lh_release(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE l leases := lh_owned(r ->> 'key', (r ->> 'token')::bigint, r -> 'holder', n);
BEGIN
    IF l.lease_id IS NULL THEN
        RETURN 'false';
    END IF;
    l := lh_end(l, n, 'lease_released', 'released', 'released', NULL, NULL);
    PERFORM lh_serve(l.key, n);
    RETURN 'true';
END $$;

CREATE FUNCTION lh_revoke(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l leases;
    reason text := r ->> 'reason';
BEGIN
    SELECT * INTO l FROM leases WHERE lease_id = (r ->> 'id')::uuid AND status = 'active' FOR UPDATE;
    IF l.lease_id IS NULL THEN
        RETURN 'null';
    ELSIF lh_lapsed(l, n) THEN
        PERFORM lh_expire(l, n);
        RETURN 'null';
    END IF;
    l := lh_end(l, n, 'lease_revoked', 'revoked', 'revoked', reason, reason);
    PERFORM lh_serve(l.key, n);
    RETURN lh_lease_json(l);
END $$;

-- A holder's end is known (L15).
CREATE FUNCTION lh_depart(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    how text := CASE WHEN r ? 'died' THEN 'died' WHEN r ? 'left' THEN 'left' ELSE 'succeeded' END;
    name text := r -> how ->> 'name';
    inc text := r -> how ->> 'incarnation';
    detail text := CASE how WHEN 'died' THEN 'its holder died' WHEN 'left' THEN 'its holder left'
        ELSE 'its holder restarted' END;
    w lease_waiters;
    l leases;
    answers text[] := '{}';
BEGIN
    -- Their waits end first: nothing released here may go back to them.
    IF current_setting('leasehold.waiters') <> '0' THEN
        FOR w IN
            SELECT * FROM lease_waiters WHERE runner_id = name
                AND (incarnation = inc) = (how <> 'succeeded') AND answer IS NULL
            ORDER BY ticket
        LOOP
            PERFORM lh_give_up(w, n);
        END LOOP;
    END IF;
    FOR l IN
        SELECT * FROM leases WHERE status = 'active' AND runner_id = name
            AND (incarnation = inc) = (how <> 'succeeded') AND (release_on_death OR how <> 'died')
        ORDER BY key FOR UPDATE
    LOOP
        IF lh_lapsed(l, n) THEN
            PERFORM lh_expire(l, n);
        ELSE
            l := lh_end(l, n, 'lease_released', 'released', 'released', NULL, detail);
            answers := answers || lh_lease_json(l)::text;
            PERFORM lh_serve(l.key, n);
        END IF;
    END LOOP;
    RETURN '[' || array_to_string(answers, ',') || ']';
END $$;

CREATE FUNCTION lh_holder_text(holder jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (holder ->> 'name') || '#' || (holder ->> 'incarnation');
END $$;

-- The state of a handoff: its word, and the fields of what it is about.
CREATE FUNCTION lh_state(word text, about jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN jsonb_build_object('state', word) || coalesce(about, '{}');
END $$;

CREATE FUNCTION lh_moved(l leases) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN lh_state('moved', lh_lease_json(l)::jsonb);
END $$;

CREATE FUNCTION lh_set_stage(l leases, stage jsonb, kind text, n bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE leases SET handoff = stage WHERE lease_id = l.lease_id RETURNING * INTO l;
    PERFORM lh_announce(l, n, kind, lh_next_revision(), lh_holder_text(stage -> 'successor'));
    RETURN lh_state('open', stage);
END $$;

CREATE FUNCTION lh_handoff(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    step text := r ->> 'step';
    l leases;
    before leases;
    open jsonb;
    moved jsonb;
BEGIN
    IF step IN ('offer', 'commit', 'confirm') THEN
        l := lh_owned(r -> 'lease' ->> 'key', (r -> 'lease' ->> 'token')::bigint,
            r -> 'lease' -> 'holder', n);
        IF l.lease_id IS NULL THEN
            IF step = 'commit' THEN
                -- A repeated commit finds the successor's lease, as long as it is not confirmed.
                before := lh_find(r -> 'lease' ->> 'key', n);
                IF before.handoff -> 'from' = r -> 'lease' -> 'token' THEN
                    RETURN lh_moved(before);
                END IF;
            END IF;
            RETURN lh_state('lost', lh_loss_json(l.loss, l.why)::jsonb);
        END IF;
    ELSE
        PERFORM lh_settle(r ->> 'key', n);
        l := lh_find(r ->> 'key', n);
    END IF;
    -- A stage that has run out of time is void.
    IF (l.handoff ->> 'until')::bigint > n THEN
        open := l.handoff;
    END IF;
    IF step = 'confirm' THEN
        RETURN lh_moved(lh_extend(l, n, NULL, NULL));
    ELSIF step = 'offer' THEN
        IF open ->> 'stage' <> 'committed' AND open -> 'successor' = r -> 'successor' THEN
            RETURN lh_state('open', open);
        END IF;
        RETURN lh_set_stage(l, jsonb_build_object('successor', r -> 'successor', 'stage', 'offered',
            'until', n + (r ->> 'prepare_ms')::bigint, 'drain_ms', r -> 'drain_ms',
            'confirm_ms', r -> 'confirm_ms'), 'handoff_offered', n);
    ELSIF open IS NULL THEN
        RETURN lh_state('void', NULL);
    ELSIF step = 'prepare' THEN
        IF open -> 'successor' <> r -> 'successor' THEN
            RETURN lh_state('void', NULL);
        ELSIF open ->> 'stage' = 'offered' THEN
            RETURN lh_set_stage(l, open || jsonb_build_object('stage', 'prepared',
                'until', n + (open ->> 'drain_ms')::bigint), 'handoff_prepared', n);
        ELSIF open ->> 'stage' = 'committed' THEN
            RETURN lh_moved(l);
        END IF;
        RETURN lh_state('open', open);
    ELSIF step = 'cancel' THEN
        IF open ->> 'stage' = 'committed' OR (open -> 'successor' <> r -> 'by'
            AND lh_holder_json(l.runner_id, l.incarnation)::jsonb <> r -> 'by') THEN
            RETURN lh_state('open', open);
        END IF;
        UPDATE leases SET handoff = NULL WHERE lease_id = l.lease_id RETURNING * INTO l;
        PERFORM lh_announce(l, n, 'handoff_cancelled', lh_next_revision(),
            'called off by ' || lh_holder_text(r -> 'by'));
        RETURN lh_state('void', NULL);
    END IF;
    -- The commit: in one step the old lease ends and the successor has the key, with a larger token
    -- and time to confirm. Waiters are not served in between.
    IF open ->> 'stage' <> 'prepared' OR lh_token_after(l.token, n) IS NULL THEN
        RETURN lh_state('void', NULL);
    END IF;
    moved := open || jsonb_build_object('stage', 'committed',
        'until', n + (open ->> 'confirm_ms')::bigint, 'from', l.token);
    before := lh_end(l, n, 'lease_released', 'released', 'released', NULL,
        'handed over to ' || lh_holder_text(open -> 'successor'));
    RETURN lh_moved(lh_grant(l.key, lh_token_after(l.token, n), open -> 'successor' ->> 'name',
        open -> 'successor' ->> 'incarnation', l.ttl_ms, l.on_outage, l.release_on_death, l.labels,
        (moved ->> 'until')::bigint, moved, n));
END $$;

-- Writes or removes one record.
CREATE FUNCTION lh_write(r jsonb, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k text := r ->> 'key';
    kind text := split_part(k, ':', 1);
    new_value text := r ->> 'value';
    rev bigint;
BEGIN
    IF new_value IS NULL THEN
        DELETE FROM records WHERE key = k;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        rev := lh_next_revision();
    ELSE
        rev := lh_next_revision();
        IF kind = 'runner' THEN
            INSERT INTO runners (key, value, revision, body) VALUES (k, new_value, rev, lh_json(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSIF kind = 'camera' THEN
            INSERT INTO cameras (key, value, revision, body) VALUES (k, new_value, rev, lh_json(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSIF kind = 'zone' THEN
            INSERT INTO zones (key, value, revision, body) VALUES (k, new_value, rev, lh_json(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSIF kind = 'outbox' THEN
            INSERT INTO outbox (key, value, revision, body) VALUES (k, new_value, rev, lh_json(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSE
            INSERT INTO records (key, value, revision) VALUES (k, new_value, rev)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev;
        END IF;
    END IF;
    INSERT INTO lease_events (revision, event_type, at_ms, key, details)
    VALUES (rev, CASE WHEN new_value IS NULL THEN 'record_removed' ELSE 'record_put' END, n, k,
        CASE WHEN r ->> 'note' IS NULL THEN '{}' ELSE jsonb_build_object('detail', r -> 'note') END);
END $$;

-- Several changes that happen together or not at all.
CREATE FUNCTION lh_commit(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    item jsonb;
    actual bigint;
    answered text;
    granted json := '[]';
BEGIN
    FOR item IN SELECT jsonb_array_elements(r -> 'expect') LOOP
        actual := NULL;
        SELECT revision INTO actual FROM records WHERE key = item ->> 'key';
        IF actual IS DISTINCT FROM (item ->> 'revision')::bigint THEN
            RETURN json_build_object('Conflict', json_build_object('key', item -> 'key', 'actual', actual));
        END IF;
    END LOOP;
    IF jsonb_typeof(r -> 'acquire') = 'object' THEN
        PERFORM lh_settle_waited(lh_keys(r -> 'acquire'), n);
        answered := lh_decide(r -> 'acquire', n);
        IF answered::json -> 'refused' IS NOT NULL THEN
            RETURN json_build_object('Refused', answered::json -> 'refused');
        END IF;
        granted := answered::json -> 'granted' -> 'leases';
    END IF;
    FOR item IN SELECT jsonb_array_elements(r -> 'writes') LOOP
        PERFORM lh_write(item, n);
    END LOOP;
    FOR item IN SELECT jsonb_array_elements(r -> 'release') LOOP
        PERFORM lh_release(item, n);
    END LOOP;
    RETURN json_build_object('Done', json_build_object(
        'revision', current_setting('leasehold.revision')::bigint, 'leases', granted));
END $$;
