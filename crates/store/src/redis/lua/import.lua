-- Writing into a store that is closed. Every step but `events` may be repeated.
local call, find, sub = redis.call, string.find, string.sub
local position = 0
local function arg()
  position = position + 1
  return ARGV[position]
end
local function split(key)
  local colon = find(key, ':', 1, true)
  return sub(key, 1, colon - 1), sub(key, colon + 1)
end
local function type_of(key) return call('TYPE', key).ok end

local what = arg()

-- Closes the store: where every command looks for the counters it finds a text, and fails before it
-- has changed anything.
if what == 'close' then
  if type_of(META) == 'hash' then call('RENAME', META, PARKED) end
  call('SET', META, arg())
  return 1
end

if what == 'open' then
  if type_of(META) ~= 'hash' then
    call('DEL', META)
    if call('EXISTS', PARKED) == 1 then call('RENAME', PARKED, META) end
  end
  return 1
end

if type_of(META) ~= 'string' then return redis.error_reply('ERR the store was opened meanwhile') end

if what == 'forget' then
  for _ = 1, tonumber(arg()) do
    local key = arg()
    local plain, fence = names(key)
    if sub(call('GET', SIDE .. key) or '', 1, 1) == '\31' then call('DEL', plain) end
    -- Those of polling targets are documented for others to read, and only ever grow.
    if sub(key, 1, 5) ~= 'poll:' then call('DEL', fence) end
    call('DEL', SIDE .. key)
  end
  return 1
end

if what == 'slots' then
  for _ = 1, tonumber(arg()) do
    local key, token, live = arg(), arg(), arg()
    local plain, fence = names(key)
    call('SET', fence, token)
    call('DEL', SIDE .. key)
    if live == '1' then
      local lapses, name, incarnation, id, ttl, policy = arg(), arg(), arg(), arg(), arg(), arg()
      local grace, death, acquired, expires, renewed = arg(), arg(), arg(), arg(), arg()
      local labels, stats, handoff = arg(), arg(), arg()
      call('SET', plain, sub(key, 1, 5) == 'node:' and '1' or name, 'PXAT', lapses)
      call('SET', SIDE .. key, pack_facts({ended = '', token = token, name = name,
        incarnation = incarnation, expires = expires, renewed = renewed, ttl = ttl, policy = policy,
        grace = grace, handoff = handoff, id = id, death = death, acquired = acquired,
        labels = labels, rest = stats}))
      call('ZADD', EXPIRY, lapses, key)
      call('ZADD', INDEX, 0, key)
      call('ZADD', HOLDER .. name, 0, incarnation .. '|' .. key)
      call('ZREM', IDLE, key)
    elseif live == '0' then
      local id, ended, why = arg(), arg(), arg()
      call('SET', SIDE .. key, pack_facts({ended = ended, token = token, name = '', incarnation = '',
        expires = '', renewed = '', ttl = '', policy = '', grace = '', handoff = '', id = id,
        death = '', acquired = '', labels = '', rest = why}))
      call('ZADD', IDLE, arg(), key)
    end
  end
  return 1
end

if what == 'records' then
  for _ = 1, tonumber(arg()) do
    local key, revision, value = arg(), arg(), arg()
    local kind, id = split(key)
    if kind == 'target' then
      call('SET', TARGET .. id, value)
      call('HSET', TARGETS, id, redis.sha1hex(value) .. ' ' .. revision)
    else
      call('HSET', RECORDS .. kind, id, revision .. ' ' .. value)
      call('ZADD', RECORD_IDS .. kind, 0, id)
      call('SADD', RECORD_KINDS, kind)
    end
  end
  return 1
end

local function append(id, key, ...)
  call('XADD', EVENTS, id .. '-0', 'key', key, 'before', call('ZSCORE', LAST, key) or '', ...)
  call('ZADD', LAST, id, key)
end

local function event()
  local id, kind, at, key, about = arg(), arg(), arg(), arg(), arg()
  if about == '1' then
    local lease, holder, incarnation, token = arg(), arg(), arg(), arg()
    local expires, labels, detail, cause = arg(), arg(), arg(), arg()
    append(id, key, 'event', kind, 'at', at, 'lease', lease, 'holder', holder,
      'incarnation', incarnation, 'token', token, 'expires', expires, 'labels', labels,
      'detail', detail, 'terms', '', 'cause', cause)
  else
    append(id, key, 'event', kind, 'at', at, 'detail', arg(), 'cause', arg())
  end
end

if what == 'events' then
  for _ = 1, tonumber(arg()) do event() end
  return 1
end

if what == 'finish' then
  call('DEL', PARKED)
  call('HSET', PARKED, 'base', arg(), 'revision', arg(), 'now', arg(), 'floor', arg(),
    'kept', arg(), 'waiting', '0', 'ticket', '0')
  event()
  call('RENAME', PARKED, META)
  return 1
end
return redis.error_reply('ERR no such step')
