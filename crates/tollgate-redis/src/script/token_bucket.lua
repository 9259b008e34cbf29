-- Token bucket. State: when it is full again, in whole microseconds and the rest in parts of one. A token lasts
-- `token / parts` microseconds, so nothing rounds. Refill is smooth, or `step` microseconds apart.
makers.b = function()
  local A = {}

  function A.of(capacity, token, parts, step)
    local l = { capacity = tonumber(capacity), token = tonumber(token), parts = tonumber(parts), step = tonumber(step) }
    l.nanos = l.parts % 1000 == 0 and l.parts / 1000
    return l
  end

  function A.parse(text)
    return A.of(match(text, '^b (%d+) (%d+) (%d+) (%d+)$'))
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

  -- The time that counts: for stepped refill the last tick.
  local function tick(l, now)
    return l.step > 0 and now - now % l.step or now
  end

  -- What it lacks, as a span: whole microseconds and parts.
  local function debt(s, tick)
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

  -- The difference, or nothing if it is less than that.
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

  -- How long so many tokens last.
  local function span(l, count)
    return muldiv(count, l.token, l.parts)
  end

  -- How many whole tokens come in so long, and what is left over in parts.
  local function tokens(l, us, rest)
    local whole, left = muldiv(us, l.parts, l.token)
    left = left + rest
    return whole + floor(left / l.token), left % l.token
  end

  function A.roll(l, s, now)
    local us, rest = debt(s, tick(l, now + LATE))
    local most_us, most_rest = span(l, l.capacity)
    if us > most_us or (us == most_us and rest > most_rest) then
      s.full, s.rest = tick(l, now) + most_us, most_rest
    end
  end

  function A.available(l, s, now)
    local lacking, part = tokens(l, debt(s, tick(l, now)))
    return max(l.capacity - (part > 0 and lacking + 1 or lacking), 0)
  end

  -- The first tick at or after `at`.
  local function next_tick(l, at)
    if l.step > 0 and at % l.step > 0 then
      return at - at % l.step + l.step
    end
    return at
  end

  function A.available_at(l, s, now, units)
    local from = tick(l, now)
    local us, rest = debt(s, from)
    us, rest = minus(l, us, rest, span(l, l.capacity - units))
    if us == 0 and rest == 0 then
      return now
    end
    return next_tick(l, from + us + (rest > 0 and 1 or 0))
  end

  function A.lapse(l, s, now)
    local at = A.available_at(l, s, now, l.capacity)
    if l.step == 0 and l.nanos and at > now and s.rest > 0 then
      local nanos = ceil(s.rest / l.nanos)
      if nanos < 1000 then
        return s.full, nanos
      end
    end
    return at, 0
  end

  local function owe(s, from, us, rest)
    s.full, s.rest = from + us, rest
  end

  function A.take(l, s, now, units)
    local from = tick(l, now)
    local us, rest = debt(s, from)
    owe(s, from, plus(l, us, rest, span(l, units)))
  end

  function A.give(l, s, now, units)
    local from = tick(l, now)
    local us, rest = debt(s, from)
    owe(s, from, minus(l, us, rest, span(l, units)))
  end

  function A.give_held(l, s, now, units, lapse, nanos)
    local from = tick(l, now)
    local us, rest = span(l, units)
    local most_us, most_rest = max(lapse - from, 0), nanos * (l.nanos or 0)
    if lapse < from then
      most_rest = 0
    end
    if us > most_us or (us == most_us and rest > most_rest) then
      us, rest = most_us, most_rest
    end
    local owed_us, owed_rest = debt(s, from)
    owe(s, from, minus(l, owed_us, owed_rest, us, rest))
  end

  function A.ticket(l, s, now)
    return format('%.0f %d', A.lapse(l, s, now))
  end

  function A.undo(l, s, now, units, ticket)
    local lapse, nanos = match(ticket, '^(%d+) (%d+)$')
    A.give_held(l, s, now, units, tonumber(lapse), tonumber(nanos))
  end

  function A.used(l, s, now)
    return l.capacity - A.available(l, s, now)
  end

  -- The part of a token that has trickled in stays, so that a limit that is changed often still refills.
  function A.adopt(l, old, s, now)
    if l.step > 0 or old.step > 0 then
      return A.with_used(l, now, A.used(old, s, now))
    end
    local whole, part = tokens(old, debt(s, now))
    if whole >= l.capacity then
      return A.with_used(l, now, l.capacity)
    end
    local parts, over = muldiv(part, l.token, old.token)
    parts = over > 0 and parts + 1 or parts
    local us, rest = span(l, whole)
    local adopted = A.fresh()
    owe(adopted, now, plus(l, us, rest, floor(parts / l.parts), parts % l.parts))
    return adopted
  end

  return A
end
