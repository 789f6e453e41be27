-- A holder's end is known: what it had is released (L15). Its waits end first: nothing that is
-- released here may go back to them.
local how, name, incarnation, cause = arg(), arg(), arg(), arg()
local function concerned(other_name, other)
  if other_name ~= name then return false end
  if how == 'succeeded' then return other ~= incarnation end
  return other == incarnation
end
if waiting > 0 then
  for _, wait in ipairs(call('ZRANGE', DEADLINES, 0, -1)) do
    local waiter = waiter_of(wait)
    if waiter and concerned(waiter.request.name, waiter.request.incarnation) then
      answer_wait(wait, waiter, give_up(wait, waiter))
    end
  end
end
local keys = {}
for _, member in ipairs(call('ZRANGE', HOLDER .. name, 0, -1)) do
  local bar = find(member, '|', 1, true)
  if concerned(name, sub(member, 1, bar - 1)) then keys[#keys + 1] = sub(member, bar + 1) end
end
table.sort(keys, before)
fetch(keys)
local released = {}
for _, key in ipairs(keys) do
  local slot = load(key)
  respect(slot)
  if slot.live and concerned(slot.name, slot.incarnation)
    and (how ~= 'died' or slot.death == '1') and not settle(slot) then
    released[#released + 1] = wire(slot)
    finish(slot, 'released', 'lease_released', nil, nil, cause)
    serve(slot)
  end
end
return done(released)
