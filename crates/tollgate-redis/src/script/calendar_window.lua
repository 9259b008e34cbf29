-- Calendar window. State: when the window starts and ends, and the units used; 0 used means never
-- seen. The script knows no calendar: the caller hands in the windows that it expects to be opened,
-- as the last argument. One that is missing is asked for by name, and the caller repeats the call.
builders.m = function()
  local A = { keeps_count = true }

  -- The longest window, in seconds.
  local LONGEST = { hour = 3600, day = 90000, week = 608400, month = 2682000, year = 31622400 }

  local windows = {}
  if sub(ARGV[#ARGV], 1, 1) == '@' then
    for calendar, from, to in string.gmatch(ARGV[#ARGV], '(%a+ %S+) (%d+) (%d+)') do
      windows[#windows + 1] = { calendar = calendar, from = tonumber(from), to = tonumber(to) }
    end
  end

  -- A state with the window that contains `now`.
  local function opened(l, now, used)
    for _, window in ipairs(windows) do
      if window.calendar == l.calendar and window.from <= now and now < window.to then
        return { at = window.from, ends = window.to, used = used }
      end
    end
    error({ calendar = l.calendar, at = now })
  end

  function A.parse(text)
    local text, debt = split_debt(text)
    local limit, unit, zone, counts = match(text, '^m (%d+) (%a+) (%S+) (%d)$')
    local l = { capacity = tonumber(limit), period = LONGEST[unit] * SECOND, counts = counts == '1' }
    l.calendar, l.debt = unit .. ' ' .. zone, debt or l.capacity
    return l
  end

  function A.fresh()
    return { at = 0, ends = 0, used = 0 }
  end

  function A.load(text)
    local at, ends, used = match(text, '^(%d+) (%d+) (%d+)$')
    return { at = tonumber(at), ends = tonumber(ends), used = tonumber(used) }
  end

  function A.save(s)
    return format('%.0f %.0f %.0f', s.at, s.ends, s.used)
  end

  function A.written(l, s)
    return s.at
  end

  function A.used(l, s, now)
    return now < s.ends and s.used or 0
  end

  function A.available_at(l, s, now, units)
    return A.fits(l, s, now, units) and now or s.ends
  end

  function A.idle(l, s)
    return s.used > 0 and s.ends or 0
  end

  function A.with_used(l, now, used)
    return used == 0 and A.fresh() or opened(l, now, used)
  end

  function A.take(l, s, now, units)
    local used = A.used(l, s, now)
    if used == 0 then
      local window = opened(l, now, 0)
      s.at, s.ends = window.at, window.ends
    end
    s.used = min(used + units, COUNT_MAX)
  end

  function A.give(l, s, now, units)
    s.used = max(A.used(l, s, now) - units, 0)
    if s.used == 0 then
      s.at, s.ends = 0, 0
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

  -- Under the same calendar the window stays as it is.
  function A.adopt(l, old, s, now)
    local used = A.used(old, s, now)
    if used > 0 and l.calendar == old.calendar then
      return { at = s.at, ends = s.ends, used = used }
    end
    return A.with_used(l, now, used)
  end

  return A
end
