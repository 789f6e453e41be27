-- Keeps leases, with an answer per lease, in one round trip (L7-L9).
local name, incarnation, which = arg(), arg(), arg()
local keys, tokens, terms = {}, {}, {}
if which == 'all' then
  local held = call('ZRANGEBYLEX', HOLDER .. name, '[' .. incarnation .. '|',
    '(' .. incarnation .. '}')
  for place, member in ipairs(held) do keys[place] = sub(member, #incarnation + 2) end
else
  for place = 1, tonumber(arg()) do
    keys[place], tokens[place] = arg(), arg()
    if which == 'changed' then
      local ttl, stats = tonumber(arg()), arg()
      terms[place] = {ttl, stats ~= '' and stats or nil}
    end
  end
end

-- The fast path of a renewal changes two numbers: nothing else is read or written. Whatever else comes is
-- left to the kernel's way below.
local answers, expiries = {}, {}
local at = text(now)

-- Keeps one lease, and returns its facts.
local function keep(packed, token, plain, there)
  local known = owner_facts(token, name, incarnation)
  if there ~= name or sub(packed, 1, #known) ~= known then return end
  local expires, rest, ttl, policy, grace = match(packed, RENEWABLE, #known + 1)
  if not rest then return end
  local withheld = policy == '1' and tonumber(grace) or 0
  if now >= expires + withheld then return end
  local later = expiries[ttl]
  if not later then
    later = text(now + ttl)
    expiries[ttl] = later
  end
  -- Never backwards (L8); moments have equally many digits.
  if tonumber(later) > tonumber(expires) then
    expires = later
    call('PEXPIREAT', plain, withheld > 0 and text(expires + withheld) or expires)
  end
  return known .. expires .. '\31' .. at .. rest
end

local function keep_fast(from, to)
  local asked, kept = {}, {}
  for place = from, to do
    local n = (place - from) * 2 + 1
    asked[n] = SIDE .. keys[place]
    asked[n + 1] = names(keys[place])
  end
  local values = call('MGET', unpack(asked))
  local live = RENEWALS == 'live' and watched()
  for place = from, to do
    local n = (place - from) * 2 + 1
    local packed, there, key = values[n], values[n + 1], keys[place]
    -- The value of a presence says nothing.
    if there == '1' and sub(key, 1, 5) == 'node:' then there = name end
    local token = packed and (tokens[place] or (match(packed, OWNER)))
    packed = token and keep(packed, token, asked[n + 1], there)
    if packed then
      kept[#kept + 1] = asked[n]
      kept[#kept + 1] = packed
      answers[place] = which == 'all' and key .. '\31' .. packed or packed
      if live then
        local facts = unpack_facts(packed)
        announce('lease_renewed', {key = key, id = facts.id, name = name, incarnation = incarnation,
          token = tonumber(token), expires = tonumber(facts.expires), labels = facts.labels})
      end
    end
  end
  if #kept > 0 then
    changed = true
    call('MSET', unpack(kept))
  end
end
if which ~= 'changed' and RENEWALS ~= 'kept' then
  for from = 1, #keys, MOST_KEYS do keep_fast(from, math.min(from + MOST_KEYS - 1, #keys)) end
end

local rest = {}
for place, key in ipairs(keys) do
  if not answers[place] then rest[#rest + 1] = key end
end
fetch(rest)
for place, key in ipairs(keys) do
  if not answers[place] then
    local token = tokens[place] and tonumber(tokens[place]) or load(key).token
    local slot, loss = owned(key, token, name, incarnation)
    if slot then
      local new = terms[place] or {}
      extend(slot, new[1], new[2])
      answers[place] = which == 'all' and wire(slot) or pack(slot)
    else
      answers[place] = which == 'all' and {key, text(token), loss} or loss
    end
  end
end
return done(answers)
