-- What every command stands on: the time, the counters, one key's facts, and events.
-- The names of keys and the settings are declared in front of this text.
local call, format, floor = redis.call, string.format, math.floor
local find, sub = string.find, string.sub

-- Redis' own clock decides, and never runs backwards for us.
local clock = call('TIME')
local now = clock[1] * 1000 + floor(clock[2] / 1000)
local counters = call('HMGET', META, 'revision', 'now', 'floor', 'waiting', 'ticket')
local revision = tonumber(counters[1])
if counters[2] and tonumber(counters[2]) > now then now = tonumber(counters[2]) end
local least = tonumber(counters[3]) or 0
local waiting = tonumber(counters[4]) or 0
local ticket = tonumber(counters[5]) or 0
local changed, queues_changed = false, false
local news, audience = {}, nil

-- A store without a past starts its revisions above all that an earlier one can have used.
if not revision then
  revision = now * 1000
  call('HSET', META, 'base', revision, 'revision', revision, 'now', now)
end

-- Numbers beyond 14 digits lose some when Lua writes them by itself.
local function text(number) return format('%.0f', number) end

local position = 0
local function arg()
  position = position + 1
  return ARGV[position]
end

local slots = {}
local FIELDS = {'ended', 'name', 'incarnation', 'token', 'id', 'ttl', 'policy', 'grace', 'death',
  'acquired', 'expires', 'renewed', 'labels', 'stats', 'handoff', 'why'}

-- Everything known about one key. `live`: we granted it and have not ended it. `foreign`: the plain
-- key has a value that is not ours. `tampered`: a live lease whose plain key another program took.
local function load(key)
  local slot = slots[key]
  if slot then return slot end
  local colon = find(key, ':', 1, true)
  local kind = sub(key, 1, colon - 1)
  local plain, fence = names(key, kind, sub(key, colon + 1))
  slot = {key = key, kind = kind, plain = plain, fence = fence, side = SIDE .. key}
  slots[key] = slot
  local v = call('HMGET', slot.side, unpack(FIELDS))
  local there = redis.pcall('GET', plain)
  -- Another type than a string was not written by us.
  if type(there) == 'table' then there = 'foreign' end
  slot.token = tonumber(v[4]) or 0
  if v[1] == '' then
    slot.live = true
    slot.name, slot.incarnation, slot.id = v[2], v[3], v[5]
    slot.ttl, slot.policy, slot.grace, slot.death = tonumber(v[6]), v[7], tonumber(v[8]), v[9]
    slot.acquired, slot.expires, slot.renewed = v[10], tonumber(v[11]), v[12]
    slot.labels, slot.stats, slot.handoff = v[13], v[14], v[15]
    slot.lapses = slot.expires
    if slot.policy == '1' then slot.lapses = slot.expires + slot.grace end
    slot.value = kind == 'node' and '1' or slot.name
    if now < slot.lapses then
      if there ~= slot.value then
        slot.tampered = true
        slot.foreign = there
      end
    elseif there and (there ~= slot.value or call('PTTL', plain) > 2) then
      -- Ours is over (Redis takes a moment longer to drop it); this is somebody else's.
      slot.foreign = there
    end
  else
    slot.ended, slot.id, slot.why = v[1], v[5], v[16]
    slot.foreign = there
  end
  return slot
end

-- The newest token of a key, which outlives its leases (L3).
local function last_token(slot)
  if not slot.fenced then
    slot.fenced = true
    local fence = tonumber(call('GET', slot.fence))
    if fence and fence > slot.token then slot.newest = fence end
  end
  return slot.newest and slot.newest > slot.token and slot.newest or slot.token
end

local function next_token(slot)
  local after = math.max(last_token(slot), least) + 1
  if after < now then after = now end
  if after <= 9007199254740991 then return after end
end

local function wire(slot)
  return {slot.id, slot.key, slot.name, slot.incarnation, slot.token, slot.ttl, slot.policy,
    slot.grace, slot.death, slot.acquired, slot.expires, slot.renewed, slot.labels, slot.stats,
    slot.handoff}
end

-- Whether anybody listens to the live stream here.
local function watched()
  if audience == nil then
    audience = call('PUBSUB', 'NUMSUB', NEWS)[2] > 0
  end
  return audience
end

local function tell(event, slot, detail)
  if watched() then
    news[#news + 1] = {text(revision), text(now), event, slot.key, slot.id or '', slot.name or '',
      slot.incarnation or '', text(slot.token or 0), text(slot.expires or 0), slot.labels or '',
      detail or ''}
  end
end

-- Appends an event about the lease in `slot` (L19).
local function emit(event, slot, detail)
  revision = revision + 1
  changed = true
  local id = format('%.0f-0', revision)
  if event == 'lease_acquired' then
    call('XADD', EVENTS, 'MAXLEN', '~', HISTORY, id, 'event', event, 'at', now, 'key', slot.key,
      'lease', slot.id, 'holder', slot.name, 'incarnation', slot.incarnation, 'token', slot.token,
      'expires', slot.expires, 'labels', slot.labels, 'detail', detail or '', 'terms',
      slot.ttl .. ' ' .. slot.policy .. ' ' .. slot.grace .. ' ' .. slot.death)
  else
    call('XADD', EVENTS, 'MAXLEN', '~', HISTORY, id, 'event', event, 'at', now, 'key', slot.key,
      'lease', slot.id, 'holder', slot.name, 'incarnation', slot.incarnation, 'token', slot.token,
      'expires', slot.expires, 'labels', slot.labels, 'detail', detail or '')
  end
  tell(event, slot, detail)
end

-- Ends the lease in `slot`. The token stays behind.
local function finish(slot, loss, event, detail, why)
  emit(event, slot, detail)
  if not slot.foreign then call('DEL', slot.plain) end
  call('HSET', slot.side, 'ended', loss, 'why', why or '')
  call('ZREM', EXPIRY, slot.key)
  call('ZREM', INDEX, slot.key)
  call('ZREM', HOLDER .. slot.name, slot.incarnation .. '|' .. slot.key)
  call('ZADD', IDLE, now, slot.key)
  slot.live, slot.tampered, slot.ended, slot.why = false, false, loss, why
end

-- Puts a new lease into a slot that has none.
local function grant(slot, request, expires, handoff)
  slot.token = next_token(slot)
  slot.live, slot.foreign, slot.tampered = true, false, false
  slot.name, slot.incarnation = request.name, request.incarnation
  slot.ttl, slot.policy, slot.grace = request.ttl, request.policy, request.grace
  slot.death, slot.labels = request.death, request.labels
  slot.acquired, slot.expires, slot.renewed = now, expires, 0
  slot.stats, slot.handoff = '', handoff or ''
  slot.lapses = expires
  if slot.policy == '1' then slot.lapses = expires + slot.grace end
  slot.value = slot.kind == 'node' and '1' or slot.name
  -- The same id that the kernel makes from the moment and the revision of a grant.
  local granted = revision + 1
  slot.id = format('%08x-%04x-8000-80%02x-%012x', floor(now / 65536), now % 65536,
    floor(granted / 281474976710656), granted % 281474976710656)
  call('SET', slot.plain, slot.value, 'PXAT', slot.lapses)
  call('SET', slot.fence, slot.token)
  call('HSET', slot.side, 'ended', '', 'name', slot.name, 'incarnation', slot.incarnation,
    'token', slot.token, 'id', slot.id, 'ttl', slot.ttl, 'policy', slot.policy, 'grace', slot.grace,
    'death', slot.death, 'acquired', now, 'expires', expires, 'renewed', 0, 'labels', slot.labels,
    'stats', '', 'handoff', slot.handoff)
  call('ZADD', EXPIRY, slot.lapses, slot.key)
  call('ZADD', INDEX, 0, slot.key)
  call('ZADD', HOLDER .. slot.name, 0, slot.incarnation .. '|' .. slot.key)
  emit('lease_acquired', slot, handoff and 'handed over by the previous holder')
  return slot
end

-- Sets expiry to now + ttl, never backwards (L8). The expiry index is not touched: an entry that
-- comes up too early is put back.
local function extend(slot, ttl, stats)
  changed = true
  if ttl then slot.ttl = ttl end
  if now + slot.ttl > slot.expires then
    slot.expires = now + slot.ttl
    slot.lapses = slot.expires
    if slot.policy == '1' then slot.lapses = slot.expires + slot.grace end
    call('PEXPIREAT', slot.plain, slot.lapses)
  end
  slot.renewed = now
  -- The successor of a handoff is at work: this confirms it (L18).
  local confirmed = slot.handoff ~= '' and find(slot.handoff, '"stage":"committed"', 1, true)
  if confirmed then slot.handoff = '' end
  if ttl or stats or confirmed then
    if stats then slot.stats = stats end
    call('HSET', slot.side, 'expires', slot.expires, 'renewed', now, 'ttl', slot.ttl,
      'stats', slot.stats, 'handoff', slot.handoff)
  else
    call('HSET', slot.side, 'expires', slot.expires, 'renewed', now)
  end
  if RENEWALS == 'kept' then
    emit('lease_renewed', slot)
  elseif RENEWALS == 'live' then
    tell('lease_renewed', slot)
  end
end

-- The end of every command: counters are written back and listeners told.
local function done(reply)
  if queues_changed then
    call('HSET', META, 'revision', revision, 'now', now, 'floor', least, 'waiting', waiting,
      'ticket', ticket)
  elseif changed then
    call('HSET', META, 'revision', revision, 'now', now)
  end
  if #news > 0 then call('PUBLISH', NEWS, cjson.encode(news)) end
  return reply
end
