-- Sliding window. State: the start of the current aligned period, the count in it, and the count in the one before.
makers.s = function()
  local A = {}

  function A.parse(text)
    local limit, period, counts = match(text, '^s (%d+) (%d+) (%d)$')
    return { capacity = tonumber(limit), period = tonumber(period), counts = counts == '1' }
  end

  function A.fresh()
    return { start = 0, current = 0, previous = 0 }
  end

  function A.load(text)
    local start, current, previous = match(text, '^(%d+) (%d+) (%d+)$')
    return { start = tonumber(start), current = tonumber(current), previous = tonumber(previous) }
  end

  function A.save(s)
    return format('%.0f %.0f %.0f', s.start, s.current, s.previous)
  end

  -- floor(x + y * z), where z is the share of the previous period that a window ending now still covers.
  local function estimate(l, s, now)
    local covered = max(l.period - max(now - s.start, 0), 0)
    local weighed = muldiv(s.previous, covered, l.period)
    return s.current + weighed
  end

  -- How far into a period `count` requests of the one before weigh at most `most`.
  local function faded_after(l, count, most)
    local covered, rest = muldiv(most + 1, l.period, max(count, 1))
    return max(l.period - (rest > 0 and covered or covered - 1), 0)
  end

  function A.roll(l, s, now)
    local start = now - now % l.period
    if s.current == 0 and s.previous == 0 then
      s.start = 0
    elseif s.start > now + LATE then
      s.start, s.current, s.previous = start, l.capacity, 0
    elseif s.start < start then
      if start - s.start == l.period and s.current > 0 then
        s.start, s.current, s.previous = start, 0, s.current
      else
        s.start, s.current, s.previous = 0, 0, 0
      end
    end
  end

  function A.available(l, s, now)
    return max(l.capacity - estimate(l, s, now), 0)
  end

  function A.available_at(l, s, now, units)
    if units <= A.available(l, s, now) then
      return now
    end
    local most = l.capacity - units
    if most >= s.current then
      return s.start + faded_after(l, s.previous, most - s.current)
    end
    -- What was counted in this period has to fade in the next.
    return s.start + l.period + faded_after(l, s.current, most)
  end

  function A.take(l, s, now, units)
    s.start = max(s.start, now - now % l.period)
    s.current = min(s.current + units, MOST)
  end

  function A.give(l, s, now, units)
    local from_current = min(units, s.current)
    s.current = s.current - from_current
    s.previous = max(s.previous - (units - from_current), 0)
  end

  function A.ticket(l, s)
    return format('%.0f', s.start)
  end

  function A.undo(l, s, now, units, ticket)
    local start = tonumber(ticket)
    if s.start == start then
      s.current = max(s.current - units, 0)
    elseif s.start - l.period == start then
      s.previous = max(s.previous - units, 0)
    end
  end

  -- Counts mean the same under the same period. (Counted denials may exceed what was in use.)
  function A.adopt(l, old, s, now)
    local used = old.capacity - A.available(old, s, now)
    if old.period == l.period and estimate(old, s, now) == used and used <= l.capacity then
      return s
    end
    return A.with_used(l, now, used)
  end

  return A
end
