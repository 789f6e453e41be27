-- Granting, waiting and losing: the same decisions as the kernel's engine makes.

-- By bytes, whatever the locale of the server says.
local function before(a, b)
  for place = 1, math.min(#a, #b) do
    local x, y = string.byte(a, place), string.byte(b, place)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function has_waiters(slot)
  return waiting > 0 and call('EXISTS', QUEUE .. slot.key) == 1
end

-- The value of one label, or nil.
local function label(labels, name)
  if not labels or not find(labels, '"' .. name .. '"', 1, true) then return nil end
  return cjson.decode(labels)[name]
end

-- The same holder: the same name and incarnation within the same tenant (L2).
local function is_holder(slot, request)
  return slot.name == request.name and slot.incarnation == request.incarnation
    and label(slot.labels, 'tenant') == label(request.labels, 'tenant')
end

-- What stands on one key for one asker: 'free', 'own' or 'held'.
local function occupancy(request, slot)
  if slot.foreign then return 'held' end
  if not slot.live then return 'free' end
  if now >= slot.lapses then
    -- Between two ticks; whoever waits is first.
    if has_waiters(slot) then return 'held' end
    return 'free'
  end
  if is_holder(slot, request) then return 'own' end
  return 'held'
end

local function refuse_held(slot)
  if slot.foreign then
    return {'R', slot.key, 'foreign', slot.foreign, call('PTTL', slot.plain)}
  end
  if not slot.live then return {'R', slot.key, 'queue'} end
  local left = slot.lapses - now
  if left < 0 then left = 0 end
  return {'R', slot.key, 'held', slot.name, slot.incarnation, slot.token, left, slot.labels}
end

-- Whether this many new leases are too many for the holder's name within its tenant.
local function over_limit(request, new)
  if request.limit == '' or new == 0 then return false end
  local limit = tonumber(request.limit)
  local first = request.keys[1]
  local kind = sub(first, 1, find(first, ':', 1, true))
  local tenant = label(request.labels, 'tenant')
  local held, keys = 0, {}
  flush()
  for _, member in ipairs(call('ZRANGE', HOLDER .. request.name, 0, -1)) do
    local key = sub(member, find(member, '|', 1, true) + 1)
    if sub(key, 1, #kind) == kind then keys[#keys + 1] = key end
  end
  fetch(keys)
  for _, key in ipairs(keys) do
    local slot = load(key)
    if slot.live and not slot.tampered and now < slot.lapses
      and label(slot.labels, 'tenant') == tenant then held = held + 1 end
  end
  return held + new > limit
end

-- A new grant, over whatever lapsed lease is still there, or over a live one by force.
local function take(slot, request)
  if slot.live then
    if is_holder(slot, request) and now >= slot.lapses then
      finish(slot, 'expired', 'lease_expired')
    else
      finish(slot, 'stolen', 'lease_stolen', request.force)
    end
  end
  return grant(slot, request, now + request.ttl)
end

local function decide_all(request)
  local new, standing = 0, {}
  for place, key in ipairs(request.keys) do
    local slot = load(key)
    local stands = occupancy(request, slot)
    standing[place] = stands
    if stands ~= 'own' then
      if stands == 'held' and request.force == '' then return refuse_held(slot) end
      new = new + 1
      if not next_token(slot) then return {'R', key, 'tokens'} end
    end
  end
  if over_limit(request, new) then return {'R', request.keys[1], 'limit', request.limit} end
  local leases = {}
  for place, key in ipairs(request.keys) do
    local slot = load(key)
    if standing[place] == 'own' then
      extend(slot, request.ttl)
    else
      take(slot, request)
    end
    leases[place] = wire(slot)
  end
  return {'G', new > 0 and 1 or 0, leases}
end

local function decide_any(request)
  -- A request whose answer was lost has its slot already.
  local id = label(request.labels, 'request')
  if id then
    fetch(request.keys)
    for _, key in ipairs(request.keys) do
      local slot = load(key)
      if occupancy(request, slot) == 'own' and label(slot.labels, 'request') == id then
        extend(slot, request.ttl)
        return {'G', 0, {wire(slot)}}
      end
    end
  end
  for _, key in ipairs(request.keys) do
    local slot = load(key)
    if occupancy(request, slot) == 'free' then
      if not next_token(slot) then return {'R', key, 'tokens'} end
      if over_limit(request, 1) then return {'R', key, 'limit', request.limit} end
      return {'G', 1, {wire(take(slot, request))}}
    end
  end
  return refuse_held(load(request.keys[1]))
end

-- Grants or refuses now, without waiting. A refusal changes nothing.
local function decide(request)
  if request.any == '1' then return decide_any(request) end
  return decide_all(request)
end

local function is_held(answer)
  return answer[1] == 'R' and (answer[3] == 'held' or answer[3] == 'foreign')
end

local function read_request()
  local request = {any = arg(), name = arg(), incarnation = arg(), ttl = tonumber(arg()),
    policy = arg(), grace = tonumber(arg()), death = arg(), labels = arg(),
    wait = tonumber(arg()), limit = arg(), force = arg(), keys = {}}
  for place = 1, tonumber(arg()) do request.keys[place] = arg() end
  return request
end

-- Takes a wait out of every queue.
local function leave(name, waiter)
  call('HDEL', WAITING, name)
  call('ZREM', DEADLINES, name)
  for _, key in ipairs(waiter.request.keys) do call('ZREM', QUEUE .. key, name) end
  waiting = waiting - 1
  changed, queues_changed = true, true
end

local function waiter_of(name)
  local packed = call('HGET', WAITING, name)
  if packed then return cmsgpack.unpack(packed) end
end

-- JSON without numbers: what Lua would shorten stays whole.
local function plain_text(value)
  if type(value) == 'number' then return text(value) end
  if type(value) == 'table' then
    local copy = {}
    for place, item in ipairs(value) do copy[place] = plain_text(item) end
    return copy
  end
  return value or ''
end

-- The answer of a wait: kept until its replica has it, and sent to it immediately.
local function answer_wait(name, waiter, answer)
  local encoded = cjson.encode({name, plain_text(answer)})
  call('HSET', ANSWERS .. waiter.replica, name, encoded)
  call('PEXPIRE', ANSWERS .. waiter.replica, REPLICA_KEPT_MS)
  call('PUBLISH', WAKE .. waiter.replica, encoded)
end

-- A replica that says nothing any more is passed over, so that no grant goes to the dead.
local function is_listening(replica)
  local seen = tonumber(call('ZSCORE', ALIVE, replica))
  if not seen or seen + STALE < now then return false end
  return call('PUBSUB', 'NUMSUB', WAKE .. replica)[2] > 0
end

-- The key is free: the first waiter that can have all it wants gets it. One that could not be
-- served yet is passed over, since holding a part of its keys for it would block others. One whose
-- time is over waits until it is answered: it was first.
local function serve(slot)
  if waiting == 0 then return end
  for _, name in ipairs(call('ZRANGE', QUEUE .. slot.key, 0, -1)) do
    if slot.live or slot.foreign then return end
    local waiter = waiter_of(name)
    if waiter and is_listening(waiter.replica) then
      local answer = decide(waiter.request)
      if not is_held(answer) then
        leave(name, waiter)
        answer_wait(name, waiter, answer)
      end
    end
  end
end

local function expire(slot)
  finish(slot, 'expired', 'lease_expired')
  serve(slot)
end

-- Expires the slot's lease if it has lapsed, and says whether it did.
local function settle(slot)
  if slot.live and slot.lapses <= now then
    expire(slot)
    return true
  end
  return false
end

-- Another program took or removed the plain key of a live lease: the lease is over, and nothing
-- is put back.
local function respect(slot)
  if not slot.tampered then return end
  if slot.foreign then
    finish(slot, 'stolen', 'lease_stolen', KEY_TAKEN)
  else
    finish(slot, 'revoked', 'lease_revoked', KEY_REMOVED, KEY_REMOVED)
    serve(slot)
  end
end

-- A wait ends before its time and without a grant: the waiter learns who has the key.
local function give_up(name, waiter)
  leave(name, waiter)
  for _, key in ipairs(waiter.request.keys) do
    local slot = load(key)
    local stands = occupancy(waiter.request, slot)
    -- A slot of a pool is not free for the one that has it (L5).
    if stands == 'held' or (stands == 'own' and waiter.request.any == '1') then
      return refuse_held(slot)
    end
  end
  return {'R', waiter.request.keys[1], 'queue'}
end

-- The time of a wait is over: it gets what is free at this very moment, or learns why not.
local function conclude(name, waiter)
  leave(name, waiter)
  return decide(waiter.request)
end

-- Why a token that is not the live one of its key is lost.
local function loss_of(slot, token)
  local newest = last_token(slot)
  if newest == 0 or token > newest then return {'L', 'unknown'} end
  if token < newest then return {'L', 'stolen'} end
  if slot.live or not slot.ended or slot.token ~= newest then return {'L', 'unknown'} end
  return {'L', slot.ended, slot.why or ''}
end

-- The slot of a live lease that belongs to this holder under this token, or why it is lost.
local function owned(key, token, name, incarnation)
  local slot = load(key)
  respect(slot)
  if not slot.live or slot.token ~= token then return nil, loss_of(slot, token) end
  if slot.name ~= name or slot.incarnation ~= incarnation then return nil, {'L', 'unknown'} end
  if settle(slot) then return nil, {'L', 'expired'} end
  return slot
end

local function release(key, token, name, incarnation, detail)
  local slot = owned(key, token, name, incarnation)
  if not slot then return 0 end
  finish(slot, 'released', 'lease_released', detail)
  serve(slot)
  return 1
end

-- A lapsed lease that someone waits for goes to that waiter, not to a newcomer.
local function settle_waited(request)
  for _, key in ipairs(request.keys) do
    local slot = load(key)
    respect(slot)
    if has_waiters(slot) then settle(slot) end
  end
end
