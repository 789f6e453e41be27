-- Appends a seal, unless another replica sealed its events already: the chain cannot fork.
local first, last, previous, digest, marks = arg(), arg(), arg(), arg(), arg()
local newest = newest_seal()[1]
if newest and tonumber(sub(newest[1], 1, find(newest[1], '-', 1, true) - 1)) >= tonumber(first) then
  return 0
end
call('XADD', SEALS, last .. '-0', 'first', first, 'previous', previous, 'digest', digest,
  'marks', marks)
-- Seals of forgotten events go; the newest stays, for the chain to go on from.
local from = kept()
call('HSET', META, 'kept', text(from))
call('XTRIM', SEALS, 'MINID', '=', format('%.0f-0', math.min(from, tonumber(last))))
return 1
