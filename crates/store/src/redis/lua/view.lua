-- Looking without touching.
local function is_live(slot)
  return slot.live and not slot.tampered and now < slot.lapses
end

-- A lease as others see it; one that another program took by hand is told with its value.
local function seen(slot)
  if is_live(slot) then return wire(slot) end
  if slot.foreign then return {'F', slot.key, slot.foreign, call('PTTL', slot.plain)} end
end

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
