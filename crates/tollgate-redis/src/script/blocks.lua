-- The index of blocks: a sorted set with the names of the rows that have a block, by the time when
-- the block ends. It finds blocks without a scan. `block` and `reset` write it together with the
-- rows, so no check reads or writes it. A reader compares each name with its row: other programs
-- delete rows, and a clock that goes back moves the end of a block.
--
-- It has the rows that are keyed by one value, and no more of them than the caller says. The member
-- '' is until when blocks are missing for want of room. It expires with its latest end.

-- The names of rows that are keyed by one value.
local ONE_VALUE = '^[^{]*{[^,*}]*}'
-- Lapsed entries that one request removes.
local TRIM_MAX = 64

-- Defined only for the operations that write an index, which comes after the keys of the request.
local index, lapsed_blocks, index_blocks
if find(ARGV[1], '^%+?block$') or find(ARGV[1], '^%+?reset$') then
  index = table.remove(KEYS)

  -- The lapsed entries that this request removes.
  function lapsed_blocks(now)
    return read_key('ZRANGEBYSCORE', index, '-inf', format('%.0f', now), 'LIMIT', 0, TRIM_MAX)
  end

  -- Adds the blocked ones of the rows that were written, and removes the others.
  function index_blocks(most, lapsed, written, now, grace)
    if #lapsed > 0 then
      redis.call('ZREM', index, unpack(lapsed))
    end
    for _, cell in ipairs(written) do
      if cell.blocked <= now then
        redis.call('ZREM', index, cell.key)
      elseif find(cell.key, ONE_VALUE) then
        local is_new = redis.call('ZADD', index, format('%.0f', cell.blocked), cell.key) == 1
        if is_new and redis.call('ZCARD', index) > most then
          redis.call('ZREM', index, cell.key)
          local missing = tonumber(redis.call('ZADD', index, 'XX', 'INCR', 0, '') or 0)
          redis.call('ZADD', index, format('%.0f', max(missing, cell.blocked)), '')
        end
      end
    end
    local latest = redis.call('ZREVRANGEBYSCORE', index, '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if latest then
      redis.call('PEXPIRE', index, format('%.0f', max(ceil((latest - now) / MILLISECOND), 0) + grace))
    end
  end
end
