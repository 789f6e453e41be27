-- A stretch of the live leases, in the order of their keys; or those of named keys, or of a holder.
local function pending(leases)
  if waiting == 0 then return end
  for _, name in ipairs(call('ZRANGEBYSCORE', DEADLINES, '(' .. text(now), '+inf')) do
    local waiter = waiter_of(name)
    if waiter then
      local request = waiter.request
      leases[#leases + 1] = {'P', request.keys, request.name, request.incarnation, request.ttl,
        request.death, request.labels, text(waiter.since), text(waiter.deadline), waiter.ticket}
    end
  end
end

local how = arg()
local found = {}
local cursor = ''
if how == 'keys' then
  local keys = {}
  for place = 1, tonumber(arg()) do keys[place] = arg() end
  fetch(keys)
  for _, key in ipairs(keys) do found[#found + 1] = seen(load(key)) end
elseif how == 'holder' then
  local keys = {}
  for place, member in ipairs(call('ZRANGE', HOLDER .. arg(), 0, -1)) do
    keys[place] = sub(member, find(member, '|', 1, true) + 1)
  end
  fetch(keys)
  for _, key in ipairs(keys) do
    local slot = load(key)
    if is_live(slot) then found[#found + 1] = wire(slot) end
  end
elseif how == 'range' then
  local from, to, most = arg(), arg(), tonumber(arg())
  local keys = call('ZRANGEBYLEX', INDEX, from, to, 'LIMIT', 0, most)
  fetch(keys)
  for _, key in ipairs(keys) do
    local slot = load(key)
    if is_live(slot) then found[#found + 1] = wire(slot) end
  end
  if #keys == most then cursor = keys[#keys] end
elseif how == 'pending' then
  pending(found)
end
return {text(now), cursor, found}
