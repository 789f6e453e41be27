-- A holder's end is known (L15).
CREATE FUNCTION lh_depart(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    how text := CASE WHEN r ? 'died' THEN 'died' WHEN r ? 'left' THEN 'left' ELSE 'succeeded' END;
    name text := r -> how ->> 'name';
    inc text := r -> how ->> 'incarnation';
    details jsonb := jsonb_build_object('cause', CASE how WHEN 'died' THEN 'holder_died'
        WHEN 'left' THEN 'holder_left' ELSE 'holder_restarted' END);
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
        SELECT * FROM leases WHERE loss IS NULL AND runner_id = name
            AND (incarnation = inc) = (how <> 'succeeded') AND (release_on_death OR how <> 'died')
        ORDER BY key FOR UPDATE
    LOOP
        IF lh_lapsed(l, n) THEN
            PERFORM lh_expire(l, n);
        ELSE
            l := lh_end(l, n, 'lease_released', 'released', 'released', NULL, details);
            answers := answers || lh_lease_json(l)::text;
            PERFORM lh_serve(l.key, n);
        END IF;
    END LOOP;
    RETURN '[' || array_to_string(answers, ',') || ']';
END $$;
