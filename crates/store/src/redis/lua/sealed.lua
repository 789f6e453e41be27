-- A part of the chain: the bounds of the history, the newest seal, and the seals after a revision.
local after, most = tonumber(arg()), tonumber(arg())
local seals = {}
if most > 0 then seals = call('XRANGE', SEALS, format('(%.0f-0', after), '+', 'COUNT', most) end
return {text(kept()), text(revision), newest_seal(), seals}
