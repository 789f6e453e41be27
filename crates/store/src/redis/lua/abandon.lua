-- A waiter went away: it leaves its queues, and what it was given without knowing goes back.
local replica, name = arg(), arg()
local answer = call('HGET', ANSWERS .. replica, name)
if answer then
  call('HDEL', ANSWERS .. replica, name)
  local decoded = cjson.decode(answer)[2]
  if decoded[1] == 'G' then
    for _, lease in ipairs(decoded[3]) do
      local bar = find(lease, '\31', 1, true)
      local facts = unpack_facts(sub(lease, bar + 1))
      release(sub(lease, 1, bar - 1), tonumber(facts.token), facts.name, facts.incarnation,
        WAITER_WENT_AWAY)
    end
  end
else
  local waiter = waiter_of(name)
  if waiter then leave(name, waiter) end
end
return done(1)
