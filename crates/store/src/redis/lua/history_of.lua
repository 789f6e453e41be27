-- The history of one key after a revision, newest first, at most so many entries: time, base, oldest,
-- newest, entries, and whether these are all.
local key, after, most = arg(), tonumber(arg()), tonumber(arg())
local base = tonumber(call('HGET', META, 'base')) or revision
local first = call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
local oldest = revision + 1
if first then oldest = tonumber(sub(first[1], 1, find(first[1], '-', 1, true) - 1)) end
local entries, at = {}, tonumber(call('ZSCORE', LAST, key))
while at and at > after and at >= oldest and #entries < most do
  local id = format('%.0f-0', at)
  local entry = call('XRANGE', EVENTS, id, id)[1]
  -- Somebody else removed it: only a look at everything shows what is left.
  if not entry then break end
  entries[#entries + 1] = entry
  at = nil
  for place = 1, #entry[2], 2 do
    if entry[2][place] == 'before' then at = tonumber(entry[2][place + 1]) end
  end
end
local whole = not at or at <= after or at < oldest
return {text(now), text(base), text(oldest), text(revision), entries, whole and 1 or 0}
