-- Fixed window. State: when it opened, and how much of it is used; nothing used means never seen.
makers.f = function()
  local A = {}

  function A.parse(text)
    local limit, period, aligned, counts = match(text, '^f (%d+) (%d+) (%d) (%d)$')
    return { capacity = tonumber(limit), period = tonumber(period), aligned = aligned == '1', counts = counts == '1' }
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

  local function start(l, now)
    return l.aligned and now - now % l.period or now
  end

  function A.roll(l, s, now)
    if s.used == 0 then
      s.at = 0
    elseif s.at > now + LATE then
      s.at, s.used = start(l, now), l.capacity
    elseif now - s.at >= l.period then
      s.at, s.used = 0, 0
    end
  end

  function A.available(l, s)
    return max(l.capacity - s.used, 0)
  end

  function A.available_at(l, s, now, units)
    return units <= A.available(l, s) and now or s.at + l.period
  end

  function A.take(l, s, now, units)
    if s.used == 0 then
      s.at = start(l, now)
    end
    s.used = min(s.used + units, MOST)
  end

  function A.give(l, s, now, units)
    s.used = max(s.used - units, 0)
  end

  function A.ticket(l, s)
    return format('%.0f', s.at)
  end

  function A.undo(l, s, now, units, ticket)
    if s.at == tonumber(ticket) then
      A.give(l, s, now, units)
    end
  end

  -- The window keeps its start, unless the new period would already have ended it: units in use stay in use.
  function A.adopt(l, old, s, now)
    local adopted = A.with_used(l, now, old.capacity - A.available(old, s))
    if adopted.used > 0 and not l.aligned and now - s.at < l.period then
      adopted.at = s.at
    end
    return adopted
  end

  return A
end
