-- The newest token that was seen of each key. Rows are never deleted.
CREATE TABLE fence (key text PRIMARY KEY, token bigint NOT NULL CHECK (token > 0));

-- Call it first in the transaction that writes. A token older than the newest is refused; otherwise
-- the row stays locked until the transaction ends, so that a newer owner's write comes after this one.
CREATE FUNCTION fence_pass(a_key text, a_token bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  passed jsonb := coalesce(nullif(current_setting('fence.passed', true), ''), '{}');
BEGIN
  INSERT INTO fence AS f (key, token) VALUES (a_key, a_token)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale fencing token % of %', a_token, a_key USING ERRCODE = 'LH001';
  END IF;
  -- For the trigger below; forgotten when the transaction ends.
  PERFORM set_config('fence.passed', (passed || jsonb_build_object(a_key, a_token))::text, true);
END $$;

-- For tables in which nobody may forget it: a row is inserted, changed or deleted only in a transaction
-- that passed the fence of the row's key. Its argument is the name of the column that holds the key.
CREATE FUNCTION fence_required() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  passed jsonb := coalesce(nullif(current_setting('fence.passed', true), ''), '{}');
BEGIN
  IF (TG_OP <> 'INSERT' AND (passed ? (to_jsonb(OLD) ->> TG_ARGV[0])) IS NOT TRUE)
  OR (TG_OP <> 'DELETE' AND (passed ? (to_jsonb(NEW) ->> TG_ARGV[0])) IS NOT TRUE) THEN
    RAISE EXCEPTION 'writing to % takes fence_pass() of the row''s key in the same transaction',
      TG_TABLE_NAME USING ERRCODE = 'LH002';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  RETURN NEW;
END $$;
