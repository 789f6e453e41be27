-- Looking without touching.
local function is_live(slot)
  return slot.live and not slot.tampered and now < slot.lapses
end

-- A lease as others see it; one that another program took by hand is shown with its value.
local function seen(slot)
  if is_live(slot) then return wire(slot) end
  if slot.foreign then return {'F', slot.key, slot.foreign, call('PTTL', slot.plain)} end
end
