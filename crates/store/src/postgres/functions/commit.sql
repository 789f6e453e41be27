-- Records.

-- Writes or removes one record.
CREATE FUNCTION lh_write(r jsonb, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k text := r ->> 'key';
    kind text := split_part(k, ':', 1);
    new_value text := r ->> 'value';
    rev bigint;
BEGIN
    IF new_value IS NULL THEN
        DELETE FROM records WHERE key = k;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        rev := lh_next_revision();
    ELSE
        rev := lh_next_revision();
        IF kind = 'runner' THEN
            INSERT INTO runners (key, value, revision, body) VALUES (k, new_value, rev, lh_document(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSIF kind = 'camera' THEN
            INSERT INTO cameras (key, value, revision, body) VALUES (k, new_value, rev, lh_document(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSIF kind = 'zone' THEN
            INSERT INTO zones (key, value, revision, body) VALUES (k, new_value, rev, lh_document(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSIF kind = 'outbox' THEN
            INSERT INTO outbox (key, value, revision, body) VALUES (k, new_value, rev, lh_json(new_value))
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev, body = excluded.body;
        ELSE
            INSERT INTO records (key, value, revision) VALUES (k, new_value, rev)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = rev;
        END IF;
    END IF;
    INSERT INTO lease_events (revision, event_type, at_ms, key, details)
    VALUES (rev, CASE WHEN new_value IS NULL THEN 'record_removed' ELSE 'record_put' END, n, k,
        CASE WHEN r -> 'note' ? 'words' THEN jsonb_build_object('detail', r -> 'note' -> 'words')
            WHEN r -> 'note' ? 'session' THEN jsonb_build_object('cause', r -> 'note') ELSE '{}' END);
END $$;

-- Several changes that happen together or not at all.
CREATE FUNCTION lh_commit(r jsonb, n bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    item jsonb;
    actual bigint;
    answered text;
    granted json := '[]';
BEGIN
    FOR item IN SELECT jsonb_array_elements(r -> 'expect') LOOP
        actual := NULL;
        SELECT revision INTO actual FROM records WHERE key = item ->> 'key';
        IF actual IS DISTINCT FROM (item ->> 'revision')::bigint THEN
            RETURN json_build_object('Conflict', json_build_object('key', item -> 'key', 'actual', actual));
        END IF;
    END LOOP;
    IF jsonb_typeof(r -> 'acquire') = 'object' THEN
        PERFORM lh_settle_waited(lh_keys(r -> 'acquire'), n);
        SELECT answer INTO answered FROM lh_decide(r -> 'acquire', n);
        IF answered::json -> 'refused' IS NOT NULL THEN
            RETURN json_build_object('Refused', answered::json -> 'refused');
        END IF;
        granted := answered::json -> 'granted' -> 'leases';
    END IF;
    FOR item IN SELECT jsonb_array_elements(r -> 'writes') LOOP
        PERFORM lh_write(item, n);
    END LOOP;
    FOR item IN SELECT jsonb_array_elements(r -> 'release') LOOP
        PERFORM lh_release(item, n);
    END LOOP;
    RETURN json_build_object('Done', json_build_object(
        'revision', current_setting('leasehold.revision')::bigint, 'leases', granted));
END $$;
