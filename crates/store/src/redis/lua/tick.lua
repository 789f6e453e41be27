-- Time passed: expires what lapsed, ends waits that are over, and forgets idle keys. Done by the
-- replica that has the duty, which is a lease like any other program would take it.
local replica, most = arg(), tonumber(arg())
local holder = call('GET', DUTY)
if holder and holder ~= replica then return {0, call('PTTL', DUTY)} end
if not holder or call('PTTL', DUTY) < DUTY_TTL / 2 then
  call('SET', DUTY, replica, 'PX', DUTY_TTL)
end

local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, most)
for _, key in ipairs(due) do
  local slot = load(key)
  respect(slot)
  if slot.live then
    if not settle(slot) then call('ZADD', EXPIRY, slot.lapses, key) end
  else
    serve(slot)
    if slot.live then
      call('ZADD', EXPIRY, slot.lapses, key)
    elseif slot.foreign and has_waiters(slot) then
      call('ZADD', EXPIRY, now + FOREIGN_LOOK, key)
    else
      call('ZREM', EXPIRY, key)
    end
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
call('ZREMRANGEBYSCORE', ALIVE, '-inf', now - 3600000)

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
for _, key in ipairs(call('ZRANGEBYSCORE', IDLE, '-inf', now - IDLE_MS, 'LIMIT', 0, most)) do
  forget(key)
end
local surplus = call('ZCARD', IDLE) - IDLE_KEYS
if surplus > 0 then
  for _, key in ipairs(call('ZRANGE', IDLE, 0, math.min(surplus, most) - 1)) do forget(key) end
end

local next_due = -1
for _, index in ipairs({EXPIRY, DEADLINES}) do
  local first = call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if first[2] then
    local left = math.max(tonumber(first[2]) - now, 0)
    if next_due < 0 or left < next_due then next_due = left end
  end
end
return done({1, next_due})
