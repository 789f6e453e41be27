-- Reading a store that is closed: its counters are parked, so this stands on none of the other parts.
local call, find, sub, floor = redis.call, string.find, string.sub, math.floor
local position = 0
local function arg()
  position = position + 1
  return ARGV[position]
end
local function text(number) return string.format('%.0f', number) end
local function split(key)
  local colon = find(key, ':', 1, true)
  return sub(key, 1, colon - 1), sub(key, colon + 1)
end
local clock = call('TIME')
local now = clock[1] * 1000 + floor(clock[2] / 1000)
local function type_of(key) return call('TYPE', key).ok end

-- Where the counters are: parked while the store is closed.
local counters = type_of(META) == 'hash' and META or PARKED
local latest = tonumber(call('HGET', counters, 'now'))
if latest and latest > now then now = latest end

local what = arg()
if what == 'head' then
  local v = call('HMGET', counters, 'revision', 'base', 'floor')
  local first = call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
  local oldest = ''
  if first then oldest = sub(first[1], 1, find(first[1], '-', 1, true) - 1) end
  return {text(now), v[1] or '', v[2] or '', v[3] or '', oldest, call('XLEN', EVENTS),
    call('GET', LEADER) or ''}
end

if what == 'index' then return call('ZRANGEBYLEX', INDEX, arg(), '+', 'LIMIT', 0, tonumber(arg())) end
if what == 'idle' then
  local from, most = tonumber(arg()), tonumber(arg())
  return call('ZRANGE', IDLE, from, from + most - 1)
end

-- Everything known about these keys: a live lease, how the last one ended, or only a token.
if what == 'slots' then
  local found = {}
  for _ = 1, tonumber(arg()) do
    local key = arg()
    local plain, fence = names(key)
    local packed = call('GET', SIDE .. key) or ''
    local facts = unpack_facts(packed)
    local ended, token, id = facts.ended, tonumber(facts.token) or 0, facts.id
    local newest = tonumber(call('GET', fence)) or 0
    if token > newest then newest = token end
    if ended == '' and token == newest then
      local lapses = tonumber(facts.expires)
      if facts.policy == '1' then lapses = lapses + tonumber(facts.grace) end
      local there = redis.pcall('GET', plain)
      local value = sub(key, 1, 5) == 'node:' and '1' or facts.name
      if now < lapses and there ~= value then
        -- Another program took or removed it: the lease is over, and that is respected.
        local why = there and '' or KEY_REMOVED
        found[#found + 1] = {'E', key, text(newest), id, there and 'stolen' or 'revoked', why,
          text(now)}
      else
        found[#found + 1] = {'L', key, text(newest), key .. '\31' .. packed}
      end
    elseif ended and ended ~= '' and token == newest then
      found[#found + 1] = {'E', key, text(newest), id, ended, facts.rest,
        call('ZSCORE', IDLE, key) or text(now)}
    else
      found[#found + 1] = {'T', key, text(newest)}
    end
  end
  return found
end

-- Whether a plain key stands for no lease of ours.
if what == 'foreign' then
  local found = {}
  for _ = 1, tonumber(arg()) do
    local key = arg()
    if sub(call('GET', SIDE .. key) or '', 1, 1) ~= '\31' then found[#found + 1] = key end
  end
  return found
end

-- Records by their keys, as `record_of` reads them.
if what == 'records' then
  local found = {}
  for _ = 1, tonumber(arg()) do
    local key = arg()
    local kind, id = split(key)
    if kind == 'target' then
      local value = redis.pcall('GET', TARGET .. id)
      if value and type(value) ~= 'table' then
        local digest = redis.sha1hex(value)
        local ours = call('HGET', TARGETS, id)
        local at = tonumber(sub(digest, 1, 12), 16)
        if ours and sub(ours, 1, 40) == digest then at = tonumber(sub(ours, 42)) end
        found[#found + 1] = {key, text(at), value}
      end
    else
      local kept = call('HGET', RECORDS .. kind, id)
      if kept then
        local blank = find(kept, ' ', 1, true)
        found[#found + 1] = {key, sub(kept, 1, blank - 1), sub(kept, blank + 1)}
      end
    end
  end
  return found
end
