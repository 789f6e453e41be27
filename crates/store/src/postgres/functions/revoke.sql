-- Taking away (L17).

CREATE FUNCTION lh_revoke(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    l leases;
    reason text := r ->> 'reason';
BEGIN
    SELECT * INTO l FROM leases WHERE lease_id = (r ->> 'id')::uuid AND status = 'active' FOR UPDATE;
    IF l.lease_id IS NULL THEN
        RETURN 'null';
    ELSIF lh_lapsed(l, n) THEN
        PERFORM lh_expire(l, n);
        RETURN 'null';
    END IF;
    l := lh_end(l, n, 'lease_revoked', 'revoked', 'revoked', reason,
        jsonb_build_object('detail', reason));
    PERFORM lh_serve(l.key, n);
    RETURN lh_lease_json(l);
END $$;
