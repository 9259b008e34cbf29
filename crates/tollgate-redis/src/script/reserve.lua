-- Token bucket with a reserve: two buckets. The sustained bucket is drawn first, the reserve for
-- the rest.
builders.r = function()
  local A, B = {}, algorithm('b')

  function A.parse(text)
    local capacity, token, parts, step, rest = match(text, '^r (%d+) (%d+) (%d+) (%d+) (.+)$')
    local l = { sustained = B.of(capacity, token, parts, step), reserve = B.of(match(rest, '^(%d+) (%d+) (%d+) (%d+)$')) }
    l.capacity = l.sustained.capacity + l.reserve.capacity
    l.period = max(l.sustained.period, l.reserve.period)
    return l
  end

  function A.fresh()
    return { sustained = B.fresh(), reserve = B.fresh() }
  end

  function A.copy(s)
    local sustained, reserve = s.sustained, s.reserve
    return {
      sustained = { full = sustained.full, rest = sustained.rest },
      reserve = { full = reserve.full, rest = reserve.rest },
    }
  end

  function A.load(text)
    local sustained, reserve = match(text, '^(%d+ %d+) (%d+ %d+)$')
    return { sustained = B.load(sustained), reserve = B.load(reserve) }
  end

  function A.save(s)
    return B.save(s.sustained) .. ' ' .. B.save(s.reserve)
  end

  function A.written(l, s)
    return max(B.written(l.sustained, s.sustained), B.written(l.reserve, s.reserve))
  end

  function A.used(l, s, now)
    return B.used(l.sustained, s.sustained, now) + B.used(l.reserve, s.reserve, now)
  end

  function A.available(l, s, now)
    return B.available(l.sustained, s.sustained, now) + B.available(l.reserve, s.reserve, now)
  end

  function A.idle(l, s)
    return max(B.idle(l.sustained, s.sustained), B.idle(l.reserve, s.reserve))
  end

  function A.with_used(l, now, used)
    local sustained = min(used, l.sustained.capacity)
    return {
      sustained = B.with_used(l.sustained, now, sustained),
      reserve = B.with_used(l.reserve, now, used - sustained),
    }
  end

  -- The earliest time over all splits of `units` between the buckets. A larger share waits longer
  -- for the sustained bucket and less for the reserve, so the best split is where the two waits
  -- cross.
  function A.available_at(l, s, now, units)
    local function from_sustained(share)
      return B.available_at(l.sustained, s.sustained, now, share)
    end
    local function from_reserve(share)
      return B.available_at(l.reserve, s.reserve, now, units - share)
    end
    local function ready(share)
      return max(from_sustained(share), from_reserve(share))
    end
    local low = min(B.available(l.sustained, s.sustained, now), units)
    low = max(low, units - l.reserve.capacity)
    local high = units - B.available(l.reserve, s.reserve, now)
    high = max(min(high, l.sustained.capacity), low)
    while low < high do
      local middle = floor((low + high) / 2)
      if from_sustained(middle) >= from_reserve(middle) then
        high = middle
      else
        low = middle + 1
      end
    end
    if low >= 1 and units - (low - 1) <= l.reserve.capacity then
      return min(ready(low), ready(low - 1))
    end
    return ready(low)
  end

  function A.take(l, s, now, units)
    local sustained = min(units, B.available(l.sustained, s.sustained, now))
    -- A bucket that gives 0 stays as it is.
    if sustained > 0 then
      B.take(l.sustained, s.sustained, now, sustained)
    end
    if units > sustained then
      B.take(l.reserve, s.reserve, now, units - sustained)
    end
    s.from_sustained, s.from_reserve = sustained, units - sustained
  end

  function A.ticket(l, s, now)
    local sustained, reserve = B.ticket(l.sustained, s.sustained, now), B.ticket(l.reserve, s.reserve, now)
    return format('%.0f|%s|%.0f|%s', s.from_sustained, sustained, s.from_reserve, reserve)
  end

  function A.undo(l, s, now, units, ticket)
    local from_sustained, sustained, from_reserve, reserve = match(ticket, '^(%d+)|(.+)|(%d+)|(.+)$')
    B.undo(l.sustained, s.sustained, now, tonumber(from_sustained), sustained)
    B.undo(l.reserve, s.reserve, now, tonumber(from_reserve), reserve)
  end

  -- The units drawn last, from the reserve, are given back first.
  function A.give(l, s, now, units)
    local reserve = min(units, B.used(l.reserve, s.reserve, now))
    B.give(l.reserve, s.reserve, now, reserve)
    B.give(l.sustained, s.sustained, now, units - reserve)
  end

  -- Each bucket by itself, unless one has become too small for the units in use.
  function A.adopt(l, old, s, now)
    local used = min(old.capacity - A.available(old, s, now), l.capacity)
    local adopted = {
      sustained = B.adopt(l.sustained, old.sustained, s.sustained, now),
      reserve = B.adopt(l.reserve, old.reserve, s.reserve, now),
    }
    if l.capacity - A.available(l, adopted, now) == used then
      return adopted
    end
    return A.with_used(l, now, used)
  end

  return A
end
