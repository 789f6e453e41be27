-- Waiting (L6), and what follows an end: the first waiter is served.

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
-- yet is passed over, and so is one whose replica has not shown itself for {STALE_MS} ms. One whose time
-- is over waits until it is answered: it was first.
CREATE FUNCTION lh_serve(k text, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    w lease_waiters;
    is_held boolean;
    answered text;
BEGIN
    IF current_setting('leasehold.waiters') = '0' THEN
        RETURN;
    END IF;
    FOR w IN
        SELECT waiting.* FROM lease_waiter_keys queue
        JOIN lease_waiters waiting ON waiting.ticket = queue.ticket
        JOIN lease_replicas alive ON alive.replica = waiting.replica
        WHERE queue.key = k AND alive.seen_ms > n - {STALE_MS}
        ORDER BY queue.ticket
    LOOP
        EXIT WHEN EXISTS (SELECT FROM leases WHERE key = k AND status = 'active');
        SELECT held, answer INTO is_held, answered FROM lh_decide(w.request, n);
        IF NOT is_held THEN
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
        IF lh_occupancy(l, w.runner_id, w.incarnation,
            w.request -> 'labels' ->> 'tenant', n) = ANY (standing) THEN
            answered := lh_refuse_held(l, n);
            EXIT;
        END IF;
    END LOOP;
    PERFORM lh_answer(w, coalesce(answered, lh_refuse(keys ->> 0, '{"cause":"queue_full"}')));
END $$;

-- The time of a wait is over: it gets what is free at this very moment, or learns why not. Nothing is
-- granted to a replica that has not shown itself for {STALE_MS} ms.
CREATE FUNCTION lh_conclude(w lease_waiters, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM lease_replicas
            WHERE replica = w.replica AND seen_ms > n - {STALE_MS}) THEN
        PERFORM lh_give_up(w, n);
        RETURN;
    END IF;
    DELETE FROM lease_waiter_keys WHERE ticket = w.ticket;
    PERFORM lh_answer(w, (SELECT answer FROM lh_decide(w.request, n)));
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

-- Gives back what a waiter was granted and never learnt of.
CREATE FUNCTION lh_give_back(answered text, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE item jsonb;
BEGIN
    FOR item IN
        SELECT jsonb_array_elements(coalesce(answered::jsonb -> 'granted' -> 'leases', '[]'))
    LOOP
        -- One that it had before the wait stays its own.
        IF item -> 'renewed_at' = 'null' THEN
            PERFORM lh_release(item, n);
        END IF;
    END LOOP;
END $$;

-- A waiter went away.
CREATE FUNCTION lh_abandon(t bigint, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE w lease_waiters;
BEGIN
    DELETE FROM lease_waiters WHERE ticket = t RETURNING * INTO w;
    IF w.ticket IS NULL THEN
        RETURN 'null';
    ELSIF w.answer IS NULL THEN
        PERFORM lh_leave(t, w.request);
    ELSE
        PERFORM lh_give_back(w.answer, n);
    END IF;
    RETURN 'null';
END $$;

-- Ends overdue waits and serves free keys, of one replica or (NULL) of all.
CREATE FUNCTION lh_wake(mine text, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    w lease_waiters;
    k text;
BEGIN
    IF current_setting('leasehold.waiters') = '0' THEN
        RETURN;
    END IF;
    FOR k IN
        SELECT DISTINCT queue.key FROM lease_waiter_keys queue
        JOIN lease_waiters waiting ON waiting.ticket = queue.ticket
        WHERE (mine IS NULL OR waiting.replica = mine)
            AND (SELECT lease_id FROM leases WHERE leases.key = queue.key AND status = 'active') IS NULL
    LOOP
        PERFORM lh_serve(k, n);
    END LOOP;
    FOR w IN
        SELECT * FROM lease_waiters WHERE answer IS NULL AND deadline_ms <= n
            AND (mine IS NULL OR replica = mine)
        ORDER BY deadline_ms, ticket
    LOOP
        PERFORM lh_conclude(w, n);
    END LOOP;
END $$;
