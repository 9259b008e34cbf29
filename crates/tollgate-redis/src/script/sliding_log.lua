-- Sliding log. The only state that is a list, not a string. Its first element is the text of the
-- cell. Then follow the time and the cost of every admitted request of the last period, oldest
-- first; the oldest may have lapsed. Entries are numbered from 1 by their position in the list, and
-- read on demand. Entries `head` to `tail` are live. The first `kept` of them stay in the list; of
-- those, the ones in `own` have another cost. An entry whose units were all given back stays, unless
-- it is the newest.

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
    return { head = 1, tail = 0, kept = 0, stored = 0, sum = 0, own = {}, read = {} }
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
    if not s.own[i] and not s.read[i] then
      local first, last = i, i
      if i < s.stored and s.read[i + 1] then
        first = max(i - LOG_PAGE + 1, s.head)
      elseif i < s.stored then
        last = min(i + LOG_PAGE - 1, s.stored)
      end
      local numbers = redis.call('LRANGE', s.key, 2 * first - 1, 2 * last)
      for j = first, last do
        local at, cost = tonumber(numbers[2 * (j - first) + 1]), tonumber(numbers[2 * (j - first) + 2])
        if not at or not cost then
          unreadable(s.key, 'an entry of its log is damaged')
        end
        s.read[j] = { at, cost }
      end
    end
    return unpack(s.own[i] or s.read[i])
  end

  local function set_entry(s, i, at, cost)
    s.own[i] = { at, cost }
  end

  -- Drops the entries after `tail`.
  local function cut(s, tail)
    for i = tail + 1, s.tail do
      s.own[i] = nil
    end
    s.tail, s.kept = tail, min(s.kept, tail)
  end

  -- Drops the newest entries of which no unit is left.
  local function cut_empty(s)
    local tail = s.tail
    while tail >= s.head and select(2, entry(s, tail)) == 0 do
      tail = tail - 1
    end
    cut(s, tail)
  end

  -- The copy has changes of its own. What has been read is shared.
  function A.copy(s)
    local copy = {}
    for name, value in pairs(s) do
      copy[name] = value
    end
    copy.own = {}
    for i, own in pairs(s.own) do
      copy.own[i] = own
    end
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
    if s.tail >= s.head then
      local at, cost = entry(s, s.tail)
      if at >= now then
        set_entry(s, s.tail, at, cost + units)
        return
      end
    end
    s.tail = s.tail + 1
    set_entry(s, s.tail, now, units)
  end

  function A.give(l, s, now, units)
    drop_lapsed(l, s, now)
    local tail = s.tail
    while tail >= s.head do
      local at, cost = entry(s, tail)
      if cost > units then
        set_entry(s, tail, at, cost - units)
        s.sum = s.sum - units
        break
      end
      units, s.sum, tail = units - cost, s.sum - cost, tail - 1
    end
    cut(s, tail)
    cut_empty(s)
  end

  -- Gives back units of the entry of that time.
  function A.give_drawn(l, s, now, units, drawn)
    drop_lapsed(l, s, now)
    local low, high = s.head, s.tail
    while low < high do
      local middle = floor((low + high + 1) / 2)
      if entry(s, middle) <= drawn then
        low = middle
      else
        high = middle - 1
      end
    end
    if low == high then
      local at, cost = entry(s, low)
      if at == drawn then
        units = min(units, cost)
        s.sum = s.sum - units
        set_entry(s, low, at, cost - units)
        cut_empty(s)
      end
    end
  end

  function A.ticket(l, s)
    return format('%.0f', (entry(s, s.tail)))
  end

  function A.undo(l, s, now, units, ticket)
    A.give_drawn(l, s, now, units, tonumber(ticket))
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
      for i, own in pairs(s.own) do
        if s.head <= i and i <= s.kept then
          redis.call('LSET', key, 2 * i, format('%.0f', own[2]))
        end
      end
    else
      if cell.text and not cell.list then
        redis.call('APPEND', key, '')
        redis.call('DEL', key)
      end
      pushed[1] = text
    end
    for i = max(s.kept + 1, s.head), s.tail do
      local at, cost = entry(s, i)
      pushed[#pushed + 1] = format('%.0f', at)
      pushed[#pushed + 1] = format('%.0f', cost)
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
