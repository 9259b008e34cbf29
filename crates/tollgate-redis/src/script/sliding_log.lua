-- Sliding log. The only state that is a list, not a string. Its first element is the text of the
-- cell. Then follow the time and the cost of every admitted request of the last period, oldest
-- first; the oldest may have lapsed. Entries are numbered from 1 by their position in the list, and
-- read on demand. Entries `head` to `tail` are live; the first `kept` are unchanged in the list.

-- Entries that one LRANGE reads.
local LOG_PAGE = 64
-- List elements that one RPUSH writes.
local PUSH_MAX = 2000

builders.l = function()
  local A = { keeps_count = true }

  function A.parse(text)
    local text, debt = split_debt(text)
    local limit, period = match(text, '^l (%d+) (%d+)$')
    local l = { capacity = tonumber(limit), period = tonumber(period), list = true }
    l.debt = debt or l.capacity
    return l
  end

  function A.fresh()
    return { head = 1, tail = 0, kept = 0, stored = 0, sum = 0, at = {}, cost = {} }
  end

  function A.load(text, key)
    local stored, sum = match(text, '^(%d+) (%d+)$')
    local s = A.fresh()
    s.key, s.stored, s.sum = key, tonumber(stored), tonumber(sum)
    s.tail, s.kept = s.stored, s.stored
    return s
  end

  function A.save(s)
    return format('%d %.0f', s.tail - s.head + 1, s.sum)
  end

  -- The time and the cost of entry `i`. The newest entry is usually read alone. Any other starts a
  -- scan, towards newer entries from the head or older ones from the tail, so a page is read.
  local function entry(s, i)
    if not s.at[i] then
      local first, last = i, i
      if i < s.stored and s.at[i + 1] then
        first = max(i - LOG_PAGE + 1, s.head)
      elseif i < s.stored then
        last = min(i + LOG_PAGE - 1, s.kept)
      end
      local numbers = redis.call('LRANGE', s.key, 2 * first - 1, 2 * last)
      for j = first, last do
        local at = 2 * (j - first) + 1
        s.at[j], s.cost[j] = tonumber(numbers[at]), tonumber(numbers[at + 1])
      end
    end
    return s.at[i], s.cost[i]
  end

  -- Marks entry `i`, and all after it, as changed.
  local function touch(s, i)
    s.kept = min(s.kept, i - 1)
  end

  function A.copy(s)
    local copy = {}
    for name, value in pairs(s) do
      copy[name] = value
    end
    -- A change of the copy hides the original's entry; the others are shared.
    copy.at = setmetatable({}, { __index = s.at })
    copy.cost = setmetatable({}, { __index = s.cost })
    return copy
  end

  function A.written(l, s)
    return s.tail >= s.head and entry(s, s.tail) or 0
  end

  local function drop_lapsed(l, s, now)
    while s.tail >= s.head do
      local at, cost = entry(s, s.head)
      if now - at < l.period then
        break
      end
      s.sum, s.head = s.sum - cost, s.head + 1
    end
  end

  function A.used(l, s, now)
    local used, i = s.sum, s.head
    while i <= s.tail do
      local at, cost = entry(s, i)
      if now - at < l.period then
        break
      end
      used, i = used - cost, i + 1
    end
    return used
  end

  function A.idle(l, s)
    return s.tail >= s.head and entry(s, s.tail) + l.period or 0
  end

  function A.available_at(l, s, now, units)
    if units >= l.capacity then
      return max(A.idle(l, s), now)
    end
    if units == 0 and A.owed(l, s, now) == 0 then
      return now
    end
    local most, used, ready, i = l.capacity - units, s.sum, now, s.head
    while used > most and i <= s.tail do
      local at, cost = entry(s, i)
      used, ready, i = used - cost, at + l.period, i + 1
    end
    return max(ready, now)
  end

  function A.with_used(l, now, used)
    local s = A.fresh()
    if used > 0 then
      A.take(l, s, now, used)
    end
    return s
  end

  function A.take(l, s, now, units)
    drop_lapsed(l, s, now)
    s.sum = s.sum + units
    if s.tail >= s.head and entry(s, s.tail) >= now then
      s.cost[s.tail] = s.cost[s.tail] + units
      touch(s, s.tail)
    else
      s.tail = s.tail + 1
      s.at[s.tail], s.cost[s.tail] = now, units
      touch(s, s.tail)
    end
  end

  function A.give(l, s, now, units)
    drop_lapsed(l, s, now)
    while s.tail >= s.head do
      local _, cost = entry(s, s.tail)
      touch(s, s.tail)
      if cost > units then
        s.cost[s.tail], s.sum = cost - units, s.sum - units
        return
      end
      units, s.sum, s.tail = units - cost, s.sum - cost, s.tail - 1
    end
  end

  function A.ticket(l, s)
    return format('%.0f', s.at[s.tail])
  end

  function A.undo(l, s, now, units, ticket)
    local drawn_at = tonumber(ticket)
    for i = s.tail, s.head, -1 do
      local at, cost = entry(s, i)
      if at <= drawn_at then
        if at == drawn_at then
          units = min(units, cost)
          s.cost[i], s.sum = cost - units, s.sum - units
          touch(s, i)
          if s.cost[i] == 0 then
            -- The entries from `i` to `tail` have been read.
            for j = i, s.tail do
              s.at[j], s.cost[j] = s.at[j + 1], s.cost[j + 1]
            end
            s.tail = s.tail - 1
          end
        end
        return
      end
    end
  end

  -- The entries keep their times; those older than the new period are no longer in use.
  function A.adopt(l, old, s, now)
    drop_lapsed(old, s, now)
    drop_lapsed(l, s, now)
    return s
  end

  -- Writes `text` and the changed entries. Commands that Redis may refuse when it is out of memory
  -- come first, so that a refusal loses nothing.
  function A.write(s, cell, text)
    local key, renewed, stored = cell.key, s.kept < s.head, cell.stored or 0
    local pushed = {}
    if not renewed then
      redis.call('LSET', key, 0, text)
      if s.kept < s.stored then
        redis.call('LTRIM', key, 0, 2 * s.kept)
      end
    else
      if cell.text and not cell.list then
        redis.call('APPEND', key, '')
        redis.call('DEL', key)
      end
      pushed[1] = text
    end
    for i = max(s.kept + 1, s.head), s.tail do
      pushed[#pushed + 1] = format('%.0f', s.at[i])
      pushed[#pushed + 1] = format('%.0f', s.cost[i])
      if #pushed >= PUSH_MAX then
        redis.call('RPUSH', key, unpack(pushed))
        pushed = {}
      end
    end
    if pushed[1] then
      redis.call('RPUSH', key, unpack(pushed))
    end
    local dropped = 2 * (s.head - 1)
    if renewed and cell.list then
      redis.call('LTRIM', key, 2 * stored + 1, -1)
    elseif not renewed and dropped > 0 then
      redis.call('LSET', key, dropped, text)
      redis.call('LTRIM', key, dropped, -1)
    end
  end

  return A
end
