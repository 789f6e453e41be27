-- Time passed: expires what lapsed, ends waits that are over, and forgets idle keys. Done by the
-- leader, whose leadership is a lease like any other program would take it.
local replica, most, resigns = arg(), tonumber(arg()), arg() == '1'
local leader = call('GET', LEADER)
if leader and leader ~= replica then return {0, call('PTTL', LEADER)} end
if resigns then
  call('DEL', LEADER)
  return {0, 0}
end
if not leader or call('PTTL', LEADER) < LEADER_TTL / 2 then
  call('SET', LEADER, replica, 'PX', LEADER_TTL)
end

-- What lapsed first expires first, and at the same moment in the order of keys, as in the kernel. A
-- renewal leaves its entry here as it was, so what is due may have to be put back; and what lapsed
-- later than the last entry that was looked at may have others before it.
local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
local last = #due == 2 * most and tonumber(due[#due]) or now
local keys, lapsed, later = {}, {}, {}
for at = 1, #due, 2 do keys[#keys + 1] = due[at] end
fetch(keys)
for _, key in ipairs(keys) do
  local slot = load(key)
  respect(slot)
  local list = slot.live and slot.lapses <= last and lapsed or later
  list[#list + 1] = slot
end
table.sort(lapsed, function(a, b)
  if a.lapses ~= b.lapses then return a.lapses < b.lapses end
  return before(a.key, b.key)
end)
for _, slot in ipairs(lapsed) do settle(slot) end
for _, slot in ipairs(later) do
  if not slot.live then serve(slot) end
end
flush()
for _, key in ipairs(keys) do
  local slot = load(key)
  if slot.live then
    call('ZADD', EXPIRY, slot.lapses, key)
  elseif slot.foreign and has_waiters(slot) then
    call('ZADD', EXPIRY, now + FOREIGN_LOOK, key)
  else
    call('ZREM', EXPIRY, key)
  end
end

if waiting > 0 then
  for _, name in ipairs(call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, most)) do
    local waiter = waiter_of(name)
    if waiter then
      local ending = is_listening(waiter.replica) and conclude or give_up
      answer_wait(name, waiter, ending(name, waiter))
    else
      call('ZREM', DEADLINES, name)
    end
  end
end
call('ZREMRANGEBYSCORE', ALIVE, '-inf', now - REPLICA_KEPT_MS)
-- Keys whose events are all forgotten.
local first = call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
if first then
  call('ZREMRANGEBYSCORE', LAST, '-inf', '(' .. sub(first[1], 1, find(first[1], '-', 1, true) - 1))
end

-- Keys that nobody used for long: their tokens are folded into one number (L3). Those of polling
-- targets are documented for others to read, and stay.
local function forget(key)
  call('ZREM', IDLE, key)
  local slot = load(key)
  if slot.live or has_waiters(slot) then return end
  if slot.kind ~= 'poll' then
    local newest = last_token(slot)
    if newest > least then
      least = newest
      changed, queues_changed = true, true
    end
    call('DEL', slot.fence)
  end
  call('DEL', slot.side)
end
flush()
for _, key in ipairs(call('ZRANGEBYSCORE', IDLE, '-inf', now - IDLE_MS, 'LIMIT', 0, most)) do
  forget(key)
end
local surplus = call('ZCARD', IDLE) - IDLE_KEYS
if surplus > 0 then
  for _, key in ipairs(call('ZRANGE', IDLE, 0, math.min(surplus, most) - 1)) do forget(key) end
end

local next_due = -1
for _, index in ipairs({EXPIRY, DEADLINES}) do
  local earliest = call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if earliest[2] then
    local left = math.max(tonumber(earliest[2]) - now, 0)
    if next_due < 0 or left < next_due then next_due = left end
  end
end
return done({1, next_due})
