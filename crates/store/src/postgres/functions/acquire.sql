-- Granting and refusing (L1–L5).

CREATE FUNCTION lh_refuse(k text, cause json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN json_build_object('refused', json_build_object('cause', cause, 'key', k));
END $$;

-- Somebody has it: the only refusal that a waiter waits through.
CREATE FUNCTION lh_refuse_held(l leases, n bigint) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN lh_refuse(l.key, json_build_object('cause', 'held',
        'holder', lh_holder_json(l.runner_id, l.incarnation), 'token', l.token,
        'left_ms', greatest(l.expires_ms + l.withheld_ms - n, 0), 'labels', l.labels));
END $$;

CREATE FUNCTION lh_waited(k text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('leasehold.waiters') = '0' THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM lease_waiter_keys WHERE key = k);
END $$;

-- What stands on a key for an asker: `free` (no lease), `lapsed` (a lease that may be taken), `own`
-- or `held`. A lapsed lease that someone waits for is that waiter's. The same holder is the same name and
-- incarnation within the same tenant (L2).
CREATE FUNCTION lh_occupancy(l leases, name text, inc text, tenant text, n bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF l.lease_id IS NULL THEN
        RETURN 'free';
    ELSIF lh_lapsed(l, n) THEN
        RETURN CASE WHEN lh_waited(l.key) THEN 'held' ELSE 'lapsed' END;
    ELSIF l.runner_id = name AND l.incarnation = inc AND l.tenant_id IS NOT DISTINCT FROM tenant THEN
        RETURN 'own';
    END IF;
    RETURN 'held';
END $$;

-- Whether `new` more leases would be more than the holder may have of this kind, within its tenant.
CREATE FUNCTION lh_over_limit(r jsonb, new integer, first_key text, n bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    most bigint := (r ->> 'limit')::bigint;
    held bigint;
BEGIN
    IF most IS NULL OR new = 0 THEN
        RETURN false;
    END IF;
    SELECT count(*) INTO held FROM leases
    WHERE loss IS NULL AND runner_id = r -> 'holder' ->> 'name'
        AND tenant_id IS NOT DISTINCT FROM r -> 'labels' ->> 'tenant'
        AND kind = split_part(first_key, ':', 1) AND expires_ms + withheld_ms > n;
    RETURN held + new > most;
END $$;

-- A new grant, over whatever lapsed lease is still there, or over a live one by force.
CREATE FUNCTION lh_take(k text, next_token bigint, occupancy text, r jsonb, n bigint) RETURNS leases
LANGUAGE plpgsql AS $$
DECLARE
    l leases;
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    ttl bigint := (r ->> 'ttl')::bigint;
BEGIN
    IF occupancy <> 'free' THEN
        l := lh_find(k, n);
        IF l.runner_id = name AND l.incarnation = inc
            AND l.tenant_id IS NOT DISTINCT FROM r -> 'labels' ->> 'tenant' AND lh_lapsed(l, n) THEN
            l := lh_end(l, n, 'lease_expired', 'expired', 'expired', NULL, NULL);
        ELSE
            l := lh_end(l, n, 'lease_stolen', 'expired', 'stolen', NULL,
                jsonb_strip_nulls(jsonb_build_object('detail', r -> 'force')));
        END IF;
    END IF;
    RETURN lh_grant(k, next_token, name, inc, ttl, r -> 'on_outage',
        (r ->> 'release_on_death')::boolean, r -> 'labels', n + ttl, NULL, n);
END $$;

CREATE FUNCTION lh_granted(leases text, fresh boolean) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN '{"granted":{"fresh":' || fresh || ',"leases":[' || leases || ']}}';
END $$;

-- Whether it is refused because somebody has it (`held`), and the answer.
CREATE FUNCTION lh_decide_all(r jsonb, n bigint, OUT held boolean, OUT answer text)
LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := r -> 'want' -> 'all';
    last_key integer := jsonb_array_length(keys) - 1;
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    tenant text := r -> 'labels' ->> 'tenant';
    k text;
    l leases;
    occupancy text;
    occupancies text[];
    next_token bigint;
    tokens bigint[];
    new integer := 0;
    answers text := '';
BEGIN
    held := false;
    FOR i IN 0 .. last_key LOOP
        k := keys ->> i;
        l := lh_find(k, n);
        occupancy := lh_occupancy(l, name, inc, tenant, n);
        next_token := 0;
        IF occupancy <> 'own' THEN
            IF occupancy = 'held' AND r ->> 'force' IS NULL THEN
                held := true;
                answer := lh_refuse_held(l, n);
                RETURN;
            END IF;
            new := new + 1;
            next_token := lh_token_after(coalesce(l.token, lh_last_token(k)), n);
            IF next_token IS NULL THEN
                answer := lh_refuse(k, '{"cause":"tokens_exhausted"}');
                RETURN;
            END IF;
        END IF;
        occupancies[i] := occupancy;
        tokens[i] := next_token;
    END LOOP;
    IF lh_over_limit(r, new, keys ->> 0, n) THEN
        answer := lh_refuse(keys ->> 0, json_build_object('cause', 'limit', 'limit', r -> 'limit'));
        RETURN;
    END IF;
    FOR i IN 0 .. last_key LOOP
        k := keys ->> i;
        IF occupancies[i] = 'own' THEN
            l := lh_extend(lh_find(k, n), n, (r ->> 'ttl')::bigint, NULL);
        ELSE
            l := lh_take(k, tokens[i], occupancies[i], r, n);
        END IF;
        answers := answers || CASE WHEN i > 0 THEN ',' ELSE '' END || lh_lease_json(l)::text;
    END LOOP;
    answer := lh_granted(answers, new > 0);
END $$;

CREATE FUNCTION lh_decide_any(r jsonb, n bigint, OUT held boolean, OUT answer text)
LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := r -> 'want' -> 'any';
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    tenant text := r -> 'labels' ->> 'tenant';
    request_id text := r -> 'labels' ->> 'request';
    k text;
    l leases;
    occupancy text;
    next_token bigint;
BEGIN
    held := false;
    -- A request whose answer was lost has its slot already.
    IF request_id IS NOT NULL THEN
        FOR k IN
            SELECT slot FROM jsonb_array_elements_text(keys) WITH ORDINALITY AS pool (slot, place)
            WHERE (SELECT lease_id FROM leases WHERE key = slot AND status = 'active'
                AND runner_id = name AND incarnation = inc
                AND labels ->> 'request' = request_id) IS NOT NULL
            ORDER BY place
        LOOP
            l := lh_find(k, n);
            IF lh_occupancy(l, name, inc, tenant, n) = 'own' THEN
                answer := lh_granted(
                    lh_lease_json(lh_extend(l, n, (r ->> 'ttl')::bigint, NULL))::text, false);
                RETURN;
            END IF;
        END LOOP;
    END IF;
    -- Whatever has a live lease is passed over in one statement: hundreds may ask for hundreds of slots.
    FOR k IN
        SELECT slot FROM jsonb_array_elements_text(keys) WITH ORDINALITY AS pool (slot, place)
        WHERE (SELECT lease_id FROM leases
            WHERE key = slot AND status = 'active' AND expires_ms + withheld_ms > n) IS NULL
        ORDER BY place
    LOOP
        l := lh_find(k, n);
        occupancy := lh_occupancy(l, name, inc, tenant, n);
        IF occupancy = 'free' OR occupancy = 'lapsed' THEN
            next_token := lh_token_after(coalesce(l.token, lh_last_token(k)), n);
            IF next_token IS NULL THEN
                answer := lh_refuse(k, '{"cause":"tokens_exhausted"}');
                RETURN;
            END IF;
            IF lh_over_limit(r, 1, keys ->> 0, n) THEN
                answer := lh_refuse(k, json_build_object('cause', 'limit', 'limit', r -> 'limit'));
                RETURN;
            END IF;
            answer := lh_granted(lh_lease_json(lh_take(k, next_token, occupancy, r, n))::text, true);
            RETURN;
        END IF;
    END LOOP;
    held := true;
    answer := lh_refuse_held(lh_find(keys ->> 0, n), n);
END $$;

-- Grants or refuses now, without waiting. A refusal changes nothing.
CREATE FUNCTION lh_decide(r jsonb, n bigint, OUT held boolean, OUT answer text)
LANGUAGE plpgsql AS $$
BEGIN
    IF r -> 'want' ? 'any' THEN
        SELECT a.held, a.answer INTO held, answer FROM lh_decide_any(r, n) a;
    ELSE
        SELECT a.held, a.answer INTO held, answer FROM lh_decide_all(r, n) a;
    END IF;
END $$;

-- The keys of a request, in order.
CREATE FUNCTION lh_keys(r jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(r -> 'want' -> 'all', r -> 'want' -> 'any');
END $$;

-- A lapsed lease that someone waits for goes to that waiter, not to a newcomer.
CREATE FUNCTION lh_settle_waited(keys jsonb, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('leasehold.waiters') <> '0' THEN
        FOR i IN 0 .. jsonb_array_length(keys) - 1 LOOP
            IF lh_waited(keys ->> i) THEN
                PERFORM lh_settle(keys ->> i, n);
            END IF;
        END LOOP;
    END IF;
END $$;

-- Grants, refuses, or lets wait: NULL, and the ticket is the last one.
CREATE FUNCTION lh_acquire(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := lh_keys(r);
    last_key integer := jsonb_array_length(keys) - 1;
    is_held boolean;
    answered text;
    t bigint;
BEGIN
    PERFORM lh_settle_waited(keys, n);
    SELECT held, answer INTO is_held, answered FROM lh_decide(r, n);
    IF (r ->> 'wait_ms')::bigint = 0 OR NOT is_held THEN
        RETURN answered;
    END IF;
    FOR i IN 0 .. last_key LOOP
        IF (SELECT count(*) FROM lease_waiter_keys WHERE key = keys ->> i) >= {MAX_WAITERS} THEN
            RETURN lh_refuse((answered::json) -> 'refused' ->> 'key', '{"cause":"queue_full"}');
        END IF;
    END LOOP;
    t := current_setting('leasehold.ticket')::bigint + 1;
    PERFORM set_config('leasehold.ticket', t::text, true),
        set_config('leasehold.waiters', (current_setting('leasehold.waiters')::bigint + 1)::text, true);
    INSERT INTO lease_waiters (ticket, replica, runner_id, incarnation, request, since_ms, deadline_ms)
    VALUES (t, current_setting('leasehold.replica'), r -> 'holder' ->> 'name',
        r -> 'holder' ->> 'incarnation', r, n, n + (r ->> 'wait_ms')::bigint);
    INSERT INTO lease_waiter_keys (key, ticket) SELECT jsonb_array_elements_text(keys), t;
    RETURN NULL;
END $$;
