-- A probe: whether Redis runs every command that this script calls.
--
-- The commands are called on a string. Those of lists, hashes and sorted sets answer WRONGTYPE,
-- which comes after the check of permissions and before any effect. So a probe writes one short
-- string, which it deletes. If `SET` itself is refused, there is no string, and commands that would
-- create the key are left out.
--
-- The reply is an error: Redis' own (out of memory, read-only), or the names of the commands that
-- are refused.

if ARGV[1] == 'probe' then
  local key, refused, sentence, is_string = KEYS[1], {}, nil, false
  local calls = {
    { 'TIME' },
    { 'GET', key },
    { 'SET', key, '', 'PX', 1000 },
    { 'PEXPIRE', key, 1000 },
    { 'APPEND', key, '', creates = true },
    { 'LRANGE', key, 0, 0 },
    { 'LSET', key, 0, '' },
    { 'LTRIM', key, 0, 0 },
    { 'RPUSH', key, '', creates = true },
    { 'HGET', key, '' },
    { 'HMGET', key, '' },
    { 'HGETALL', key },
    { 'HLEN', key },
    { 'HSET', key, '', '', creates = true },
    { 'HDEL', key, '' },
    { 'ZCARD', key },
    { 'ZRANGEBYSCORE', key, 0, 0 },
    { 'ZREVRANGEBYSCORE', key, 0, 0 },
    { 'ZADD', key, 0, '', creates = true },
    { 'ZREM', key, '' },
    { 'DEL', key },
  }
  for _, call in ipairs(calls) do
    local reply = (is_string or not call.creates) and redis.pcall(unpack(call))
    local problem = type(reply) == 'table' and reply.err
    if not problem then
      is_string = is_string or call[1] == 'SET'
    elseif
      find(problem, "can't run", 1, true)
      or find(problem, 'no permissions', 1, true)
      or find(problem, 'Unknown Redis command', 1, true)
    then
      refused[#refused + 1] = call[1]
      sentence = sentence or problem
    elseif not find(problem, 'WRONGTYPE', 1, true) and not find(problem, 'no such key', 1, true) then
      return redis.error_reply(problem)
    end
  end
  if refused[1] then
    return redis.error_reply('REFUSED ' .. table.concat(refused, ' ') .. ': ' .. sentence)
  end
  return 1
end

