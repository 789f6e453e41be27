-- Takes a lease away (L17). The grant's event names the key when the caller does not know it.
local id, granted, reason, key = arg(), arg(), arg(), arg()
if key == '' then
  local entry = call('XRANGE', EVENTS, granted, granted)[1]
  if not entry then return {'?'} end
  for place = 1, #entry[2], 2 do
    if entry[2][place] == 'key' then key = entry[2][place + 1] end
  end
  if key == '' then return {'?'} end
end
local slot = load(key)
respect(slot)
if not slot.live or slot.id ~= id then return done({'N'}) end
if settle(slot) then return done({'N'}) end
local lease = wire(slot)
finish(slot, 'revoked', 'lease_revoked', reason, reason)
serve(slot)
return done({'Y', lease})
