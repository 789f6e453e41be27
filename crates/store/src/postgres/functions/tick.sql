-- Time passed (L12).

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
    WITH later AS MATERIALIZED (
        SELECT lease_id FROM leases
        WHERE ended_ms IS NULL AND timer_ms <= n AND expires_ms + withheld_ms > n
        ORDER BY timer_ms LIMIT most
    )
    UPDATE leases kept SET timer_ms = kept.expires_ms + kept.withheld_ms
    FROM later WHERE kept.lease_id = later.lease_id;
    IF current_setting('leasehold.waiters') = '0' THEN
        -- Nobody to serve in between: all in one statement.
        WITH due AS MATERIALIZED (
            SELECT lease_id FROM leases
            WHERE ended_ms IS NULL AND timer_ms <= n AND expires_ms + withheld_ms <= n
            ORDER BY timer_ms LIMIT most FOR UPDATE
        ), ended AS (
            UPDATE leases gone SET status = 'expired', ended_ms = n, loss = 'expired'
            FROM due WHERE gone.lease_id = due.lease_id RETURNING gone.*
        ), fenced AS (
            INSERT INTO lease_fences (key, token, lease_id, loss, ended_ms)
            SELECT key, token, lease_id, 'expired', n FROM ended
            ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id,
                loss = excluded.loss, why = NULL, ended_ms = excluded.ended_ms
        ), logged AS (
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
                WHERE ended_ms IS NULL AND timer_ms <= n AND expires_ms + withheld_ms <= n
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
            (SELECT replica FROM lease_replicas WHERE seen_ms > n - {REPLICA_GONE_MS})
        RETURNING *
    LOOP
        PERFORM lh_give_back(w.answer, n);
    END LOOP;
    SELECT min(timer_ms) INTO next_timer FROM leases WHERE ended_ms IS NULL;
    PERFORM set_config('leasehold.timer', coalesce(next_timer, {MAX_TOKEN})::text, true);
    RETURN json_build_object('expired', expired, 'next', next_timer);
END $$;
