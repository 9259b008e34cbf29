-- Token bucket. State: when the bucket is full, in whole microseconds, and the fraction of a
-- microsecond in parts. A token takes `token / parts` microseconds to refill, so nothing rounds.
-- Refill is smooth, or every `step` microseconds.
builders.b = function()
  local A = {}

  -- The first tick at or after `at`.
  local function next_tick(l, at)
    if l.step > 0 and at % l.step > 0 then
      return at - at % l.step + l.step
    end
    return at
  end

  -- A bucket without debt.
  function A.of(capacity, token, parts, step)
    local l = { capacity = tonumber(capacity), token = tonumber(token), parts = tonumber(parts), step = tonumber(step) }
    l.debt = 0
    -- Parts of a nanosecond, if they are whole.
    l.nanos = l.parts % NANOS_PER_MICRO == 0 and l.parts / NANOS_PER_MICRO
    local whole, rest = muldiv(l.capacity, l.token, l.parts)
    -- A full refill, in whole steps.
    l.period = next_tick(l, rest > 0 and whole + 1 or whole)
    return l
  end

  function A.parse(text)
    local text, debt = split_debt(text)
    local l = A.of(match(text, '^b (%d+) (%d+) (%d+) (%d+)$'))
    l.debt = debt or l.capacity
    return l
  end

  function A.fresh()
    return { full = 0, rest = 0 }
  end

  function A.load(text)
    local full, rest = match(text, '^(%d+) (%d+)$')
    return { full = tonumber(full), rest = tonumber(rest) }
  end

  function A.save(s)
    return format('%.0f %.0f', s.full, s.rest)
  end

  -- The time to decide at: for stepped refill the last tick.
  local function tick(l, now)
    return l.step > 0 and now - now % l.step or now
  end

  -- The time until the bucket is full: whole microseconds and parts.
  local function until_full(s, tick)
    if s.full < tick then
      return 0, 0
    end
    return s.full - tick, s.rest
  end

  local function plus(l, us, rest, more_us, more_rest)
    us, rest = us + more_us, rest + more_rest
    if rest >= l.parts then
      return us + 1, rest - l.parts
    end
    return us, rest
  end

  -- The difference, at least 0.
  local function minus(l, us, rest, less_us, less_rest)
    us, rest = us - less_us, rest - less_rest
    if rest < 0 then
      us, rest = us - 1, rest + l.parts
    end
    if us < 0 then
      return 0, 0
    end
    return us, rest
  end

  -- How long `count` tokens take to refill.
  local function span(l, count)
    return muldiv(count, l.token, l.parts)
  end

  -- How many whole tokens refill in a span, and the remaining parts.
  local function tokens(l, us, rest)
    local whole, left = muldiv(us, l.parts, l.token)
    left = left + rest
    return whole + floor(left / l.token), left % l.token
  end

  function A.used(l, s, now)
    local lacking, part = tokens(l, until_full(s, tick(l, now)))
    return part > 0 and lacking + 1 or lacking
  end

  -- Whether `cost` can be taken. Not even 0 fits where more is in use than the bucket holds.
  function A.fits(l, s, now, cost)
    if cost > l.capacity then
      return false
    end
    local us, rest = until_full(s, tick(l, now))
    local most_us, most_rest = span(l, l.capacity - cost)
    return us < most_us or (us == most_us and rest <= most_rest)
  end

  function A.written(l, s)
    local us, rest = minus(l, s.full, s.rest, span(l, l.capacity + l.debt))
    return next_tick(l, rest > 0 and us + 1 or us)
  end

  function A.idle(l, s)
    return next_tick(l, s.rest > 0 and s.full + 1 or s.full)
  end

  -- When at most `most` units are in use.
  function A.most_used_at(l, s, now, most)
    local from = tick(l, now)
    local us, rest = until_full(s, from)
    us, rest = minus(l, us, rest, span(l, most))
    if us == 0 and rest == 0 then
      return now
    end
    return next_tick(l, from + us + (rest > 0 and 1 or 0))
  end

  function A.available_at(l, s, now, units)
    return A.most_used_at(l, s, now, l.capacity - units)
  end

  function A.lapse(l, s)
    return s.full, s.rest
  end

  local function full_after(s, from, us, rest)
    s.full, s.rest = from + us, rest
  end

  function A.with_used(l, now, used, owed)
    local s = A.fresh()
    used = min(used, l.capacity + min(owed, l.debt))
    if used > 0 then
      full_after(s, tick(l, now), span(l, used))
    end
    return s
  end

  function A.take(l, s, now, units)
    local from = tick(l, now)
    local us, rest = until_full(s, from)
    full_after(s, from, plus(l, us, rest, span(l, units)))
  end

  -- The lesser of two spans.
  local function least(us, rest, other_us, other_rest)
    if us > other_us or (us == other_us and rest > other_rest) then
      return other_us, other_rest
    end
    return us, rest
  end

  -- Shortens the time until the bucket is full by a span. A full bucket stays as it is.
  local function advance(l, s, from, less_us, less_rest)
    local us, rest = until_full(s, from)
    if us > 0 or rest > 0 then
      full_after(s, from, minus(l, us, rest, less_us, less_rest))
    end
  end

  function A.give(l, s, now, units)
    advance(l, s, tick(l, now), span(l, units))
  end

  function A.give_held(l, s, now, units, hold)
    local from = tick(l, now)
    if hold.lapse < from then
      return
    end
    local us, rest = span(l, units)
    advance(l, s, from, least(us, rest, hold.lapse - from, hold.rest))
  end

  function A.ticket(l, s, now)
    return format('%.0f %.0f', A.lapse(l, s))
  end

  function A.undo(l, s, now, units, ticket)
    local lapse, rest = match(ticket, '^(%d+) (%d+)$')
    A.give_held(l, s, now, units, { lapse = tonumber(lapse), rest = tonumber(rest) })
  end

  -- How long this bucket refills what `old` refills in a span, rounded up.
  local function converted(l, old, us, rest)
    local whole, part = tokens(old, us, rest)
    local parts, over = muldiv(part, l.token, old.token)
    parts = over > 0 and parts + 1 or parts
    us, rest = span(l, whole)
    return plus(l, us, rest, floor(parts / l.parts), parts % l.parts)
  end

  -- The refilled part of a token stays, so that a limit that changes often still refills. Units
  -- beyond the new capacity are cut, except those that were owed before.
  function A.adopt(l, old, s, now)
    if l.step > 0 or old.step > 0 then
      return A.with_used(l, now, A.used(old, s, now), A.owed(old, s, now))
    end
    local us, rest = until_full(s, now)
    local owed_us, owed_rest = converted(l, old, minus(old, us, rest, span(old, old.capacity)))
    owed_us, owed_rest = least(owed_us, owed_rest, span(l, l.debt))
    local most_us, most_rest = span(l, l.capacity)
    most_us, most_rest = plus(l, most_us, most_rest, owed_us, owed_rest)
    us, rest = converted(l, old, us, rest)
    us, rest = least(us, rest, most_us, most_rest)
    local adopted = A.fresh()
    full_after(adopted, now, us, rest)
    return adopted
  end

  return A
end
