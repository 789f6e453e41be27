-- Asks what became of a wait: its answer, 'W' and the time left, or 'X' when nobody knows of it.
local replica, name = arg(), arg()
local answer = call('HGET', ANSWERS .. replica, name)
if answer then
  call('HDEL', ANSWERS .. replica, name)
  return {'J', answer}
end
local waiter = waiter_of(name)
if not waiter then return {'X'} end
if waiter.deadline > now then return {'W', waiter.deadline - now} end
return done(conclude(name, waiter))
