-- A waiter went away: it leaves its queues, and what it was given without knowing goes back.
local replica, name = arg(), arg()
local answer = call('HGET', ANSWERS .. replica, name)
if answer then
  call('HDEL', ANSWERS .. replica, name)
  local decoded = cjson.decode(answer)[2]
  if decoded[1] == 'G' then
    for _, lease in ipairs(decoded[3]) do
      local bar = find(lease, '\31', 1, true)
      local _, token, name, incarnation = match(sub(lease, bar + 1), PACKED)
      release(sub(lease, 1, bar - 1), tonumber(token), name, incarnation, 'its waiter went away')
    end
  end
else
  local waiter = waiter_of(name)
  if waiter then leave(name, waiter) end
end
return done(1)
