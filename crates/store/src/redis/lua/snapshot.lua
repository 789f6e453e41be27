-- Everything live at one revision, in one step (L20). Targets that other programs write are not
-- part of it: no revision speaks of them.
local leases, found = {}, {}
local keys = call('ZRANGE', INDEX, 0, -1)
fetch(keys)
for _, key in ipairs(keys) do
  local slot = load(key)
  if is_live(slot) then leases[#leases + 1] = wire(slot) end
end
for _, kind in ipairs(call('SMEMBERS', RECORD_KINDS)) do
  for _, id in ipairs(call('ZRANGE', RECORD_IDS .. kind, 0, -1)) do
    local key = kind .. ':' .. id
    local at, value = record_of(key)
    found[#found + 1] = {key, text(at), value}
  end
end
for _, id in ipairs(call('HKEYS', TARGETS)) do
  local key = 'target:' .. id
  local at, value = record_of(key)
  if at then found[#found + 1] = {key, text(at), value} end
end
return {text(revision), text(now), leases, found}
