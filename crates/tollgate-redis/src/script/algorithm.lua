-- floor(a * b / c) and the remainder, exactly, for whole a, b < 2^53 and c <= 2^52 with a quotient
-- below 2^53. (% and floor(x / y) of whole numbers below 2^53 are exact in doubles.)
local function muldiv(a, b, c)
  local product = a * b
  if product < PRODUCT_LIMIT then
    return floor(product / c), product % c
  end
  -- Long division, bit by bit. The whole multiples of c in b come out first, so that the remainder
  -- stays below c.
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

-- The algorithms, by the kind of limit, each built on first use. Their functions take a limit `l`
-- and a client's state `s`. A `now` must not be before `written`, the earliest time at which the
-- state can have been written. `ticket` names, right after a take, the units drawn; `undo` gives
-- back those of them that are still in use. Every limit has `capacity`, `period`, and `counts` if
-- it counts denied attempts.
local builders, built = {}, {}

local function algorithm(kind)
  local known = built[kind]
  if not known then
    known = builders[kind]()
    built[kind] = known
    known.available = known.available or function(l, s, now)
      return max(l.capacity - known.used(l, s, now), 0)
    end
    known.fits = known.fits or function(l, s, now, cost)
      return cost <= known.available(l, s, now)
    end
    -- Replaces a state that was written at a wild reading of the clock: nothing remains, as of now.
    known.rebase = known.rebase or function(l, s, now)
      return known.with_used(l, now, l.capacity)
    end
    -- The state under a limit that replaces `old`, of the same algorithm, with as many units in
    -- use.
    known.adopt = known.adopt or function(l, old, s, now)
      return known.with_used(l, now, known.used(old, s, now))
    end
    -- Gives back up to `units` of one take, right after which all units in use were due back at
    -- `lapse` microseconds and `nanos` nanoseconds.
    known.give_held = known.give_held or function(l, s, now, units, lapse)
      if now < lapse then
        known.give(l, s, now, units)
      end
    end
    -- When all units in use are back, in microseconds and nanoseconds.
    known.lapse = known.lapse or function(l, s)
      return known.idle(l, s), 0
    end
  end
  return known
end
