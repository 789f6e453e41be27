-- The fast path: an acquire (one key that is free, or held by somebody else) and a release (of a live
-- lease that nobody waits for), straight through: no more is read, written or built than these need.
-- The first command that is anything else, and all after it, are left to the kernel's way below.
-- Functions that see the variables around them are made anew by every call, which costs a lone command as
-- much as its decision: there are none of those.
local count, undecided, next_arg = tonumber(ARGV[1]), 1, 2
local answers = {}
-- A list is made with its first values: most have no more.
local function add(list, first, second)
  if not list then return {first, second} end
  list[#list + 1] = first
  list[#list + 1] = second
  return list
end
do
  local call, format, sub, match = redis.call, string.format, string.sub, string.match
  local clock = call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local counters = call('HMGET', META, 'revision', 'now', 'floor', 'waiting')
  local revision = tonumber(counters[1])
  local least = tonumber(counters[3]) or 0
  local waiting = counters[4] and counters[4] ~= '0'
  if counters[2] and tonumber(counters[2]) > now then now = tonumber(counters[2]) end
  local at = format('%.0f', now)

  -- Which commands may take it, and what has to be read for them.
  local starts, keys, asked, seen = {}, {}, nil, {}
  local from = next_arg
  local many = 0
  while revision and many < count do
    local key, size
    if ARGV[from] == 'release' then
      key, size = ARGV[from + 1], 5
    elseif ARGV[from + AT_ANY] == '0' and ARGV[from + AT_LIMIT] == '' and ARGV[from + AT_FORCE] == ''
      and ARGV[from + AT_COUNT] == '1' then
      key, size = ARGV[from + AT_FIRST], AT_FIRST + 1
    end
    if not key or seen[key] then break end
    seen[key] = true
    many = many + 1
    keys[many], starts[many] = key, from
    local plain, fence = names(key)
    if asked then
      local n = many * 3
      asked[n - 2], asked[n - 1], asked[n] = SIDE .. key, plain, fence
    else
      asked = {SIDE .. key, plain, fence}
    end
    from = from + size
  end
  local values, newest
  if asked then
    values = call('MGET', unpack(asked))
    newest = call('ZMSCORE', LAST, unpack(keys))
  end

  -- What is written once for all commands.
  local kept, gone, timers, listed, unlisted, idle, newer, news, watched, number
  local joined, parted = {}, {}
  for n = 1, many do
    local key, p, packed, there = keys[n], starts[n], values[n * 3 - 2], values[n * 3 - 1]
    local answer, event, id, name, incarnation, token, expires, labels, terms
    if ARGV[p] == 'release' then
      token, name, incarnation = ARGV[p + 2], ARGV[p + 3], ARGV[p + 4]
      local owner = owner_facts(token, name, incarnation)
      if packed and sub(packed, 1, #owner) == owner then
        local renewed, ttl, policy, grace, death, acquired, rest
        expires, renewed, ttl, policy, grace, id, death, acquired, labels, rest =
          match(packed, TERMS, #owner + 1)
        local lapses = policy == '1' and expires + grace or tonumber(expires)
        if now < lapses and there == (sub(key, 1, 5) == 'node:' and '1' or name)
          and not (waiting and call('EXISTS', QUEUE .. key) == 1) then
          answer, event = 1, 'lease_released'
          terms = ttl .. ' ' .. policy .. ' ' .. grace .. ' ' .. death .. ' ' .. acquired .. ' '
            .. renewed .. ' ' .. sub(packed, rest)
          kept = add(kept, asked[n * 3 - 2], 'released' .. sub(packed, 1, rest - 1))
          gone = add(gone, asked[n * 3 - 1])
          unlisted = add(unlisted, key)
          idle = add(idle, at, key)
          parted[name] = add(parted[name], incarnation .. '|' .. key)
        end
      end
    elseif packed and sub(packed, 1, 1) == '\31' then
      -- Live: held, or not for the fast path.
      local holder, process, rest, withheld, its_grace, its_labels, _
      token, holder, process, rest = match(packed, OWNER)
      expires, _, _, withheld, its_grace, _, _, _, its_labels = match(packed, TERMS, rest)
      local left = expires - now
      if withheld == '1' then left = left + its_grace end
      if left > 0 and ARGV[p + AT_WAIT] == '0'
        and (holder ~= ARGV[p + AT_NAME] or process ~= ARGV[p + AT_INCARNATION])
        and there == (sub(key, 1, 5) == 'node:' and '1' or holder) then
        answer = {'R', key, 'held', holder, process, token, left, its_labels}
      end
    elseif not there then
      local ttl, policy, grace = ARGV[p + AT_TTL], ARGV[p + AT_POLICY], ARGV[p + AT_GRACE]
      name, incarnation = ARGV[p + AT_NAME], ARGV[p + AT_INCARNATION]
      local last = tonumber(values[n * 3]) or 0
      if packed then
        local before = tonumber((match(packed, ENDED_TOKEN)))
        if before > last then last = before end
      end
      if least > last then last = least end
      last = last + 1
      if last < now then last = now end
      token, expires = last == now and at or format('%.0f', last), format('%.0f', now + ttl)
      local lapses = policy == '1' and format('%.0f', expires + grace) or expires
      -- Another type than a string looked like nothing there, and was not written by us.
      if last <= MAX_TOKEN and call('SET', asked[n * 3 - 1],
        sub(key, 1, 5) == 'node:' and '1' or name, 'NX', 'PXAT', lapses) then
        event, labels, terms = 'lease_acquired', ARGV[p + AT_LABELS], ''
        id = lease_id(now, revision + 1)
        local facts = pack_facts({ended = '', token = token, name = name, incarnation = incarnation,
          expires = expires, renewed = '0', ttl = ttl, policy = policy, grace = grace, handoff = '',
          id = id, death = ARGV[p + AT_DEATH], acquired = at, labels = labels, rest = ''})
        answer = key .. '\31' .. facts
        kept = add(add(kept, asked[n * 3 - 2], facts), asked[n * 3], token)
        timers = add(timers, lapses, key)
        listed = add(listed, '0', key)
        joined[name] = add(joined[name], '0', incarnation .. '|' .. key)
      end
    end
    if not answer then break end
    if event then
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
    for name, members in pairs(parted) do call('ZREM', HOLDER .. name, unpack(members)) end
  end
  if timers then
    call('ZADD', EXPIRY, unpack(timers))
    call('ZADD', INDEX, unpack(listed))
    for name, members in pairs(joined) do call('ZADD', HOLDER .. name, unpack(members)) end
  end
  if news then call('PUBLISH', NEWS, cjson.encode(news)) end
end
if undecided > count then return answers end
