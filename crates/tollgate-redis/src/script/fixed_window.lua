-- Fixed window. State: when the window opened, and the units used; 0 used means never seen.
builders.f = function()
  local A = { keeps_count = true }

  function A.parse(text)
    local text, debt = split_debt(text)
    local limit, period, aligned, counts = match(text, '^f (%d+) (%d+) (%d) (%d)$')
    local l = { capacity = tonumber(limit), period = tonumber(period), aligned = aligned == '1', counts = counts == '1' }
    l.debt = debt or l.capacity
    return l
  end

  function A.fresh()
    return { at = 0, used = 0 }
  end

  function A.load(text)
    local at, used = match(text, '^(%d+) (%d+)$')
    return { at = tonumber(at), used = tonumber(used) }
  end

  function A.save(s)
    return format('%.0f %.0f', s.at, s.used)
  end

  function A.written(l, s)
    return s.at
  end

  function A.used(l, s, now)
    return now - s.at < l.period and s.used or 0
  end

  function A.available_at(l, s, now, units)
    return A.fits(l, s, now, units) and now or s.at + l.period
  end

  function A.idle(l, s)
    return s.used > 0 and s.at + l.period or 0
  end

  function A.with_used(l, now, used)
    if used == 0 then
      return A.fresh()
    end
    return { at = l.aligned and now - now % l.period or now, used = used }
  end

  function A.take(l, s, now, units)
    local used = A.used(l, s, now)
    if used == 0 then
      s.at = l.aligned and now - now % l.period or now
    end
    s.used = min(used + units, COUNT_MAX)
  end

  function A.give(l, s, now, units)
    s.used = max(A.used(l, s, now) - units, 0)
    if s.used == 0 then
      s.at = 0
    end
  end

  function A.ticket(l, s)
    return format('%.0f', s.at)
  end

  function A.undo(l, s, now, units, ticket)
    if s.at == tonumber(ticket) then
      A.give(l, s, now, units)
    end
  end

  -- The window keeps its start, unless the new period would already have ended it: units in use
  -- stay in use.
  function A.adopt(l, old, s, now)
    local used = A.used(old, s, now)
    if used > 0 and not l.aligned and now - s.at < l.period then
      return { at = s.at, used = used }
    end
    return A.with_used(l, now, used)
  end

  return A
end
