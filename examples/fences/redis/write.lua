-- KEYS[1] the fence, KEYS[2] the value; ARGV[1] the token, ARGV[2] the new value.
-- On a cluster both keys need the same hash tag. The fence must never expire or be evicted.
if not ARGV[1]:match('^[1-9]%d*$') then
  return redis.error_reply('ERR the token must be a positive whole number')
end
local newest = redis.call('GET', KEYS[1])
if newest and tonumber(ARGV[1]) < tonumber(newest) then
  return redis.error_reply('STALE the newest token is ' .. newest)
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
return redis.status_reply('OK')
