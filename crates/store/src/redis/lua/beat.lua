-- A replica says that it lives and which answers it has; it gets those that it missed. After a
-- silence, what was withheld from its waiters is looked at again.
local replica, anew = arg(), arg()
local seen = tonumber(call('ZSCORE', ALIVE, replica))
call('ZADD', ALIVE, now, replica)
for _ = 1, tonumber(arg()) do call('HDEL', ANSWERS .. replica, arg()) end
if waiting > 0 and (anew == '1' or not seen or seen + STALE < now) then
  for _, name in ipairs(call('ZRANGE', DEADLINES, 0, -1)) do
    local waiter = waiter_of(name)
    if waiter and waiter.replica == replica then
      for _, key in ipairs(waiter.request.keys) do
        local slot = load(key)
        if not settle(slot) and not slot.live then serve(slot) end
      end
    end
  end
end
return done(call('HVALS', ANSWERS .. replica))
