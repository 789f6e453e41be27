-- The one entry: a batch of commands is decided in one statement, which commits by itself. Nobody
-- holds a lock across a round trip, so a replica that is paused in between stops nobody else.
--
-- The common commands of a batch are decided together: an acquire of one key that is free, and a
-- release of a live lease that nobody waits for. One statement for all acquires and one for all
-- releases, whatever their number; everything else is decided one by one. A lone one takes statements
-- without sets, which would cost it a fifth more.

-- An acquire of a key that is free: the grant's token and when to look after it, or NULL.
CREATE FUNCTION lh_acquire_free(r jsonb, last_revision bigint, least_token bigint, n bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    rev bigint := last_revision + 1;
    id uuid := {LEASE_ID};
    k text := r -> 'want' -> 'all' ->> 0;
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
    outage jsonb := r -> 'on_outage';
    facts jsonb := r -> 'labels';
    expires bigint := n + (r ->> 'ttl')::bigint;
    withheld bigint := CASE WHEN outage ->> 'policy' = 'hold' THEN (outage ->> 'grace_ms')::bigint ELSE 0 END;
    next_token bigint := greatest((SELECT token FROM lease_fences WHERE key = k) + 1, least_token);
BEGIN
    IF next_token > {MAX_TOKEN} THEN
        RETURN NULL;
    END IF;
    INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, withheld_ms,
        release_on_death, acquired_ms, expires_ms, status, labels, timer_ms)
    VALUES (id, k, name, inc, next_token, expires - n, outage, withheld,
        (r ->> 'release_on_death')::boolean, n, expires, 'active', facts, expires + withheld)
    ON CONFLICT (key) WHERE status = 'active' DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id,
        incarnation, expires_ms, labels)
    VALUES (rev, id, 'lease_acquired', n, k, next_token, name, inc, expires, facts);
    RETURN ARRAY[next_token, expires + withheld];
END $$;

-- A release of a live lease that nobody waits for: whether it was one.
CREATE FUNCTION lh_release_live(r jsonb, last_revision bigint, waiters bigint, n bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    k text := r ->> 'key';
    held bigint := (r ->> 'token')::bigint;
    name text := r -> 'holder' ->> 'name';
    inc text := r -> 'holder' ->> 'incarnation';
BEGIN
    IF waiters > 0 AND EXISTS (SELECT FROM lease_waiter_keys WHERE key = k) THEN
        RETURN false;
    END IF;
    WITH gone AS (
        UPDATE leases SET status = 'released', ended_ms = n, loss = 'released'
        WHERE key = k AND status = 'active' AND token = held AND runner_id = name AND incarnation = inc
            AND expires_ms + withheld_ms > n
        RETURNING lease_id, expires_ms, labels
    ), fenced AS (
        INSERT INTO lease_fences (key, token, lease_id, loss, ended_ms)
        SELECT k, held, lease_id, 'released', n FROM gone
        ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id,
            loss = excluded.loss, why = NULL, ended_ms = excluded.ended_ms
    )
    INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id,
        incarnation, expires_ms, labels)
    SELECT last_revision + 1, lease_id, 'lease_released', n, k, held, name, inc, expires_ms, labels
    FROM gone;
    RETURN FOUND;
END $$;

CREATE FUNCTION lh_command(c jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF c ? 'acquire' THEN
        RETURN lh_acquire(c -> 'acquire', n);
    ELSIF c ? 'release' THEN
        RETURN lh_release(c -> 'release', n);
    ELSIF c ? 'renew' THEN
        RETURN lh_renew(c -> 'renew', n);
    ELSIF c ? 'commit' THEN
        RETURN lh_commit(c -> 'commit', n);
    ELSIF c ? 'handoff' THEN
        RETURN lh_handoff(c -> 'handoff', n);
    ELSIF c ? 'revoke' THEN
        RETURN lh_revoke(c -> 'revoke', n);
    ELSIF c ? 'depart' THEN
        RETURN lh_depart(c -> 'depart', n);
    ELSIF c ? 'abandon' THEN
        RETURN lh_abandon((c ->> 'abandon')::bigint, n);
    ELSIF c ? 'wake' THEN
        PERFORM lh_wake(current_setting('leasehold.replica'), n);
        RETURN 'null';
    ELSIF c ? 'tick' THEN
        RETURN lh_tick((c ->> 'tick')::integer, n);
    ELSIF c ? 'forget' THEN
        RETURN lh_forget(c -> 'forget', n);
    END IF;
    RAISE EXCEPTION 'no such command: %', c;
END $$;

-- Decides a batch. Rows: first the clock (item -1: time and revision), then the outcomes in the order
-- of the commands, then (item -2) the answers for waits of this replica, which are gone with this. An
-- outcome is JSON; without one, the command waits, and the number is its ticket.
--
-- `acquires` and `releases` are the places of commands for the fast path, each about one key and no two
-- about the same: they were sent by different callers at the same time, so their order is ours to choose.
-- A grant of the fast path is a number, its token, and its revision: the asker knows the rest.
CREATE FUNCTION lh_apply(me text, waiting boolean, watching boolean, renewals text, commands jsonb,
    acquires integer[], releases integer[])
RETURNS TABLE (item integer, number bigint, body text) LANGUAGE plpgsql AS $$
DECLARE
    c lease_clock;
    after lease_clock;
    n bigint;
    last_item integer := jsonb_array_length(commands) - 1;
    places integer[];
    tokens bigint[];
    lone boolean := cardinality(acquires) + cardinality(releases) = 1;
    least_token bigint;
    granted bigint[];
    earliest bigint;
    outcomes text[] := '{}';
    numbers bigint[] := '{}';
    one_by_one boolean := false;
    letters text := '';
BEGIN
    SELECT * INTO c FROM lease_clock FOR UPDATE;
    n := greatest(c.at_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    after := c;
    after.at_ms := n;
    least_token := greatest(c.floor + 1, n);
    IF waiting THEN
        INSERT INTO lease_replicas VALUES (me, n)
        ON CONFLICT (replica) DO UPDATE SET seen_ms = n WHERE lease_replicas.seen_ms < n - {SEEN_INTERVAL_MS};
    END IF;
    IF cardinality(acquires) > 0 AND lone THEN
        granted := lh_acquire_free(commands -> acquires[1] -> 'acquire', c.revision, least_token, n);
        IF granted IS NOT NULL THEN
            after.revision := after.revision + 1;
            after.timer_ms := least(after.timer_ms, granted[2]);
            outcomes[acquires[1]] := after.revision;
            numbers[acquires[1]] := granted[1];
        END IF;
    ELSIF cardinality(acquires) > 0 THEN
        WITH asked AS (
            SELECT place, command -> 'acquire' AS r, command -> 'acquire' -> 'want' -> 'all' ->> 0 AS k
            FROM unnest(acquires) AS place, LATERAL (SELECT commands -> place AS command) one
        ), free AS MATERIALIZED (
            SELECT place, k, r, (r ->> 'ttl')::bigint AS ttl,
                CASE WHEN r -> 'on_outage' ->> 'policy' = 'hold'
                    THEN (r -> 'on_outage' ->> 'grace_ms')::bigint ELSE 0 END AS withheld,
                greatest((SELECT token FROM lease_fences WHERE key = k) + 1, least_token) AS token,
                c.revision + row_number() OVER () AS rev
            FROM asked
            WHERE (SELECT lease_id FROM leases WHERE key = k AND status = 'active') IS NULL
                AND coalesce((SELECT token FROM lease_fences WHERE key = k), 0) < {MAX_TOKEN}
                AND c.floor < {MAX_TOKEN}
        ), granted AS (
            INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage,
                withheld_ms, release_on_death, acquired_ms, expires_ms, status, labels, timer_ms)
            SELECT {LEASE_ID}, k,
                r -> 'holder' ->> 'name', r -> 'holder' ->> 'incarnation', free.token, ttl,
                r -> 'on_outage', withheld, (r ->> 'release_on_death')::boolean, n, n + ttl, 'active',
                r -> 'labels', n + ttl + withheld
            FROM free
        ), logged AS (
            INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id,
                incarnation, expires_ms, labels)
            SELECT rev, {LEASE_ID},
                'lease_acquired', n, k, free.token, r -> 'holder' ->> 'name',
                r -> 'holder' ->> 'incarnation', n + ttl, r -> 'labels'
            FROM free
        )
        SELECT array_agg(place ORDER BY rev), array_agg(free.token ORDER BY rev), min(n + ttl + withheld)
        INTO places, tokens, earliest FROM free;
        FOR i IN 1 .. coalesce(cardinality(places), 0) LOOP
            after.revision := after.revision + 1;
            outcomes[places[i]] := after.revision;
            numbers[places[i]] := tokens[i];
        END LOOP;
        after.timer_ms := least(after.timer_ms, earliest);
    END IF;
    IF cardinality(releases) > 0 AND lone THEN
        IF lh_release_live(commands -> releases[1] -> 'release', after.revision, c.waiters, n) THEN
            after.revision := after.revision + 1;
            outcomes[releases[1]] := 'true';
        END IF;
    ELSIF cardinality(releases) > 0 THEN
        WITH asked AS MATERIALIZED (
            SELECT place, r ->> 'key' AS k, (r ->> 'token')::bigint AS held,
                r -> 'holder' ->> 'name' AS name, r -> 'holder' ->> 'incarnation' AS inc,
                (SELECT lease_id FROM leases WHERE key = r ->> 'key' AND status = 'active') AS lease
            FROM unnest(releases) AS place, LATERAL (SELECT commands -> place -> 'release' AS r) one
        ), gone AS (
            UPDATE leases SET status = 'released', ended_ms = n, loss = 'released' FROM asked
            WHERE lease_id = lease AND token = held AND runner_id = name AND incarnation = inc
                AND expires_ms + withheld_ms > n
                AND (c.waiters = 0 OR NOT EXISTS (SELECT FROM lease_waiter_keys queue WHERE queue.key = k))
            RETURNING place, lease_id, key, token, runner_id, incarnation, expires_ms, labels
        ), fenced AS (
            INSERT INTO lease_fences (key, token, lease_id, loss, ended_ms)
            SELECT key, token, lease_id, 'released', n FROM gone
            ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id,
                loss = excluded.loss, why = NULL, ended_ms = excluded.ended_ms
        ), logged AS (
            INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id,
                incarnation, expires_ms, labels)
            SELECT after.revision + row_number() OVER (), lease_id, 'lease_released', n, key, token,
                runner_id, incarnation, expires_ms, labels FROM gone
        )
        SELECT array_agg(place) INTO places FROM gone;
        FOR i IN 1 .. coalesce(cardinality(places), 0) LOOP
            outcomes[places[i]] := 'true';
        END LOOP;
        after.revision := after.revision + coalesce(cardinality(places), 0);
    END IF;
    FOR i IN 0 .. last_item LOOP
        IF outcomes[i] IS NULL THEN
            IF NOT one_by_one THEN
                one_by_one := true;
                PERFORM set_config('leasehold.revision', after.revision::text, true),
                    set_config('leasehold.floor', c.floor::text, true),
                    set_config('leasehold.oldest', c.oldest::text, true),
                    set_config('leasehold.waiters', c.waiters::text, true),
                    set_config('leasehold.ticket', c.ticket::text, true),
                    set_config('leasehold.timer', after.timer_ms::text, true),
                    set_config('leasehold.replica', me, true),
                    set_config('leasehold.renewals', renewals, true),
                    set_config('leasehold.notify', '', true);
            END IF;
            outcomes[i] := lh_command(commands -> i, n);
            IF outcomes[i] IS NULL THEN
                numbers[i] := current_setting('leasehold.ticket')::bigint;
            END IF;
        END IF;
    END LOOP;
    IF one_by_one THEN
        after.revision := current_setting('leasehold.revision')::bigint;
        after.floor := current_setting('leasehold.floor')::bigint;
        after.oldest := current_setting('leasehold.oldest')::bigint;
        after.waiters := current_setting('leasehold.waiters')::bigint;
        after.ticket := current_setting('leasehold.ticket')::bigint;
        after.timer_ms := current_setting('leasehold.timer')::bigint;
        letters := current_setting('leasehold.notify');
    END IF;
    IF watching THEN
        after.watched_ms := greatest(c.watched_ms, n + {WATCHED_MS});
    END IF;
    -- At most one notification per batch, and none that nobody waits for.
    IF after.revision > c.revision AND c.watched_ms > n THEN
        letters := letters || 'e';
    END IF;
    IF after.timer_ms < c.timer_ms THEN
        letters := letters || 't';
    END IF;
    IF letters <> '' THEN
        PERFORM pg_notify('leasehold_' || left(current_schema(), 48), left(letters, 8));
    END IF;
    UPDATE lease_clock SET revision = after.revision, at_ms = n, floor = after.floor,
        oldest = after.oldest, waiters = after.waiters, ticket = after.ticket,
        timer_ms = after.timer_ms, watched_ms = after.watched_ms;
    item := -1; number := n; body := after.revision;
    RETURN NEXT;
    FOR i IN 0 .. last_item LOOP
        item := i; number := numbers[i]; body := outcomes[i];
        RETURN NEXT;
    END LOOP;
    IF waiting THEN
        item := -2;
        FOR number, body IN
            DELETE FROM lease_waiters WHERE replica = me AND answer IS NOT NULL
            RETURNING ticket, answer
        LOOP
            RETURN NEXT;
        END LOOP;
    END IF;
END $$;
