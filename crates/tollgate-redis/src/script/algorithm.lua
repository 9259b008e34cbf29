-- floor(a * b / c) and what is left over, exactly, for whole a, b < 2^53 and c <= 2^52 where the
-- answer is below 2^53. (% and floor(x / y) of whole numbers below 2^53 are exact in doubles.)
local function muldiv(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    return floor(product / c), product % c
  end
  -- Long division, bit by bit. The whole multiples of c in b come out first, so that what is
  -- carried stays below c.
  local quotient, rest = 0, 0
  local whole = a * floor(b / c)
  b = b % c
  local bit = 1
  while bit * 2 <= a do
    bit = bit * 2
  end
  while bit >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if rest >= c then
      quotient, rest = quotient + 1, rest - c
    end
    if a >= bit then
      a, rest = a - bit, rest + b
      if rest >= c then
        quotient, rest = quotient + 1, rest - c
      end
    end
    bit = bit / 2
  end
  return quotient + whole, rest
end

-- The algorithms, each made when it is first needed: what it knows of a limit `l` and a client's
-- state `s`. A function that is handed a `now` expects one that is not before `written`, the
-- earliest moment at which the state can have been written. `ticket` says, right after a take, what
-- was drawn on, and `undo` gives back to just that what is still in use of it. Fields of a limit
-- that all have: `capacity`, `period`, and `counts` if denied attempts count.
local makers, made = {}, {}

local function algorithm(kind)
  local known = made[kind]
  if not known then
    known = makers[kind]()
    made[kind] = known
    known.available = known.available or function(l, s, now)
      return max(l.capacity - known.used(l, s, now), 0)
    end
    known.fits = known.fits or function(l, s, now, cost)
      return cost <= known.available(l, s, now)
    end
    -- A state that was written at a wild reading of the clock, as of now: exactly empty.
    known.rebase = known.rebase or function(l, s, now)
      return known.with_used(l, now, l.capacity)
    end
    -- The state under a limit that replaces `old`, of the same algorithm: as many units in use.
    known.adopt = known.adopt or function(l, old, s, now)
      return known.with_used(l, now, known.used(old, s, now))
    end
    -- Gives back up to `units` of what was drawn together, when all that was in use was to have
    -- come back at `lapse` microseconds and `nanos` nanoseconds.
    known.give_held = known.give_held or function(l, s, now, units, lapse)
      if now < lapse then
        known.give(l, s, now, units)
      end
    end
    -- When all that is in use will have come back, in microseconds and nanoseconds.
    known.lapse = known.lapse or function(l, s)
      return known.idle(l, s), 0
    end
  end
  return known
end
