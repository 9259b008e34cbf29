-- Lists blocks of an index (see blocks.lua), page by page.
--
-- KEYS: the index. ARGV: the time in microseconds, how many entries to skip, how many to read.
--
-- The reply: how many entries the next page skips, or -1 after the last one; 1 if blocks are missing
-- in the index; then of each block the name of its row and when it ends. An entry whose row has no
-- block is removed from the index.

-- The text of a row: a string, or the first element of a log's list. An error of Redis as it is.
local function text_of(name)
  local row = redis.pcall('GET', name)
  if type(row) == 'table' and string.find(row.err, 'WRONGTYPE', 1, true) then
    row = redis.pcall('LRANGE', name, 0, 0)
    if type(row) == 'table' and not row.err then
      return row[1]
    end
  end
  return row
end

local index, now, skipped, most = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local names = redis.call('ZRANGEBYSCORE', index, '(' .. ARGV[1], '+inf', 'LIMIT', skipped, most)
local reply, stale = { -1, 0 }, {}
for _, name in ipairs(names) do
  local text = name ~= '' and text_of(name)
  if type(text) == 'table' and not string.find(text.err, 'WRONGTYPE', 1, true) then
    return text
  end
  local ends_at = type(text) == 'string' and string.match(text, '^[^|]+|[^|]+|%d+ (%d+) ')
  if name == '' then
    reply[2] = 1
  elseif ends_at and tonumber(ends_at) > now then
    reply[#reply + 1], reply[#reply + 2] = name, tonumber(ends_at)
  else
    stale[#stale + 1] = name
  end
end
if #stale > 0 then
  -- A replica that was a master a moment ago refuses it.
  redis.pcall('ZREM', index, unpack(stale))
end
if #names == most then
  reply[1] = skipped + most - #stale
end
return reply
