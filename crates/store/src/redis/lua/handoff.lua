-- One step of a handoff (L18). A handoff is kept as JSON, in the kernel's own form.
local step = arg()

local function open_handoff(slot)
  if not slot.live or slot.handoff == '' then return nil end
  local handoff = cjson.decode(slot.handoff)
  if now < handoff['until'] then return handoff end
end

local function encode(handoff)
  local from = handoff.from and (',"from":' .. text(handoff.from)) or ''
  return '{"successor":{"name":' .. cjson.encode(handoff.successor.name) .. ',"incarnation":'
    .. cjson.encode(handoff.successor.incarnation) .. '},"stage":"' .. handoff.stage
    .. '","until":' .. text(handoff['until']) .. ',"drain_ms":' .. text(handoff.drain_ms)
    .. ',"confirm_ms":' .. text(handoff.confirm_ms) .. from .. '}'
end

-- Why, for programs: with the other holder that it concerns.
local function cause(word, holder)
  return '{"' .. word .. '":{"name":' .. cjson.encode(holder.name) .. ',"incarnation":'
    .. cjson.encode(holder.incarnation) .. '}}'
end

local function is_successor(handoff, name, incarnation)
  return handoff.successor.name == name and handoff.successor.incarnation == incarnation
end

local function set_stage(slot, handoff, event)
  slot.handoff = encode(handoff)
  touch(slot)
  emit(event, slot, nil, nil, cause('successor', handoff.successor))
  return {'O', slot.handoff}
end

if step == 'offer' then
  local slot, loss = owned(arg(), tonumber(arg()), arg(), arg())
  if not slot then return done(loss) end
  local name, incarnation = arg(), arg()
  local open = open_handoff(slot)
  if open and open.stage ~= 'committed' and is_successor(open, name, incarnation) then
    return done({'O', slot.handoff})
  end
  return done(set_stage(slot, {successor = {name = name, incarnation = incarnation},
    stage = 'offered', ['until'] = now + tonumber(arg()), drain_ms = tonumber(arg()),
    confirm_ms = tonumber(arg())}, 'handoff_offered'))
elseif step == 'prepare' then
  local slot = load(arg())
  respect(slot)
  settle(slot)
  local open = open_handoff(slot)
  if not open or not is_successor(open, arg(), arg()) then return done({'V'}) end
  if open.stage == 'offered' then
    open.stage, open['until'] = 'prepared', now + open.drain_ms
    return done(set_stage(slot, open, 'handoff_prepared'))
  elseif open.stage == 'committed' then
    return done({'M', wire(slot)})
  end
  return done({'O', slot.handoff})
elseif step == 'commit' then
  local key, token = arg(), tonumber(arg())
  local slot, loss = owned(key, token, arg(), arg())
  local limit = arg()
  if not slot then
    -- A repeated commit finds the successor's lease, as long as it is not confirmed.
    local there = load(key)
    if there.live and there.handoff ~= '' and cjson.decode(there.handoff).from == token then
      return done({'M', wire(there)})
    end
    return done(loss)
  end
  local open = open_handoff(slot)
  if not open or open.stage ~= 'prepared' then return done({'V'}) end
  -- Nothing could fence the successor: the holder keeps the key.
  if not next_token(slot) then return done({'V'}) end
  local successor = open.successor
  -- Another incarnation of the same name gets no more than that name has already.
  local wanted = {name = successor.name, labels = slot.labels, keys = {key}, limit = limit}
  if over_limit(wanted, successor.name == slot.name and 0 or 1) then return done({'V'}) end
  open.stage, open['until'], open.from = 'committed', now + open.confirm_ms, slot.token
  finish(slot, 'released', 'lease_released', nil, nil, cause('handed_over_to', successor))
  grant(slot, {name = successor.name, incarnation = successor.incarnation, ttl = slot.ttl,
    policy = slot.policy, grace = slot.grace, death = slot.death, labels = slot.labels},
    open['until'], encode(open))
  return done({'M', wire(slot)})
elseif step == 'confirm' then
  local slot, loss = owned(arg(), tonumber(arg()), arg(), arg())
  if not slot then return done(loss) end
  extend(slot)
  return done({'M', wire(slot)})
end
-- cancel
local slot = load(arg())
respect(slot)
settle(slot)
local open = open_handoff(slot)
if not open then return done({'V'}) end
local name, incarnation = arg(), arg()
local by_holder = slot.name == name and slot.incarnation == incarnation
if open.stage == 'committed' or not (is_successor(open, name, incarnation) or by_holder) then
  return done({'O', slot.handoff})
end
slot.handoff = ''
touch(slot)
emit('handoff_cancelled', slot, nil, nil,
  cause('cancelled_by', {name = name, incarnation = incarnation}))
return done({'V'})
