-- Giving back (L16).

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
