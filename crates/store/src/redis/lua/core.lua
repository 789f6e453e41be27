-- What every command stands on: the time, the counters, the facts of keys, and events.
-- The names of keys and the settings are declared in front of this text.
local call, format, floor = redis.call, string.format, math.floor
local find, sub, match = string.find, string.sub, string.match

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

-- Slots that were read, and those whose changes are not written yet.
local slots, dirty = {}, {}

-- Everything known about one key. `live`: we granted it and have not ended it. `foreign`: the plain
-- key has a value that is not ours. `tampered`: a live lease whose plain key another program took.
local function slot_of(key, kind, plain, fence, side, packed, there)
  if not packed then
    return {key = key, kind = kind, plain = plain, fence = fence, side = side, token = 0,
      foreign = there, live = false, tampered = false}
  end
  local slot = unpack_facts(packed)
  slot.key, slot.kind, slot.plain, slot.fence, slot.side = key, kind, plain, fence, side
  slot.token, slot.foreign, slot.tampered = tonumber(slot.token), false, false
  slot.live = slot.ended == ''
  if not slot.live then
    return {key = key, kind = kind, plain = plain, fence = fence, side = side, token = slot.token,
      id = slot.id, ended = slot.ended, why = slot.rest, foreign = there, live = false,
      tampered = false}
  end
  slot.ended = nil
  slot.ttl, slot.grace, slot.expires = tonumber(slot.ttl), tonumber(slot.grace), tonumber(slot.expires)
  slot.stats, slot.packed, slot.value = slot.rest, packed, slot.name
  -- How the indexes know it.
  slot.listed, slot.listed_as = slot.name, slot.incarnation .. '|' .. key
  slot.lapses = slot.expires
  if slot.policy == '1' then slot.lapses = slot.expires + slot.grace end
  if kind == 'node' then slot.value = '1' end
  if now < slot.lapses then
    if there ~= slot.value then
      slot.tampered = true
      slot.foreign = there
    end
  elseif there and (there ~= slot.value or call('PTTL', plain) > 2) then
    -- Ours is over (Redis takes a moment longer to drop it); this is somebody else's.
    slot.foreign = there
  end
  return slot
end

-- Reads the slots of at most a few hundred keys with one command.
local function gather(keys)
  local asked, kinds = {}, {}
  for place, key in ipairs(keys) do
    local at = place * 3 - 2
    kinds[place] = match(key, '^[^:]*')
    asked[at] = SIDE .. key
    asked[at + 1], asked[at + 2] = names(key)
  end
  local values = call('MGET', unpack(asked))
  -- Another type than a string looks like nothing there, and was not written by us.
  local empty = {}
  for at = 2, #asked, 3 do
    if not values[at] then empty[#empty + 1] = asked[at] end
  end
  local strange = #empty > 0 and call('EXISTS', unpack(empty)) > 0
  for place, key in ipairs(keys) do
    local at = place * 3 - 2
    local there = values[at + 1]
    if strange and not there and call('EXISTS', asked[at + 1]) == 1 then there = 'foreign' end
    local slot = slot_of(key, kinds[place], asked[at + 1], asked[at + 2], asked[at], values[at],
      there)
    slot.newest = tonumber(values[at + 2]) or 0
    slots[key] = slot
  end
end

-- Reads what a command will need, in few round trips to the data.
local function fetch(keys)
  local missing, asked = {}, {}
  for _, key in ipairs(keys) do
    if not slots[key] and not asked[key] then
      asked[key] = true
      missing[#missing + 1] = key
      if #missing == MOST_KEYS then
        gather(missing)
        missing = {}
      end
    end
  end
  if #missing > 0 then gather(missing) end
end

local function load(key)
  if not slots[key] then gather({key}) end
  return slots[key]
end

-- The newest token of a key, which outlives its leases (L3).
local function last_token(slot)
  return slot.newest > slot.token and slot.newest or slot.token
end

local function next_token(slot)
  local after = math.max(last_token(slot), least) + 1
  if after < now then after = now end
  if after <= MAX_TOKEN then return after end
end

-- The facts of a slot as they are kept: see `layout.rs`.
local function pack(slot)
  if not slot.packed then
    slot.packed = pack_facts({ended = slot.live and '' or slot.ended, token = text(slot.token),
      name = slot.name, incarnation = slot.incarnation, expires = slot.expires,
      renewed = slot.renewed, ttl = slot.ttl, policy = slot.policy, grace = slot.grace,
      handoff = slot.handoff, id = slot.id, death = slot.death, acquired = slot.acquired,
      labels = slot.labels, rest = slot.live and slot.stats or slot.why or ''})
  end
  return slot.packed
end

-- A live lease as callers get it.
local function wire(slot) return slot.key .. '\31' .. pack(slot) end

-- The slot differs from what is kept: it is written by `flush`.
local function touch(slot)
  slot.packed = false
  changed = true
  if not slot.dirty then
    slot.dirty = true
    dirty[#dirty + 1] = slot
  end
end

-- One command with many arguments, as many at a time as Lua can pass.
local function bulk(items, verb, key)
  for from = 1, #items, MOST_VALUES do
    local to = math.min(from + MOST_VALUES - 1, #items)
    if key then call(verb, key, unpack(items, from, to)) else call(verb, unpack(items, from, to)) end
  end
end

-- Writes what became of the slots, each once, whatever happened to it in between.
local function flush()
  if #dirty == 0 then return end
  local kept, gone, timers, listed, idle, unlisted = {}, {}, {}, {}, {}, {}
  local joined, parted = {}, {}
  for _, slot in ipairs(dirty) do
    slot.dirty = false
    kept[#kept + 1] = slot.side
    kept[#kept + 1] = pack(slot)
    if slot.granted then
      kept[#kept + 1] = slot.fence
      kept[#kept + 1] = text(slot.token)
    end
    local member = slot.live and slot.incarnation .. '|' .. slot.key
    if slot.listed and (not member or slot.listed ~= slot.name or slot.listed_as ~= member) then
      local members = parted[slot.listed] or {}
      parted[slot.listed] = members
      members[#members + 1] = slot.listed_as
    end
    if not slot.live then
      if slot.dropped then gone[#gone + 1] = slot.plain end
      if slot.listed then unlisted[#unlisted + 1] = slot.key end
      if slot.over then
        idle[#idle + 1] = now
        idle[#idle + 1] = slot.key
      end
      slot.listed = false
    elseif slot.granted then
      call('SET', slot.plain, slot.value, 'PXAT', slot.lapses)
      timers[#timers + 1] = slot.lapses
      timers[#timers + 1] = slot.key
      if not slot.listed then
        listed[#listed + 1] = 0
        listed[#listed + 1] = slot.key
      end
      if slot.listed ~= slot.name or slot.listed_as ~= member then
        local members = joined[slot.name] or {}
        joined[slot.name] = members
        members[#members + 1] = 0
        members[#members + 1] = member
      end
      slot.listed, slot.listed_as = slot.name, member
    elseif slot.moved then
      call('PEXPIREAT', slot.plain, slot.lapses)
    end
    slot.granted, slot.moved, slot.over, slot.dropped = false, false, false, false
  end
  dirty = {}
  bulk(kept, 'MSET')
  bulk(gone, 'DEL')
  bulk(timers, 'ZADD', EXPIRY)
  bulk(listed, 'ZADD', INDEX)
  bulk(unlisted, 'ZREM', EXPIRY)
  bulk(unlisted, 'ZREM', INDEX)
  for name, members in pairs(parted) do bulk(members, 'ZREM', HOLDER .. name) end
  for name, members in pairs(joined) do bulk(members, 'ZADD', HOLDER .. name) end
  bulk(idle, 'ZADD', IDLE)
end

-- Whether anybody listens to the live stream here.
local function watched()
  if audience == nil then
    audience = call('PUBSUB', 'NUMSUB', NEWS)[2] > 0
  end
  return audience
end

local function announce(event, slot, detail, cause)
  if watched() then
    news[#news + 1] = {text(revision), text(now), event, slot.key, slot.id or '', slot.name or '',
      slot.incarnation or '', text(slot.token or 0), text(slot.expires or 0), slot.labels or '',
      detail or '', cause or ''}
  end
end

-- Appends an entry about a key to the history. It names the one before it of the same key, so that the
-- history of one key can be read without that of the others.
local function append(key, ...)
  local fields = {...}
  fields[#fields + 1] = 'before'
  fields[#fields + 1] = call('ZSCORE', LAST, key) or ''
  call('XADD', EVENTS, 'MAXLEN', '~', HISTORY, format('%.0f-0', revision), unpack(fields))
  call('ZADD', LAST, text(revision), key)
end

-- Appends an event about the lease in `slot` (L19). Nearly all have the same fields, so that the stream
-- stores their names once per node. `detail`: words for people; `cause`: JSON in the kernel's form.
local function emit(event, slot, detail, terms, cause)
  revision = revision + 1
  changed = true
  append(slot.key, 'event', event, 'at', now, 'key', slot.key, 'lease', slot.id,
    'holder', slot.name, 'incarnation', slot.incarnation, 'token', slot.token,
    'expires', slot.expires, 'labels', slot.labels, 'detail', detail or '', 'terms', terms or '',
    unpack(cause and {'cause', cause} or {}))
  announce(event, slot, detail, cause)
end

-- Ends the lease in `slot`. The token stays behind.
local function finish(slot, loss, event, detail, why, cause)
  -- What the event does not carry, so that the lease can be shown as it was.
  emit(event, slot, detail, table.concat({slot.ttl, slot.policy, slot.grace, slot.death,
    slot.acquired, slot.renewed, slot.stats}, ' '), cause)
  slot.dropped = not slot.foreign
  slot.live, slot.tampered, slot.ended, slot.why, slot.over = false, false, loss, why, true
  touch(slot)
end

-- Puts a new lease into a slot that has none.
local function grant(slot, request, expires, handoff)
  slot.token = next_token(slot)
  slot.live, slot.foreign, slot.tampered, slot.granted = true, false, false, true
  slot.name, slot.incarnation = request.name, request.incarnation
  slot.ttl, slot.policy, slot.grace = request.ttl, request.policy, request.grace
  slot.death, slot.labels = request.death, request.labels
  slot.acquired, slot.expires, slot.renewed = now, expires, 0
  slot.stats, slot.handoff = '', handoff or ''
  slot.lapses = expires
  if slot.policy == '1' then slot.lapses = expires + slot.grace end
  slot.value = slot.kind == 'node' and '1' or slot.name
  slot.id = lease_id(now, revision + 1)
  emit('lease_acquired', slot, nil, nil, handoff and '"handed_over"' or nil)
  touch(slot)
  return slot
end

-- Sets expiry to now + ttl, never backwards (L8). The expiry index is not touched: an entry that
-- comes up too early is put back.
local function extend(slot, ttl, stats)
  if ttl then slot.ttl = ttl end
  if now + slot.ttl > slot.expires then
    slot.expires = now + slot.ttl
    slot.lapses = slot.expires
    if slot.policy == '1' then slot.lapses = slot.expires + slot.grace end
    slot.moved = true
  end
  slot.renewed = now
  -- The successor of a handoff is at work: this confirms it (L18).
  if slot.handoff ~= '' and find(slot.handoff, '"stage":"committed"', 1, true) then
    slot.handoff = ''
  end
  if stats then slot.stats = stats end
  touch(slot)
  if RENEWALS == 'kept' then
    emit('lease_renewed', slot)
  elseif RENEWALS == 'live' then
    announce('lease_renewed', slot)
  end
end

-- The end of every command: what changed is written, and listeners are notified.
local function done(reply)
  flush()
  if queues_changed then
    call('HSET', META, 'revision', revision, 'now', now, 'floor', least, 'waiting', waiting,
      'ticket', ticket)
  elseif changed then
    call('HSET', META, 'revision', revision, 'now', now)
  end
  if #news > 0 then call('PUBLISH', NEWS, cjson.encode(news)) end
  return reply
end
