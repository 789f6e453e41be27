-- Keeping (L7–L9).

-- The live lease that belongs to this holder under this token. Otherwise a row without an id, whose
-- `loss` and `why` say why it is lost. A lapsed lease is expired on the spot, so that what the holder
-- is reported is what everyone sees.
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
            SELECT key, token FROM leases WHERE loss IS NULL
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
