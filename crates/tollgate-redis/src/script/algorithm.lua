-- Fails because of a key that is not as this script writes it.
local function unreadable(key, why)
  error({ unreadable = format('the Redis key %s cannot be read: %s; delete it or use another prefix', key, why) })
end

-- Runs a command that reads a key.
local function read_key(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if find(reply.err, 'WRONGTYPE', 1, true) then
      unreadable(key, 'it is of another type')
    end
    error(reply.err, 0)
  end
  return reply
end

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
-- it counts denied attempts. An algorithm that `keeps_count` can have more in use than its limit after
-- that was lowered. The most units that it can owe, `debt`, are the number after `d` in its
-- text, or else its capacity.
local builders, built = {}, {}

-- The text of a limit without its debt, and the debt.
local function split_debt(text)
  local plain, debt = match(text, '^(.-) d(%d+)$')
  return plain or text, tonumber(debt)
end

local function algorithm(kind)
  local known = built[kind]
  if not known and not builders[kind] then
    error('no algorithm ' .. kind, 0)
  elseif not known then
    known = builders[kind]()
    built[kind] = known
    known.available = known.available or function(l, s, now)
      return max(l.capacity - known.used(l, s, now), 0)
    end
    -- Units recorded beyond the capacity. Counted attempts are no debt.
    known.owed = known.owed or function(l, s, now)
      return l.counts and 0 or min(max(known.used(l, s, now) - l.capacity, 0), l.debt)
    end
    -- Units that can be recorded.
    known.recordable = known.recordable or function(l, s, now)
      local used = known.used(l, s, now)
      return max(l.capacity + l.debt - (l.counts and min(used, l.capacity) or used), 0)
    end
    -- Not even 0 can be taken while units are owed.
    known.fits = known.fits or function(l, s, now, cost)
      return cost <= known.available(l, s, now) and (cost > 0 or known.owed(l, s, now) == 0)
    end
    -- Replaces a state that was written at a wild reading of the clock: nothing remains, as of now.
    known.rebase = known.rebase or function(l, s, now)
      return known.with_used(l, now, l.capacity, 0)
    end
    -- The state under a limit that replaces `old`, of the same algorithm, with as many units in
    -- use.
    known.adopt = known.adopt or function(l, old, s, now)
      return known.with_used(l, now, known.used(old, s, now), known.owed(old, s, now))
    end
    -- Gives back up to `units` of a hold, right after which all units in use were due back at
    -- `hold.lapse` microseconds and the fraction `hold.rest`. What can tell its own units from
    -- others gives back those that `hold.drawn` names; it is 0 if another limit drew them.
    known.give_held = known.give_held or function(l, s, now, units, hold)
      if known.give_drawn and hold.drawn > 0 then
        known.give_drawn(l, s, now, units, hold.drawn)
      elseif now < hold.lapse then
        known.give(l, s, now, units)
      end
    end
    -- When all units in use are back, in microseconds, and the fraction of one.
    known.lapse = known.lapse or function(l, s)
      return known.idle(l, s), 0
    end
  end
  return known
end
