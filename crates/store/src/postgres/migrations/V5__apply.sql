-- The one entry: a batch of commands is decided in one statement, which commits by itself. Nobody
-- holds a lock across a round trip, so a replica that is paused in between stops nobody else.

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
            AND NOT EXISTS (SELECT FROM leases WHERE leases.key = queue.key AND status = 'active')
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

-- Expires what lapsed, at most `most` leases (L12): what lapsed first expires first, and at the same
-- moment in the order of keys, as in the kernel. Says how many, and when to look next.
CREATE FUNCTION lh_tick(most integer, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    k text;
    w lease_waiters;
    rev bigint := current_setting('leasehold.revision')::bigint;
    expired bigint := 0;
    next_timer bigint;
BEGIN
    -- Renewed since: look again when it would lapse now.
    UPDATE leases SET timer_ms = expires_ms + withheld_ms
    WHERE lease_id IN (SELECT lease_id FROM leases
            WHERE status = 'active' AND timer_ms <= n AND expires_ms + withheld_ms > n
            ORDER BY timer_ms LIMIT most)
        AND status = 'active' AND expires_ms + withheld_ms > n;
    IF current_setting('leasehold.waiters') = '0' THEN
        -- Nobody to serve in between: all at once.
        WITH due AS (
            SELECT lease_id FROM leases
            WHERE status = 'active' AND timer_ms <= n AND expires_ms + withheld_ms <= n
            ORDER BY timer_ms LIMIT most FOR UPDATE
        ), ended AS (
            UPDATE leases gone SET status = 'expired', ended_ms = n, loss = 'expired'
            FROM due WHERE gone.lease_id = due.lease_id RETURNING gone.*
        ), fenced AS (
            INSERT INTO lease_fences (key, token, lease_id, loss, ended_ms)
            SELECT key, token, lease_id, 'expired', n FROM ended
            ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id,
                loss = excluded.loss, why = NULL, ended_ms = excluded.ended_ms
        ), told AS (
            INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id,
                incarnation, expires_ms, labels)
            SELECT rev + row_number() OVER (ORDER BY expires_ms + withheld_ms, key), lease_id, 'lease_expired', n,
                key, token, runner_id, incarnation, expires_ms, labels FROM ended
        )
        SELECT count(*) INTO expired FROM ended;
        PERFORM set_config('leasehold.revision', (rev + expired)::text, true);
    ELSE
        FOR k IN
            SELECT key FROM (
                SELECT key, expires_ms + withheld_ms AS lapsed FROM leases
                WHERE status = 'active' AND timer_ms <= n AND expires_ms + withheld_ms <= n
                ORDER BY timer_ms LIMIT most
            ) due ORDER BY lapsed, key
        LOOP
            PERFORM lh_settle(k, n);
            expired := expired + 1;
        END LOOP;
        PERFORM lh_wake(NULL, n);
    END IF;
    -- Replicas that are gone fetch no answers: what those granted is free again.
    FOR w IN
        DELETE FROM lease_waiters WHERE answer IS NOT NULL AND replica NOT IN
            (SELECT replica FROM lease_replicas WHERE seen_ms > n - 30000)
        RETURNING *
    LOOP
        PERFORM lh_give_back(w.answer, n);
    END LOOP;
    SELECT min(timer_ms) INTO next_timer FROM leases WHERE status = 'active';
    PERFORM set_config('leasehold.timer', coalesce(next_timer, 9007199254740991)::text, true);
    RETURN json_build_object('expired', expired, 'next', next_timer);
END $$;

-- Forgets what is too old, a part at a time. Tokens of keys that nobody used for long go into the
-- floor (L3). `from` is where the last part of the fences ended; the answer says where this one did.
CREATE FUNCTION lh_forget(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    most integer := (r ->> 'most')::integer;
    newest bigint := current_setting('leasehold.revision')::bigint;
    events bigint;
    ended bigint;
    last_fence text;
    top bigint;
    first_kept lease_events;
BEGIN
    DELETE FROM lease_events
    WHERE revision IN (SELECT revision FROM lease_events ORDER BY revision LIMIT most)
        AND (at_ms < n - (r ->> 'history_ms')::bigint
            OR revision <= newest - (r ->> 'history_events')::bigint);
    GET DIAGNOSTICS events = ROW_COUNT;
    SELECT * INTO first_kept FROM lease_events ORDER BY revision LIMIT 1;
    PERFORM set_config('leasehold.oldest', coalesce(first_kept.revision, newest + 1)::text, true);
    DELETE FROM leases WHERE lease_id IN (SELECT lease_id FROM leases
        WHERE status <> 'active' AND ended_ms < coalesce(first_kept.at_ms, n)
        ORDER BY ended_ms LIMIT most);
    GET DIAGNOSTICS ended = ROW_COUNT;
    WITH part AS (
        SELECT key FROM lease_fences WHERE key > r ->> 'from' ORDER BY key LIMIT most
    ), gone AS (
        DELETE FROM lease_fences WHERE key IN (SELECT key FROM part)
            AND ended_ms < n - (r ->> 'idle_ms')::bigint
        RETURNING token
    )
    SELECT (SELECT max(key) FROM part), (SELECT max(token) FROM gone) INTO last_fence, top;
    PERFORM set_config('leasehold.floor',
        greatest(top, current_setting('leasehold.floor')::bigint)::text, true);
    DELETE FROM lease_replicas WHERE seen_ms < n - 3600000
        AND replica NOT IN (SELECT replica FROM lease_waiters);
    RETURN json_build_object('events', events, 'leases', ended, 'from', coalesce(last_fence, ''));
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
-- of the commands, then (item -2) the answers for waits of this replica, which are gone with this.
CREATE FUNCTION lh_apply(me text, waiting boolean, watching boolean, renewals text, commands jsonb)
RETURNS TABLE (item integer, number bigint, body text) LANGUAGE plpgsql AS $$
DECLARE
    c lease_clock;
    n bigint;
    after lease_clock;
    letters text;
    outcomes text[] := '{}';
BEGIN
    SELECT * INTO c FROM lease_clock FOR UPDATE;
    n := greatest(c.at_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    PERFORM set_config('leasehold.revision', c.revision::text, true),
        set_config('leasehold.floor', c.floor::text, true),
        set_config('leasehold.oldest', c.oldest::text, true),
        set_config('leasehold.waiters', c.waiters::text, true),
        set_config('leasehold.ticket', c.ticket::text, true),
        set_config('leasehold.timer', c.timer_ms::text, true),
        set_config('leasehold.replica', me, true),
        set_config('leasehold.renewals', renewals, true),
        set_config('leasehold.notify', '', true);
    IF waiting THEN
        INSERT INTO lease_replicas VALUES (me, n)
        ON CONFLICT (replica) DO UPDATE SET seen_ms = n WHERE lease_replicas.seen_ms < n - 500;
    END IF;
    FOR i IN 0 .. jsonb_array_length(commands) - 1 LOOP
        outcomes[i] := lh_command(commands -> i, n);
    END LOOP;
    after := c;
    after.revision := current_setting('leasehold.revision')::bigint;
    after.at_ms := n;
    after.floor := current_setting('leasehold.floor')::bigint;
    after.oldest := current_setting('leasehold.oldest')::bigint;
    after.waiters := current_setting('leasehold.waiters')::bigint;
    after.ticket := current_setting('leasehold.ticket')::bigint;
    after.timer_ms := current_setting('leasehold.timer')::bigint;
    IF watching THEN
        after.watched_ms := greatest(c.watched_ms, n + 30000);
    END IF;
    -- At most one notification per batch, and none that nobody waits for.
    letters := current_setting('leasehold.notify');
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
    FOR i IN 0 .. jsonb_array_length(commands) - 1 LOOP
        item := i; body := outcomes[i];
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
