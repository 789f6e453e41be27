-- Records. A value is kept behind its revision and a blank. Records of kind `target` are the plain
-- keys that other programs write too: their revision is ours only as long as their value is.
local function record_of(key)
  local colon = find(key, ':', 1, true)
  local kind, id = sub(key, 1, colon - 1), sub(key, colon + 1)
  if kind == 'target' then
    local value = redis.pcall('GET', TARGET .. id)
    if not value or type(value) == 'table' then return nil end
    local digest = redis.sha1hex(value)
    local ours = call('HGET', TARGETS, id)
    if ours and sub(ours, 1, 40) == digest then return tonumber(sub(ours, 42)), value end
    -- Below every revision of ours, and different for every text.
    return tonumber(sub(digest, 1, 12), 16), value
  end
  local kept = call('HGET', RECORDS .. kind, id)
  if not kept then return nil end
  local blank = find(kept, ' ', 1, true)
  return tonumber(sub(kept, 1, blank - 1)), sub(kept, blank + 1)
end
