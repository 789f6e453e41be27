-- Asks for keys (L1-L6) and gives leases back (L16): commands that were waiting to be sent, decided
-- one after the other in one step. The first ones may have been decided already, in `fast.lua`.
local function acquire(command)
  local request = command.request
  settle_waited(request)
  local answer = decide(request)
  if request.wait == 0 or not is_held(answer) then return answer end
  for _, key in ipairs(request.keys) do
    if call('ZCARD', QUEUE .. key) >= MAX_WAITERS then return {'R', answer[2], 'queue'} end
  end
  ticket = ticket + 1
  waiting = waiting + 1
  changed, queues_changed = true, true
  local deadline = now + request.wait
  call('HSET', WAITING, command.name, cmsgpack.pack({request = request, since = now,
    deadline = deadline, replica = command.replica, ticket = ticket}))
  call('ZADD', DEADLINES, deadline, command.name)
  call('ZADD', ALIVE, now, command.replica)
  -- What ended here leaves the timers first.
  flush()
  for _, key in ipairs(request.keys) do
    call('ZADD', QUEUE .. key, ticket, command.name)
    -- Nobody notifies us when another program lets go: look again soon.
    if load(key).foreign then call('ZADD', EXPIRY, now + FOREIGN_LOOK, key) end
  end
  return {'W', request.wait}
end

local commands, keys = {}, {}
position = next_arg - 1
for number = undecided, count do
  if arg() == 'acquire' then
    local command = {replica = arg(), name = arg(), request = read_request()}
    for _, key in ipairs(command.request.keys) do keys[#keys + 1] = key end
    commands[number] = command
  else
    local command = {key = arg(), token = tonumber(arg()), name = arg(), incarnation = arg()}
    keys[#keys + 1] = command.key
    commands[number] = command
  end
end
fetch(keys)
for number = undecided, count do
  local command = commands[number]
  if command.request then
    answers[number] = acquire(command)
  else
    answers[number] = release(command.key, command.token, command.name, command.incarnation)
  end
end
return done(answers)
