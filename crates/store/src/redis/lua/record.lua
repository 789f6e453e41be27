-- One record, named records, or a stretch of one kind in the order of their ids.
local how = arg()
local found = {}
if how == 'keys' then
  for _ = 1, tonumber(arg()) do
    local key = arg()
    local at, value = record_of(key)
    if at then found[#found + 1] = {key, text(at), value} end
  end
else
  local kind, from, to, most = arg(), arg(), arg(), tonumber(arg())
  for _, id in ipairs(call('ZRANGEBYLEX', RECORD_IDS .. kind, from, to, 'LIMIT', 0, most)) do
    local key = kind .. ':' .. id
    local at, value = record_of(key)
    if at then found[#found + 1] = {key, text(at), value} end
  end
end
return found
