-- The fast path: an acquire (one key that is free, or held by somebody else) and a release (of a live
-- lease that nobody waits for), straight through: no more is read, written or built than these need.
-- The first command that is anything else, and all after it, are left to the kernel's way below.
local count, undecided, next_arg = tonumber(ARGV[1]), 1, 2
local answers = {}
do
  local call, format, floor = redis.call, string.format, math.floor
  local sub, match = string.sub, string.match
  local clock = call('TIME')
  local now = clock[1] * 1000 + floor(clock[2] / 1000)
  local counters = call('HMGET', META, 'revision', 'now', 'floor', 'waiting')
  local revision = tonumber(counters[1])
  local least = tonumber(counters[3]) or 0
  local waiting = counters[4] and counters[4] ~= '0'
  if counters[2] and tonumber(counters[2]) > now then now = tonumber(counters[2]) end
  local at = format('%.0f', now)

  -- Which commands may take it, and what has to be read for them.
  local starts, keys, asked, seen = {}, {}, {}, {}
  local from = next_arg
  while revision and #keys < count do
    local key, size
    if ARGV[from] == 'release' then
      key, size = ARGV[from + 1], 5
    elseif ARGV[from + AT_ANY] == '0' and ARGV[from + AT_LIMIT] == '' and ARGV[from + AT_FORCE] == ''
      and ARGV[from + AT_COUNT] == '1' then
      key, size = ARGV[from + AT_FIRST], AT_FIRST + 1
    end
    if not key or seen[key] then break end
    seen[key] = true
    local n = #keys + 1
    keys[n], starts[n] = key, from
    asked[n * 3 - 2] = SIDE .. key
    asked[n * 3 - 1], asked[n * 3] = names(key)
    from = from + size
  end
  local values, newest
  if #keys > 0 then
    values = call('MGET', unpack(asked))
    newest = call('ZMSCORE', LAST, unpack(keys))
  end

  -- What is written once for all commands. A list is made with its first values: most have no more.
  local kept, gone, timers, listed, unlisted, idle, newer, news
  local joined, parted, watched, number = {}, {}, nil, nil
  local function add(list, first, second)
    if not list then return {first, second} end
    list[#list + 1] = first
    list[#list + 1] = second
    return list
  end
  local function emit(n, event, key, id, name, incarnation, token, expires, labels, terms)
    revision = revision + 1
    number = format('%.0f', revision)
    call('XADD', EVENTS, 'MAXLEN', '~', HISTORY, number .. '-0', 'event', event, 'at', at, 'key', key,
      'lease', id, 'holder', name, 'incarnation', incarnation, 'token', token, 'expires', expires,
      'labels', labels, 'detail', '', 'terms', terms, 'before', newest[n] or '')
    newer = add(newer, number, key)
    if watched == nil then watched = call('PUBSUB', 'NUMSUB', NEWS)[2] > 0 end
    if watched then
      news = add(news, {number, at, event, key, id, name, incarnation, token, expires, labels, '', ''})
    end
  end

  local function release(key, n)
    local p = starts[n]
    local token, name, incarnation = ARGV[p + 2], ARGV[p + 3], ARGV[p + 4]
    local packed, owner = values[n * 3 - 2], owner_facts(token, name, incarnation)
    if not packed or sub(packed, 1, #owner) ~= owner then return end
    local expires, renewed, ttl, policy, grace, id, death, acquired, labels, rest =
      match(packed, TERMS, #owner + 1)
    local lapses = policy == '1' and expires + grace or tonumber(expires)
    if now >= lapses or values[n * 3 - 1] ~= (sub(key, 1, 5) == 'node:' and '1' or name) then return end
    if waiting and call('EXISTS', QUEUE .. key) == 1 then return end
    emit(n, 'lease_released', key, id, name, incarnation, token, expires, labels,
      table.concat({ttl, policy, grace, death, acquired, renewed, sub(packed, rest)}, ' '))
    kept = add(kept, asked[n * 3 - 2], 'released' .. sub(packed, 1, rest - 1))
    gone = add(gone, asked[n * 3 - 1])
    unlisted = add(unlisted, key)
    idle = add(idle, at, key)
    parted[name] = add(parted[name], incarnation .. '|' .. key)
    return 1
  end

  local function acquire(key, n)
    local p = starts[n]
    local name, incarnation, ttl = ARGV[p + AT_NAME], ARGV[p + AT_INCARNATION], ARGV[p + AT_TTL]
    local policy, grace, death = ARGV[p + AT_POLICY], ARGV[p + AT_GRACE], ARGV[p + AT_DEATH]
    local labels = ARGV[p + AT_LABELS]
    local packed, there, last = values[n * 3 - 2], values[n * 3 - 1], tonumber(values[n * 3]) or 0
    if packed and sub(packed, 1, 1) == '\31' then
      -- Live: held, or not for the fast path.
      local token, holder, process, rest = match(packed, OWNER)
      local expires, _, _, withheld, its_grace, _, _, _, its_labels = match(packed, TERMS, rest)
      local left = expires - now
      if withheld == '1' then left = left + its_grace end
      if left <= 0 or ARGV[p + AT_WAIT] ~= '0' or (holder == name and process == incarnation)
        or there ~= (sub(key, 1, 5) == 'node:' and '1' or holder) then
        return
      end
      return {'R', key, 'held', holder, process, token, left, its_labels}
    end
    if there then return end
    if packed then
      local token = tonumber((match(packed, ENDED_TOKEN)))
      if token > last then last = token end
    end
    if least > last then last = least end
    last = last + 1
    if last < now then last = now end
    if last > MAX_TOKEN then return end
    local token, expires = last == now and at or format('%.0f', last), format('%.0f', now + ttl)
    local lapses = policy == '1' and format('%.0f', expires + grace) or expires
    -- Another type than a string looked like nothing there, and was not written by us.
    local value = sub(key, 1, 5) == 'node:' and '1' or name
    if not call('SET', asked[n * 3 - 1], value, 'NX', 'PXAT', lapses) then return end
    local id = lease_id(now, revision + 1)
    emit(n, 'lease_acquired', key, id, name, incarnation, token, expires, labels, '')
    packed = pack_facts({ended = '', token = token, name = name, incarnation = incarnation,
      expires = expires, renewed = '0', ttl = ttl, policy = policy, grace = grace, handoff = '',
      id = id, death = death, acquired = at, labels = labels, rest = ''})
    kept = add(add(kept, asked[n * 3 - 2], packed), asked[n * 3], token)
    timers = add(timers, lapses, key)
    listed = add(listed, '0', key)
    joined[name] = add(joined[name], '0', incarnation .. '|' .. key)
    return key .. '\31' .. packed
  end

  for n, key in ipairs(keys) do
    local answer
    if ARGV[starts[n]] == 'release' then answer = release(key, n) else answer = acquire(key, n) end
    if not answer then break end
    answers[n] = answer
    undecided = n + 1
    next_arg = starts[n + 1] or from
  end
  if kept then
    call('MSET', unpack(kept))
    call('HSET', META, 'revision', number, 'now', at)
    call('ZADD', LAST, unpack(newer))
  end
  if gone then
    call('DEL', unpack(gone))
    call('ZREM', EXPIRY, unpack(unlisted))
    call('ZREM', INDEX, unpack(unlisted))
    call('ZADD', IDLE, unpack(idle))
  end
  if timers then
    call('ZADD', EXPIRY, unpack(timers))
    call('ZADD', INDEX, unpack(listed))
  end
  for name, members in pairs(parted) do call('ZREM', HOLDER .. name, unpack(members)) end
  for name, members in pairs(joined) do call('ZADD', HOLDER .. name, unpack(members)) end
  if news then call('PUBLISH', NEWS, cjson.encode(news)) end
end
if undecided > count then return answers end
