-- The chain of digests over the history.

-- The first revision that the history must have. The stream keeps HISTORY events or more, so that only
-- what is older than those can have been trimmed: any other that is gone was removed by somebody else.
local function kept()
  local base = tonumber(call('HGET', META, 'base')) or revision
  local first = call('XRANGE', EVENTS, '-', '+', 'COUNT', 1)[1]
  local oldest = revision + 1
  if first then oldest = tonumber(sub(first[1], 1, find(first[1], '-', 1, true) - 1)) end
  local known = tonumber(call('HGET', META, 'kept')) or base + 1
  return math.max(known, math.min(oldest, revision + 1 - HISTORY))
end

local function newest_seal() return call('XREVRANGE', SEALS, '+', '-', 'COUNT', 1) end
