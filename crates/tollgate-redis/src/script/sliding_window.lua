-- Sliding window. State: the start of the current aligned period, its count, and the count of the
-- previous period.
builders.s = function()
  local A = { keeps_count = true }

  function A.parse(text)
    local text, debt = split_debt(text)
    local limit, period, counts = match(text, '^s (%d+) (%d+) (%d)$')
    local l = { capacity = tonumber(limit), period = tonumber(period), counts = counts == '1' }
    l.debt = debt or l.capacity
    return l
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

  -- The state as of `now`: the current period may have become the previous one, or lapsed.
  local function rolled(l, s, now)
    local elapsed = max(now - s.start, 0)
    if elapsed < l.period then
      return s
    end
    if elapsed - l.period < l.period and s.current > 0 then
      return { start = s.start + l.period, current = 0, previous = s.current }
    end
    return A.fresh()
  end

  -- How far into a period `count` requests of the previous one weigh at most `most`.
  local function faded_after(l, count, most)
    local covered, rest = muldiv(most + 1, l.period, max(count, 1))
    return max(l.period - (rest > 0 and covered or covered - 1), 0)
  end

  -- When at most `most` units are in use, if more are now.
  local function fades_at(l, s, most)
    if most >= s.current then
      return s.start + faded_after(l, s.previous, most - s.current)
    end
    -- The current count fades in the next period.
    return s.start + l.period + faded_after(l, s.current, most)
  end

  function A.written(l, s)
    return s.start
  end

  -- floor(current + previous * z), where z is the share of the previous period that a window ending
  -- now still covers.
  function A.used(l, s, now)
    s = rolled(l, s, now)
    local covered = max(l.period - max(now - s.start, 0), 0)
    local weighted = muldiv(s.previous, covered, l.period)
    return s.current + weighted
  end

  function A.available_at(l, s, now, units)
    if A.fits(l, s, now, units) then
      return now
    end
    return fades_at(l, rolled(l, s, now), l.capacity - units)
  end

  function A.idle(l, s)
    if s.current == 0 and s.previous == 0 then
      return 0
    end
    return fades_at(l, s, 0)
  end

  function A.with_used(l, now, used)
    if used == 0 then
      return A.fresh()
    end
    return { start = now - now % l.period, current = used, previous = 0 }
  end

  local function roll(l, s, now)
    local r = rolled(l, s, now)
    s.start, s.current, s.previous = r.start, r.current, r.previous
  end

  function A.take(l, s, now, units)
    roll(l, s, now)
    s.start = max(s.start, now - now % l.period)
    s.current = min(s.current + units, COUNT_MAX)
  end

  function A.give(l, s, now, units)
    roll(l, s, now)
    local from_current = min(units, s.current)
    s.current = s.current - from_current
    s.previous = max(s.previous - (units - from_current), 0)
    if s.current == 0 and s.previous == 0 then
      s.start = 0
    end
  end

  function A.ticket(l, s)
    return format('%.0f', s.start)
  end

  -- Gives back units of the period that starts then.
  local function give_of(l, s, now, units, start)
    roll(l, s, now)
    if s.start == start then
      s.current = max(s.current - units, 0)
    elseif s.start - l.period == start then
      s.previous = max(s.previous - units, 0)
    end
    if s.current == 0 and s.previous == 0 then
      s.start = 0
    end
  end

  function A.give_drawn(l, s, now, units, drawn)
    give_of(l, s, now, units, drawn - drawn % l.period)
  end

  function A.undo(l, s, now, units, ticket)
    give_of(l, s, now, units, tonumber(ticket))
  end

  -- Under the same period the counts stay valid.
  function A.adopt(l, old, s, now)
    return old.period == l.period and s or A.with_used(l, now, A.used(old, s, now))
  end

  return A
end
