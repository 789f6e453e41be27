-- Granting, refusing and waiting (L1–L6), and what follows an end: the first waiter is served.

CREATE FUNCTION lh_refuse(k text, cause json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN json_build_object('refused', json_build_object('cause', cause, 'key', k));
END $$;

-- Somebody has it. The only refusal that a waiter waits through; see lh_is_held.
CREATE FUNCTION lh_refuse_held(l leases, n bigint) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN lh_refuse(l.key, json_build_object('cause', 'held',
        'holder', lh_holder_json(l.runner_id, l.incarnation), 'token', l.token,
        'left_ms', greatest(l.expires_ms + l.withheld_ms - n, 0), 'labels', l.labels));
END $$;

CREATE FUNCTION lh_is_held(answer text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN answer LIKE '{"refused" : {"cause" : {"cause" : "held"%';
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
CREATE FUNCTION lh_footing(l leases, name text, inc text, tenant text, n bigint) RETURNS text
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

-- Whether `new` more leases would be more than the holder may have of this kind.
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
    WHERE status = 'active' AND runner_id = r -> 'holder' ->> 'name'
        AND kind = split_part(first_key, ':', 1) AND expires_ms + withheld_ms > n;
    RETURN held + new > most;
END $$;

-- A new grant, over whatever lapsed lease is still there, or over a live one by force.
CREATE FUNCTION lh_take(k text, next_token bigint, footing text, r jsonb, n bigint) RETURNS leases
LANGUAGE plpgsql AS $$
DECLARE
    l leases;
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    ttl bigint := (r ->> 'ttl')::bigint;
BEGIN
    IF footing <> 'free' THEN
        l := lh_find(k, n);
        IF l.runner_id = name AND l.incarnation = inc
            AND l.tenant_id IS NOT DISTINCT FROM r -> 'labels' ->> 'tenant' AND lh_lapsed(l, n) THEN
            l := lh_end(l, n, 'lease_expired', 'expired', 'expired', NULL, NULL);
        ELSE
            l := lh_end(l, n, 'lease_stolen', 'expired', 'stolen', NULL, r ->> 'force');
        END IF;
    END IF;
    RETURN lh_grant(k, next_token, name, inc, ttl, r -> 'on_outage',
        (r ->> 'release_on_death')::boolean, r -> 'labels', n + ttl, NULL, n);
END $$;

CREATE FUNCTION lh_granted(leases text, fresh boolean) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN '{"granted":{"fresh":' || fresh || ',"leases":[' || leases || ']}}';
END $$;

CREATE FUNCTION lh_decide_all(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := r -> 'want' -> 'all';
    last_key integer := jsonb_array_length(keys) - 1;
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    tenant text := r -> 'labels' ->> 'tenant';
    k text;
    l leases;
    footing text;
    footings text[];
    next_token bigint;
    tokens bigint[];
    new integer := 0;
    answers text := '';
BEGIN
    FOR i IN 0 .. last_key LOOP
        k := keys ->> i;
        l := lh_find(k, n);
        footing := lh_footing(l, name, inc, tenant, n);
        next_token := 0;
        IF footing <> 'own' THEN
            IF footing = 'held' AND r ->> 'force' IS NULL THEN
                RETURN lh_refuse_held(l, n);
            END IF;
            new := new + 1;
            next_token := lh_token_after(coalesce(l.token, lh_last_token(k)), n);
            IF next_token IS NULL THEN
                RETURN lh_refuse(k, '{"cause":"tokens_exhausted"}');
            END IF;
        END IF;
        footings[i] := footing;
        tokens[i] := next_token;
    END LOOP;
    IF lh_over_limit(r, new, keys ->> 0, n) THEN
        RETURN lh_refuse(keys ->> 0, json_build_object('cause', 'limit', 'limit', r -> 'limit'));
    END IF;
    FOR i IN 0 .. last_key LOOP
        k := keys ->> i;
        IF footings[i] = 'own' THEN
            l := lh_extend(lh_find(k, n), n, (r ->> 'ttl')::bigint, NULL);
        ELSE
            l := lh_take(k, tokens[i], footings[i], r, n);
        END IF;
        answers := answers || CASE WHEN i > 0 THEN ',' ELSE '' END || lh_lease_json(l)::text;
    END LOOP;
    RETURN lh_granted(answers, new > 0);
END $$;

CREATE FUNCTION lh_decide_any(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := r -> 'want' -> 'any';
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    tenant text := r -> 'labels' ->> 'tenant';
    k text;
    l leases;
    footing text;
    next_token bigint;
BEGIN
    FOR i IN 0 .. jsonb_array_length(keys) - 1 LOOP
        k := keys ->> i;
        l := lh_find(k, n);
        footing := lh_footing(l, name, inc, tenant, n);
        IF footing = 'free' OR footing = 'lapsed' THEN
            next_token := lh_token_after(coalesce(l.token, lh_last_token(k)), n);
            IF next_token IS NULL THEN
                RETURN lh_refuse(k, '{"cause":"tokens_exhausted"}');
            END IF;
            IF lh_over_limit(r, 1, keys ->> 0, n) THEN
                RETURN lh_refuse(k, json_build_object('cause', 'limit', 'limit', r -> 'limit'));
            END IF;
            RETURN lh_granted(lh_lease_json(lh_take(k, next_token, footing, r, n))::text, true);
        END IF;
    END LOOP;
    RETURN lh_refuse_held(lh_find(keys ->> 0, n), n);
END $$;

-- Grants or refuses now, without waiting. A refusal changes nothing.
CREATE FUNCTION lh_decide(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF r -> 'want' ? 'any' THEN
        RETURN lh_decide_any(r, n);
    END IF;
    RETURN lh_decide_all(r, n);
END $$;

-- The keys of a request, in order.
CREATE FUNCTION lh_keys(r jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(r -> 'want' -> 'all', r -> 'want' -> 'any');
END $$;

-- A wait leaves every queue.
CREATE FUNCTION lh_leave(t bigint, r jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lease_waiter_keys
    WHERE ticket = t AND key IN (SELECT jsonb_array_elements_text(lh_keys(r)));
    PERFORM set_config('leasehold.waiters',
        (current_setting('leasehold.waiters')::bigint - 1)::text, true);
END $$;

-- A wait is over: its answer stays until its replica has fetched it.
CREATE FUNCTION lh_answer(w lease_waiters, answered text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lh_leave(w.ticket, w.request);
    UPDATE lease_waiters SET answer = answered WHERE ticket = w.ticket;
    IF w.replica <> current_setting('leasehold.replica') THEN
        PERFORM set_config('leasehold.notify', current_setting('leasehold.notify') || 'w', true);
    END IF;
END $$;

-- The key is free: the first waiter that can have all it wants gets it. One that could not be served
-- yet is passed over, and so is one whose replica has not shown itself for ten seconds. One whose time
-- is over waits until it is told so: it was first.
CREATE FUNCTION lh_serve(k text, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    w lease_waiters;
    answered text;
BEGIN
    IF current_setting('leasehold.waiters') = '0' THEN
        RETURN;
    END IF;
    FOR w IN
        SELECT waiting.* FROM lease_waiter_keys queue
        JOIN lease_waiters waiting ON waiting.ticket = queue.ticket
        JOIN lease_replicas alive ON alive.replica = waiting.replica
        WHERE queue.key = k AND alive.seen_ms > n - 10000
        ORDER BY queue.ticket
    LOOP
        EXIT WHEN EXISTS (SELECT FROM leases WHERE key = k AND status = 'active');
        answered := lh_decide(w.request, n);
        IF NOT lh_is_held(answered) THEN
            PERFORM lh_answer(w, answered);
        END IF;
    END LOOP;
END $$;

-- A wait ends before its time and without a grant: the waiter learns who has the key.
CREATE FUNCTION lh_give_up(w lease_waiters, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := lh_keys(w.request);
    -- A slot of a pool is not free for the one that has it (L5).
    standing text[] := CASE WHEN w.request -> 'want' ? 'any' THEN '{held,own}' ELSE '{held}' END;
    answered text;
    l leases;
BEGIN
    -- It counts as gone already when its keys are looked at.
    DELETE FROM lease_waiter_keys WHERE ticket = w.ticket;
    FOR i IN 0 .. jsonb_array_length(keys) - 1 LOOP
        l := lh_find(keys ->> i, n);
        IF lh_footing(l, w.runner_id, w.incarnation,
            w.request -> 'labels' ->> 'tenant', n) = ANY (standing) THEN
            answered := lh_refuse_held(l, n);
            EXIT;
        END IF;
    END LOOP;
    PERFORM lh_answer(w, coalesce(answered, lh_refuse(keys ->> 0, '{"cause":"queue_full"}')));
END $$;

-- The time of a wait is over: it gets what is free at this very moment, or learns why not. Nothing is
-- granted to a replica that has not shown itself for ten seconds.
CREATE FUNCTION lh_conclude(w lease_waiters, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM lease_replicas
            WHERE replica = w.replica AND seen_ms > n - 10000) THEN
        PERFORM lh_give_up(w, n);
        RETURN;
    END IF;
    DELETE FROM lease_waiter_keys WHERE ticket = w.ticket;
    PERFORM lh_answer(w, lh_decide(w.request, n));
END $$;

-- Expires a lease, and serves whoever waits.
CREATE FUNCTION lh_expire(l leases, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    l := lh_end(l, n, 'lease_expired', 'expired', 'expired', NULL, NULL);
    PERFORM lh_serve(l.key, n);
END $$;

-- Expires the lease of a key if it has lapsed, and says whether it did.
CREATE FUNCTION lh_settle(k text, n bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE l leases := lh_find(k, n);
BEGIN
    IF lh_lapsed(l, n) THEN
        PERFORM lh_expire(l, n);
        RETURN true;
    END IF;
    RETURN false;
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

CREATE FUNCTION lh_acquire(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys jsonb := lh_keys(r);
    last_key integer := jsonb_array_length(keys) - 1;
    answered text;
    t bigint;
BEGIN
    PERFORM lh_settle_waited(keys, n);
    answered := lh_decide(r, n);
    IF (r ->> 'wait_ms')::bigint = 0 OR NOT lh_is_held(answered) THEN
        RETURN answered;
    END IF;
    FOR i IN 0 .. last_key LOOP
        IF (SELECT count(*) FROM lease_waiter_keys WHERE key = keys ->> i) >= 4096 THEN
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
    RETURN '{"waiting":' || t || '}';
END $$;
