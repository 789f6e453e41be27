-- Handing over (L18).

-- Why, for programs: with the other holder that it concerns.
CREATE FUNCTION lh_cause(word text, holder jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN jsonb_build_object('cause', jsonb_build_object(word, holder));
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
    PERFORM lh_announce(l, n, kind, lh_next_revision(), lh_cause('successor', stage -> 'successor'));
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
            lh_cause('cancelled_by', r -> 'by'));
        RETURN lh_state('void', NULL);
    END IF;
    -- The commit: in one step the old lease ends and the successor has the key, with a larger token
    -- and time to confirm. Waiters are not served in between.
    IF open ->> 'stage' <> 'prepared' OR lh_token_after(l.token, n) IS NULL THEN
        RETURN lh_state('void', NULL);
    END IF;
    -- Another incarnation of the same name gets no more than that name has already.
    IF lh_over_limit(jsonb_build_object('limit', r -> 'limit', 'holder', open -> 'successor',
        'labels', l.labels), CASE WHEN open -> 'successor' ->> 'name' = l.runner_id THEN 0 ELSE 1 END,
        l.key, n) THEN
        RETURN lh_state('void', NULL);
    END IF;
    moved := open || jsonb_build_object('stage', 'committed',
        'until', n + (open ->> 'confirm_ms')::bigint, 'from', l.token);
    before := lh_end(l, n, 'lease_released', 'released', 'released', NULL,
        lh_cause('handed_over_to', open -> 'successor'));
    RETURN lh_moved(lh_grant(l.key, lh_token_after(l.token, n), open -> 'successor' ->> 'name',
        open -> 'successor' ->> 'incarnation', l.ttl_ms, l.on_outage, l.release_on_death, l.labels,
        (moved ->> 'until')::bigint, moved, n));
END $$;
