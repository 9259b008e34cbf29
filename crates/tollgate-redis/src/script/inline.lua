-- Inline limits, which come with a request. Their state does not depend on the limit, so its tag is
-- only its kind.

-- Inline token bucket. State: the time at which the bucket is full, in whole microseconds, the
-- fraction of a microsecond, and the denominator of that fraction.
builders.t = function()
  local A, B = {}, algorithm('b')

  function A.parse(text)
    local capacity, token, parts, longest = match(text, '^t (%d+) (%d+) (%d+) (%d+)$')
    local l = B.of(capacity, token, parts, 0)
    -- A time further ahead than the longest refill of any inline limit is wild.
    l.longest, l.refill, l.period = tonumber(longest), l.period, 0
    return l
  end

  function A.fresh()
    return { full = 0, rest = 0, parts = 0 }
  end

  function A.load(text)
    local full, rest, parts = match(text, '^(%d+) (%d+) (%d+)$')
    return { full = tonumber(full), rest = tonumber(rest), parts = tonumber(parts) }
  end

  function A.save(s)
    return format('%.0f %.0f %.0f', s.full, s.rest, s.rest > 0 and s.parts or 0)
  end

  -- The state in the parts of this bucket. A fraction with another denominator is rounded up, to
  -- nanoseconds if both denominators are multiples of them.
  local function read(l, s)
    if s.rest == 0 or s.parts == l.parts then
      return { full = s.full, rest = s.rest }
    end
    local nanos = s.parts % NANOS_PER_MICRO == 0 and l.nanos and ceil(s.rest * NANOS_PER_MICRO / s.parts)
      or NANOS_PER_MICRO
    if nanos == NANOS_PER_MICRO then
      return { full = s.full + 1, rest = 0 }
    end
    return { full = s.full, rest = nanos * l.nanos }
  end

  local function write(l, s, b)
    s.full, s.rest, s.parts = b.full, b.rest, l.parts
  end

  function A.idle(l, s)
    return s.rest > 0 and s.full + 1 or s.full
  end

  function A.written(l, s)
    return max(A.idle(l, s) - l.longest, 0)
  end

  function A.used(l, s, now)
    local b = read(l, s)
    -- More than the capacity is in use: the excess does not matter, and may not be exact.
    return b.full - now > l.refill and l.capacity + 1 or B.used(l, b, now)
  end

  function A.fits(l, s, now, cost)
    return B.fits(l, read(l, s), now, cost)
  end

  function A.available_at(l, s, now, units)
    return B.available_at(l, read(l, s), now, units)
  end

  -- In nanoseconds, rounded up: the limit that gives back may have other parts.
  function A.lapse(l, s)
    local b = read(l, s)
    local nanos = l.nanos and ceil(b.rest / l.nanos) or b.rest > 0 and NANOS_PER_MICRO or 0
    if nanos == NANOS_PER_MICRO then
      return b.full + 1, 0
    end
    return b.full, nanos
  end

  function A.take(l, s, now, units)
    local b = read(l, s)
    B.take(l, b, now, units)
    write(l, s, b)
  end

  function A.give(l, s, now, units)
    local b = read(l, s)
    B.give(l, b, now, units)
    write(l, s, b)
  end

  function A.give_held(l, s, now, units, hold)
    local b = read(l, s)
    B.give_held(l, b, now, units, { lapse = hold.lapse, rest = hold.rest * (l.nanos or 0) })
    write(l, s, b)
  end

  function A.ticket(l, s, now)
    return format('%.0f %.0f', A.lapse(l, s))
  end

  function A.undo(l, s, now, units, ticket)
    local lapse, rest = match(ticket, '^(%d+) (%d+)$')
    A.give_held(l, s, now, units, { lapse = tonumber(lapse), rest = tonumber(rest) })
  end

  function A.with_used(l, now, used)
    local b, s = B.with_used(l, now, used, 0), A.fresh()
    write(l, s, b)
    return s
  end

  function A.adopt(l, old, s)
    return s
  end

  -- The longest refill of any inline limit, not that of the limit at hand.
  function A.rebase(l, s, now)
    return { full = now + l.longest, rest = 0, parts = 0 }
  end

  return A
end

-- Inline fixed window. The period is part of the key. State: when the window ends, and the count,
-- which is compared with the limit of each request.
builders.w = function()
  local A = {}

  function A.parse(text)
    local limit, period = match(text, '^w (%d+) (%d+)$')
    return { capacity = tonumber(limit), period = tonumber(period), debt = 0 }
  end

  function A.fresh()
    return { ends = 0, used = 0 }
  end

  function A.load(text)
    local ends, used = match(text, '^(%d+) (%d+)$')
    return { ends = tonumber(ends), used = tonumber(used) }
  end

  function A.save(s)
    return format('%.0f %.0f', s.ends, s.used)
  end

  function A.written(l, s)
    return max(s.ends - l.period, 0)
  end

  function A.used(l, s, now)
    return now < s.ends and s.used or 0
  end

  function A.available_at(l, s, now, units)
    return units <= A.available(l, s, now) and now or s.ends
  end

  function A.idle(l, s)
    return s.ends
  end

  function A.with_used(l, now, used)
    if used == 0 then
      return A.fresh()
    end
    return { ends = now + l.period, used = used }
  end

  local function set_used(l, s, now, used)
    if used == 0 then
      s.ends = 0
    elseif now >= s.ends then
      s.ends = now + l.period
    end
    s.used = used
  end

  function A.take(l, s, now, units)
    set_used(l, s, now, A.used(l, s, now) + units)
  end

  function A.give(l, s, now, units)
    set_used(l, s, now, max(A.used(l, s, now) - units, 0))
  end

  function A.ticket(l, s)
    return format('%.0f', s.ends)
  end

  function A.undo(l, s, now, units, ticket)
    if s.ends == tonumber(ticket) then
      A.give(l, s, now, units)
    end
  end

  function A.adopt(l, old, s)
    return s
  end

  -- The count stays; only the window moves.
  function A.rebase(l, s, now)
    return A.with_used(l, now, s.used)
  end

  return A
end
