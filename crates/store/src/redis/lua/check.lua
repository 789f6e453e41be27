-- Whether these tokens still count.
local verdicts = {}
for place = 1, tonumber(arg()) do
  local slot, token = load(arg()), tonumber(arg())
  local newest = last_token(slot)
  if newest == 0 or token > newest then
    verdicts[place] = {'unknown'}
  elseif token < newest then
    verdicts[place] = {'stale', newest}
  elseif is_live(slot) and slot.token == token then
    verdicts[place] = {'current'}
  else
    verdicts[place] = {'ended'}
  end
end
return verdicts
