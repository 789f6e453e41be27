-- The scripts of the Redis store: Redis' own globals, and what `keys.rs`, `layout.rs` and `page.rs` put in front.
std = "lua51"
max_line_length = 120
read_globals = {
  "ARGV", "cjson", "cmsgpack", "redis",
  -- keys
  "META", "EVENTS", "LAST", "SEALS", "SIDE", "EXPIRY", "INDEX", "HOLDER", "IDLE", "QUEUE", "WAITING",
  "DEADLINES", "ANSWERS", "ALIVE", "RECORDS", "RECORD_IDS", "RECORD_KINDS", "TARGETS", "TARGET", "LEADER",
  "NEWS", "WAKE", "PARKED", "names",
  -- settings and numbers
  "RENEWALS", "HISTORY", "IDLE_KEYS", "IDLE_MS", "LEADER_TTL", "STALE", "FOREIGN_LOOK", "MAX_WAITERS",
  "MAX_TOKEN", "REPLICA_KEPT_MS", "MOST_VALUES", "MOST_KEYS",
  -- sentences
  "WAITER_WENT_AWAY", "KEY_TAKEN", "KEY_REMOVED",
  -- layouts
  "unpack_facts", "pack_facts", "owner_facts", "lease_id", "OWNER", "TERMS", "RENEWABLE", "ENDED_TOKEN",
  "AT_ANY", "AT_NAME", "AT_INCARNATION", "AT_TTL", "AT_POLICY", "AT_GRACE", "AT_DEATH", "AT_LABELS",
  "AT_WAIT", "AT_LIMIT", "AT_FORCE", "AT_COUNT", "AT_FIRST",
}
