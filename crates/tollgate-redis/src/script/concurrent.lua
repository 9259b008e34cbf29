-- Concurrent: at most `capacity` requests under way at once. State: the live slots. The cell holds
-- them, as it holds reservations, and knows when they expire. A limit with `slots` is such a limit.
builders.n = function()
  local A = {}

  function A.parse(text)
    return { capacity = tonumber(match(text, '^n (%d+)$')), period = 0, debt = 0, slots = true }
  end

  function A.fresh()
    return { live = 0 }
  end

  function A.load(text)
    return { live = tonumber(text) }
  end

  function A.save(s)
    return format('%d', s.live)
  end

  -- Slots have times of their own: the state is never ahead of the clock.
  function A.written(l, s)
    return 0
  end

  function A.used(l, s, now)
    return s.live
  end

  function A.available_at(l, s, now, units)
    return units <= A.available(l, s, now) and now or HALF_LIMIT
  end

  function A.idle(l, s)
    return 0
  end

  -- Units of a rate are not under way: nobody could give them back.
  function A.with_used(l, now, used)
    return A.fresh()
  end

  function A.adopt(l, old, s, now)
    return s
  end

  function A.take(l, s, now, units)
    s.live = s.live + units
  end

  function A.give(l, s, now, units)
    s.live = max(s.live - units, 0)
  end

  -- A slot never lapses by itself.
  function A.give_held(l, s, now, units)
    A.give(l, s, now, units)
  end

  return A
end

