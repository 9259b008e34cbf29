-- A cell is the stored record of one key: a state and the limit that wrote it, a block, and the
-- reservations, or slots, beside them. Its text is described in stored.lua.
--
-- An expired reservation is kept for as long again as it lasted, with the units that its expiry did
-- not give back: a settlement that comes late is told from one that is sent twice.

-- How a state relates to a reading of the clock: `current`, or ahead of it because the reading is
-- `late`, the clock went `behind` by up to a period, or the state was written at a `wild` reading.
local function standing(cell, now)
  local ahead = cell.a.written(cell.l, cell.s) - now
  if ahead <= 0 then
    return 'current'
  end
  return ahead <= LATE_MAX and 'late' or ahead <= cell.l.period and 'behind' or 'wild'
end

-- `now`, or the time when the state was written if that is later.
local function not_before(cell, now)
  return max(now, cell.a.written(cell.l, cell.s))
end

local function is_blocked(cell, now)
  return cell.blocked > now
end

local function available(cell, now)
  return (cell.behind or is_blocked(cell, now)) and 0 or cell.a.available(cell.l, cell.s, now)
end

local function fits(cell, now, cost)
  if is_blocked(cell, now) then
    return false
  end
  if cell.behind then
    return cost == 0
  end
  return cell.a.fits(cost == 0 and raised(cell, cell.s, now) or cell.l, cell.s, now, cost)
end

local function copy_state(cell, s)
  if cell.a.copy then
    return cell.a.copy(s)
  end
  local copy = {}
  for name, value in pairs(s) do
    copy[name] = value
  end
  return copy
end

local function copy_cell(cell)
  local copy = {}
  for name, value in pairs(cell) do
    copy[name] = value
  end
  copy.s, copy.holds = copy_state(cell, cell.s), copy_holds(cell.holds)
  copy.expired, copy.giving, copy.steps = nil, nil, nil
  return copy
end

-- Gives back units of a hold that are still in use, its own. Returns how many.
local function give_held(cell, now, hold, units)
  local a, l, at = cell.a, cell.l, not_before(cell, now)
  local before = a.used(l, cell.s, at)
  a.give_held(l, cell.s, at, units, hold)
  return max(before - a.used(l, cell.s, at), 0)
end

-- Gives back the units of the first holds that are due, and forgets those that can no longer be
-- settled. Returns how many were due.
local function expire(cell, now)
  local holds = cell.holds
  if holds.due > now then
    return 0
  end
  local due = due_holds(cell, now)
  for _, hold in ipairs(due) do
    local units = hold.units
    if gives_back(hold) then
      units = units - give_held(cell, hold.expires, hold, units)
    end
    if ends_at(cell, hold) <= now then
      remove_hold(cell, hold)
    else
      put_hold(cell, changed_hold(hold, { units = units, expired = true }), hold)
    end
  end
  if #due < EXPIRE_MAX then
    if holds.ends <= now then
      -- They have expired with their keys.
      drop_holds(cell)
    elseif #due == 0 and holds.puts == 0 then
      unreadable(holds.key, 'a hold is missing')
    end
    cell.holds.due = max(cell.holds.due, now + 1)
  end
  return #due
end

-- Expires holds for a request, which writes that even if it writes nothing else, if it is much.
local function catch_up(cell, now)
  if cell.a.written(cell.l, cell.s) <= now and expire(cell, now) > UNWRITTEN_MAX then
    cell.expired = copy_cell(cell)
  end
end

-- The n-th of the holds that give back, of at most WALK_MAX + 1.
local function giving_hold(cell, n)
  local giving = cell.giving
  if not giving or (not giving[n] and n <= cell.holds.gives) then
    giving = giving_holds(cell, n <= WALK_PAGE and WALK_PAGE or WALK_MAX + 1)
    cell.giving = giving
  end
  return giving[n]
end

-- The state and the time after the first `n` holds that give back. Those asked for are kept.
local function state_after(cell, now, n)
  local steps, from = cell.steps or { [0] = { s = cell.s, now = now } }, n
  cell.steps = steps
  while not steps[from] do
    from = from - 1
  end
  if from < n then
    local s, now = copy_state(cell, steps[from].s), steps[from].now
    for i = from + 1, n do
      local hold = giving_hold(cell, i)
      now = max(now, hold.expires)
      cell.a.give_held(cell.l, s, now, hold.units, hold)
    end
    steps[n] = { s = s, now = now }
  end
  return steps[n].s, steps[n].now
end

-- When `units` are available if no request arrives, counting the first WALK_MAX holds that give back
-- before. If they are too few, it is the expiry of the last of them.
local function unheld_at(cell, now, units)
  local a, l, gives = cell.a, cell.l, cell.holds.gives
  local function ready_at(s, now)
    return a.available_at(units == 0 and raised(cell, s, now) or l, s, now, units)
  end
  if cell.behind then
    -- The cell counts as exactly empty until a reading is merely late.
    local written = a.written(l, cell.s)
    local at = ready_at(cell.s, written)
    return at > written and at or written - LATE_MAX
  end
  -- When they are available after `n` holds, if that is before the next one gives back. The more
  -- holds, the earlier it is.
  local last = min(gives, WALK_MAX)
  local function ready_after(n)
    local s, now = state_after(cell, now, n)
    if n == last then
      return gives > last and now or ready_at(s, now)
    end
    local at = ready_at(s, now)
    return at <= giving_hold(cell, n + 1).expires and at
  end
  -- The fewest holds: not `low`, at most `high`.
  local low, high, at = -1, 0, ready_after(0)
  while not at do
    low, high = high, min(max(2 * high, 1), last)
    at = ready_after(high)
  end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    local earlier = ready_after(middle)
    if earlier then
      high, at = middle, earlier
    else
      low = middle
    end
  end
  return at
end

local function available_at(cell, now, units)
  return max(unheld_at(cell, now, units), cell.blocked)
end

-- Takes `cost`, which must be available.
local function take(cell, now, cost)
  if cost > 0 then
    cell.excess = excess_of(cell, cell.s, now)
    cell.a.take(cell.l, cell.s, now, cost)
  end
end

-- Counts a denied attempt, if the limit counts them, and returns whether it did. A cost above the
-- limit is not counted.
local function refuse(cell, now, cost)
  if cell.l.counts and cost > 0 and cost <= cell.l.capacity and not cell.behind and not cell.rebased then
    take(cell, now, cost)
    return true
  end
end

-- Takes up to `cost`, stopping at empty. Returns the units taken.
local function penalise(cell, now, cost)
  if cell.a.written(cell.l, cell.s) > now then
    return 0
  end
  local taken = min(cost, cell.a.available(cell.l, cell.s, now))
  take(cell, now, taken)
  return taken
end

-- Takes units and holds them.
local function hold(cell, now, hold)
  take(cell, now, hold.units)
  hold.lapse, hold.rest = cell.a.lapse(cell.l, cell.s)
  put_hold(cell, hold)
end

local function new_slot(id, made, expires)
  return { id = id, units = 1, made = made, expires = expires, drawn = 0 }
end

-- The changes to a hold that lasts its full time to live from now.
local function restarted(hold, now)
  return { made = now, expires = now + hold.expires - hold.made }
end

-- Restarts the slots that a wild reading of the clock made, ahead by more than their time to live:
-- each lasts that long from now. Returns whether there were any.
local function restart_slots(cell, now)
  local any = false
  if cell.l.slots and cell.holds.newest - now > LATE_MAX then
    for _, hold in ipairs(all_holds(cell)) do
      local ahead = hold.made - now
      if ahead > hold.expires - hold.made and ahead > LATE_MAX then
        put_hold(cell, changed_hold(hold, restarted(hold, now)), hold)
        any = true
      end
    end
  end
  return any
end

-- Takes units that were used, beyond the limit up to its debt. Returns how many were not taken.
local function record(cell, now, units)
  local at = not_before(cell, now)
  local recorded = min(units, cell.a.recordable(raised(cell, cell.s, at), cell.s, at))
  take(cell, at, recorded)
  return units - recorded
end

-- Holds a reservation for a span from now. Returns whether it has not expired.
local function renew(cell, id, now, ttl)
  local hold = find_hold(cell, id)
  -- More may be due than one request expires.
  local is_over = hold and (hold.expired or (hold.expires <= now and cell.a.written(cell.l, cell.s) <= now))
  if hold and not is_over then
    put_hold(cell, changed_hold(hold, { made = now, expires = now + ttl }), hold)
    return true
  end
end

-- Ends a reservation at its actual cost. Returns the shortfall in units, and 1, or 2 if it had
-- expired; nil without such a reservation.
local function settle(cell, id, now, cost)
  local hold = find_hold(cell, id)
  if not hold then
    return nil
  end
  cost = cell.l.slots and 0 or cost
  remove_hold(cell, hold)
  local found = hold.expired and 2 or 1
  if cost > hold.units then
    return record(cell, now, cost - hold.units), found
  end
  -- What its expiry did not give back stays charged.
  if not hold.expired then
    give_held(cell, now, hold, hold.units - cost)
  end
  return 0, found
end

-- The tag of a state: the limit that wrote it, or only the kind for an inline limit.
local function tag_of(limit)
  local kind = sub(limit, 1, 1)
  return (kind == 't' or kind == 'w') and kind or limit
end

-- Converts the cell to another limit: units in use stay in use, and only those that were owed are.
local function retune(cell, text, now)
  local old_a, old_l = cell.a, cell.l
  now = not_before(cell, now)
  local used, owed = old_a.used(old_l, cell.s, now), owed(cell, now)
  local a = algorithm(sub(text, 1, 1))
  cell.limit, cell.tag, cell.a, cell.l = text, tag_of(text), a, a.parse(text)
  cell.s = a == old_a and a.adopt(cell.l, old_l, cell.s, now) or a.with_used(cell.l, now, used, owed)
  if a ~= old_a and cell.l.slots then
    -- What is reserved is under way, each reservation in a slot of its own.
    cell.excess = 0
    for _, one in ipairs(all_holds(cell)) do
      remove_hold(cell, one)
      if not one.expired then
        hold(cell, now, new_slot(one.id, one.made, one.expires))
      end
    end
    return
  end
  now = not_before(cell, now)
  local kept = a.used(cell.l, cell.s, now)
  cell.excess = a.keeps_count and not cell.l.counts and max(kept - cell.l.capacity - min(owed, cell.l.debt), 0) or 0
  if cell.holds.count == 0 then
    return
  end
  -- Units beyond the new limit are no longer in use, and reservations cannot give them back.
  local gone = max(used - kept, 0)
  local lapse, rest = a.lapse(cell.l, cell.s)
  for _, hold in ipairs(all_holds(cell, gone > 0)) do
    local cut = min(gone, hold.units)
    gone = gone - cut
    put_hold(cell, changed_hold(hold, { units = hold.units - cut, drawn = 0, lapse = lapse, rest = rest }), hold)
  end
end

-- Makes the cell exactly empty as of now. Reservations restart with their full lifetime.
local function rebase(cell, now)
  cell.s, cell.excess = cell.a.rebase(cell.l, cell.s, now), 0
  local holds = all_holds(cell)
  for _, hold in ipairs(holds) do
    remove_hold(cell, hold)
  end
  local lapse, rest = cell.a.lapse(cell.l, cell.s)
  for _, hold in ipairs(holds) do
    if not hold.expired then
      local changes = restarted(hold, now)
      changes.drawn, changes.lapse, changes.rest = 0, lapse, rest
      put_hold(cell, changed_hold(hold, changes))
    end
  end
end

local function new_cell(key, limit)
  local a = algorithm(sub(limit, 1, 1))
  return {
    key = key,
    limit = limit,
    tag = tag_of(limit),
    a = a,
    l = a.parse(limit),
    s = a.fresh(),
    set = 0,
    blocked = 0,
    excess = 0,
    holds = no_holds(key),
  }
end

-- When the cell is idle, at the latest, if no request arrives: then forgetting it changes nothing.
local function idle_at(cell)
  return max(cell.a.idle(cell.l, cell.s), cell.blocked, cell.holds.ends)
end

-- Whether forgetting the cell changes no later outcome, once expired reservations are given back.
local function is_idle(cell, now)
  return idle_at(cell) <= now
end
