-- Changes records, and optionally a lease with them, in one step.
local expects, writes, releases = tonumber(arg()), {}, {}
for _ = 1, expects do
  local key, expected = arg(), arg()
  local actual = record_of(key)
  if actual ~= tonumber(expected) then return done({'C', key, actual or -1}) end
end
for place = 1, tonumber(arg()) do
  writes[place] = {key = arg(), put = arg(), value = arg(), words = arg(), cause = arg()}
end
for place = 1, tonumber(arg()) do
  releases[place] = {arg(), tonumber(arg()), arg(), arg()}
end
local leases = {}
if arg() == '1' then
  local request = read_request()
  settle_waited(request)
  local answer = decide(request)
  if answer[1] == 'R' then return done(answer) end
  leases = answer[3]
end
for _, write in ipairs(writes) do
  local key = write.key
  local colon = find(key, ':', 1, true)
  local kind, id = sub(key, 1, colon - 1), sub(key, colon + 1)
  if write.put == '1' or record_of(key) then
    revision = revision + 1
    changed = true
    local event = write.put == '1' and 'record_put' or 'record_removed'
    append(key, 'event', event, 'at', now, 'key', key, 'detail', write.words,
      'cause', write.cause)
    announce(event, {key = key}, write.words, write.cause)
    if kind == 'target' then
      if write.put == '1' then
        call('SET', TARGET .. id, write.value)
        call('HSET', TARGETS, id, redis.sha1hex(write.value) .. ' ' .. text(revision))
      else
        call('DEL', TARGET .. id)
        call('HDEL', TARGETS, id)
      end
    elseif write.put == '1' then
      call('HSET', RECORDS .. kind, id, text(revision) .. ' ' .. write.value)
      call('ZADD', RECORD_IDS .. kind, 0, id)
      call('SADD', RECORD_KINDS, kind)
    else
      call('HDEL', RECORDS .. kind, id)
      call('ZREM', RECORD_IDS .. kind, id)
    end
  end
end
for _, lease in ipairs(releases) do release(lease[1], lease[2], lease[3], lease[4]) end
return done({'D', text(revision), leases})
