-- Keeps leases, with an answer per lease, in one round trip (L7-L9).
local name, incarnation, which = arg(), arg(), arg()
local answers = {}
local function keep(key, token, ttl, stats)
  local slot, loss = owned(key, token, name, incarnation)
  if slot then
    extend(slot, ttl, stats)
    loss = wire(slot)
  end
  answers[#answers + 1] = loss
end
if which == 'all' then
  local held = call('ZRANGEBYLEX', HOLDER .. name, '[' .. incarnation .. '|',
    '(' .. incarnation .. '}')
  for _, member in ipairs(held) do
    local key = sub(member, #incarnation + 2)
    local slot = load(key)
    local token = slot.token
    keep(key, token)
    answers[#answers] = {key, token, answers[#answers]}
  end
else
  for _ = 1, tonumber(which) do
    local key, token, ttl, stats = arg(), tonumber(arg()), arg(), arg()
    keep(key, token, tonumber(ttl), stats ~= '' and stats or nil)
  end
end
return done(answers)
