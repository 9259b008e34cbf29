-- Token bucket with a reserve: two buckets. The sustained bucket is drawn first, the reserve for
-- the rest. Only the sustained bucket owes units.
builders.r = function()
  local A, B = {}, algorithm('b')

  function A.parse(text)
    local text, debt = split_debt(text)
    local capacity, token, parts, step, rest = match(text, '^r (%d+) (%d+) (%d+) (%d+) (.+)$')
    local l = { sustained = B.of(capacity, token, parts, step), reserve = B.of(match(rest, '^(%d+) (%d+) (%d+) (%d+)$')) }
    l.capacity = l.sustained.capacity + l.reserve.capacity
    l.period = max(l.sustained.period, l.reserve.period)
    l.debt = debt or l.capacity
    l.sustained.debt = l.debt
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
    return max(l.capacity - A.used(l, s, now), 0)
  end

  function A.idle(l, s)
    return max(B.idle(l.sustained, s.sustained), B.idle(l.reserve, s.reserve))
  end

  function A.with_used(l, now, used, owed)
    owed = min(owed, max(used - l.capacity, 0))
    used = min(used, l.capacity)
    local sustained = min(used, l.sustained.capacity)
    return {
      sustained = B.with_used(l.sustained, now, sustained + owed, owed),
      reserve = B.with_used(l.reserve, now, used - sustained, 0),
    }
  end

  -- The earliest time over all splits of the units that may be in use between the buckets. A larger
  -- part waits less for the sustained bucket and longer for the reserve, so the best split is where
  -- the two waits cross.
  function A.available_at(l, s, now, units)
    local most = l.capacity - units
    local function sustained(part)
      return B.most_used_at(l.sustained, s.sustained, now, part)
    end
    local function reserve(part)
      return B.most_used_at(l.reserve, s.reserve, now, most - part)
    end
    local function ready(part)
      return max(sustained(part), reserve(part))
    end
    local low = max(most - l.reserve.capacity, 0)
    local high = max(min(B.used(l.sustained, s.sustained, now), most), low)
    while low < high do
      local middle = floor((low + high) / 2)
      if sustained(middle) <= reserve(middle) then
        high = middle
      else
        low = middle + 1
      end
    end
    return low >= 1 and min(ready(low), ready(low - 1)) or ready(low)
  end

  function A.take(l, s, now, units)
    local beyond = max(units - B.available(l.sustained, s.sustained, now), 0)
    local reserve = min(beyond, B.available(l.reserve, s.reserve, now))
    local sustained = units - reserve
    -- A bucket that gives 0 stays as it is.
    if sustained > 0 then
      B.take(l.sustained, s.sustained, now, sustained)
    end
    if reserve > 0 then
      B.take(l.reserve, s.reserve, now, reserve)
    end
    s.from_sustained, s.from_reserve = sustained, reserve
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

  -- The units drawn last are given back first: those owed, then those of the sustained bucket while
  -- it has units left, and otherwise those of the reserve.
  function A.give(l, s, now, units)
    local used, capacity = B.used(l.sustained, s.sustained, now), l.sustained.capacity
    local sustained_first = used < capacity and used or used - capacity
    local reserve = min(max(units - sustained_first, 0), B.used(l.reserve, s.reserve, now))
    B.give(l.reserve, s.reserve, now, reserve)
    B.give(l.sustained, s.sustained, now, units - reserve)
  end

  -- Each bucket by itself, unless one has become too small for the units in use.
  function A.adopt(l, old, s, now)
    local owed = A.owed(old, s, now)
    local used = min(A.used(old, s, now), l.capacity + min(owed, l.debt))
    local adopted = {
      sustained = B.adopt(l.sustained, old.sustained, s.sustained, now),
      reserve = B.adopt(l.reserve, old.reserve, s.reserve, now),
    }
    if A.used(l, adopted, now) == used then
      return adopted
    end
    return A.with_used(l, now, used, owed)
  end

  return A
end
