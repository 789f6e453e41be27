-- Asks for keys: one, all of several, or one of a pool; at once or after a wait (L1-L6).
local replica, name = arg(), arg()
local request = read_request()
settle_waited(request)
local answer = decide(request)
if request.wait > 0 and is_held(answer) then
  for _, key in ipairs(request.keys) do
    if call('ZCARD', QUEUE .. key) >= MAX_WAITERS then
      return done({'R', answer[2], 'queue'})
    end
  end
  ticket = ticket + 1
  waiting = waiting + 1
  changed, queues_changed = true, true
  local deadline = now + request.wait
  call('HSET', WAITING, name, cmsgpack.pack({request = request, since = now, deadline = deadline,
    replica = replica, ticket = ticket}))
  call('ZADD', DEADLINES, deadline, name)
  call('ZADD', ALIVE, now, replica)
  for _, key in ipairs(request.keys) do
    call('ZADD', QUEUE .. key, ticket, name)
    -- Nobody tells us when another program lets go: look again soon.
    if load(key).foreign then call('ZADD', EXPIRY, now + FOREIGN_LOOK, key) end
  end
  answer = {'W', request.wait}
end
return done(answer)
