-- A stretch of the history after a revision, with its bounds: time, base, oldest, newest, entries.
local after, most = tonumber(arg()), tonumber(arg())
local base = tonumber(call('HGET', META, 'base')) or revision
local first = call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
local oldest = revision + 1
if first then oldest = tonumber(sub(first[1], 1, find(first[1], '-', 1, true) - 1)) end
local entries = {}
if most > 0 and after < revision then
  entries = call('XRANGE', EVENTS, format('(%.0f-0', after), '+', 'COUNT', most)
end
return {text(now), text(base), text(oldest), text(revision), entries}
