-- A cell is the stored record of one key: a state and the limit that wrote it, a block, and the
-- reservations, or slots, in order of expiry. Its text is described in stored.lua.
--
-- An expired reservation is kept for as long again as it lasted: a settlement that comes late is
-- told from one that is sent twice. A note is about a reservation that holds nothing: it was
-- settled, or renewed.

-- The most reservations of one key. Every request on the key reads and writes them all while Redis
-- serves no other client, so there are fewer than in memory, where they cost next to nothing. A
-- holder may have as many as are free, which is at most half of them.
local HOLDS_MAX = 1024

-- The most notes of one key, as in memory. One more replaces the note that ends first.
local NOTES_MAX = 128

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

local function give_held(cell, now, hold, units)
  cell.a.give_held(cell.l, cell.s, not_before(cell, now), units, hold.lapse, hold.nanos)
end

-- Until when a reservation can be settled, a slot released, or a note is kept. An older version did
-- not keep when a reservation was made.
local function ends_at(cell, hold)
  return (hold.made == 0 or cell.l.slots) and hold.expires or 2 * hold.expires - hold.made
end

-- Gives back the units of expired reservations, and forgets those that can no longer be settled.
local function expire(cell, now)
  local kept = {}
  for _, hold in ipairs(cell.holds) do
    if not hold.expired and hold.expires <= now then
      hold.expired = true
      if not hold.firm then
        give_held(cell, hold.expires, hold, hold.units)
        hold.units = 0
      end
    end
    if not hold.expired or ends_at(cell, hold) > now then
      kept[#kept + 1] = hold
    end
  end
  cell.holds = kept
end

local function copy_state(cell)
  if cell.a.copy then
    return cell.a.copy(cell.s)
  end
  local copy = {}
  for name, value in pairs(cell.s) do
    copy[name] = value
  end
  return copy
end

local function copy_cell(cell)
  local copy = {}
  for name, value in pairs(cell) do
    copy[name] = value
  end
  copy.s, copy.holds = copy_state(cell), {}
  for i, hold in ipairs(cell.holds) do
    copy.holds[i] = {}
    for name, value in pairs(hold) do
      copy.holds[i][name] = value
    end
  end
  return copy
end

-- When `units` are available if no request arrives, counting reservations that expire before.
local function unheld_at(cell, now, units)
  local a, l = cell.a, cell.l
  local function ready_at(s, now)
    return a.available_at(units == 0 and raised(cell, s, now) or l, s, now, units)
  end
  if cell.behind then
    -- The cell counts as exactly empty until a reading is merely late.
    local written = a.written(l, cell.s)
    local at = ready_at(cell.s, written)
    return at > written and at or written - LATE_MAX
  end
  if not cell.holds[1] then
    return ready_at(cell.s, now)
  end
  local s = copy_state(cell)
  for _, hold in ipairs(cell.holds) do
    if not hold.firm and not hold.expired then
      local at = ready_at(s, now)
      if at <= hold.expires then
        return at
      end
      now = max(now, hold.expires)
      a.give_held(l, s, now, hold.units, hold.lapse, hold.nanos)
    end
  end
  return ready_at(s, now)
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

-- When `holder` may make one more reservation: now, unless it has as many as are free.
local function reservable_at(cell, holder, now)
  local held, free, at = 0, HOLDS_MAX, now
  for _, hold in ipairs(cell.holds) do
    if not hold.expired then
      held, free = hold.holder == holder and held + 1 or held, free - 1
    end
  end
  for _, hold in ipairs(cell.holds) do
    if held < free then
      break
    end
    if not hold.expired then
      held = hold.holder == holder and held - 1 or held
      free, at = free + 1, hold.expires
    end
  end
  return at
end

local function insert_hold(cell, hold)
  local index = 1
  while cell.holds[index] and cell.holds[index].expires <= hold.expires do
    index = index + 1
  end
  table.insert(cell.holds, index, hold)
end

local function has_expired(hold)
  return hold.expired
end

local function is_note(hold)
  return hold.expired and hold.made == 0
end

-- The index of the first reservation or note that `matches`; nil without one.
local function index_of(cell, matches)
  for index, hold in ipairs(cell.holds) do
    if matches(hold) then
      return index
    end
  end
end

-- Takes units and holds them. A reservation of 0 units is not stored.
local function hold(cell, now, hold)
  take(cell, now, hold.units)
  if hold.units > 0 then
    hold.lapse, hold.nanos = cell.a.lapse(cell.l, cell.s)
    if #cell.holds >= HOLDS_MAX then
      -- The oldest one that has expired, or a note: live ones are fewer.
      table.remove(cell.holds, index_of(cell, has_expired) or 1)
    end
    insert_hold(cell, hold)
  end
end

-- Keeps a note, instead of the one with the same id or, if there are too many, of the one that ends
-- first. Reservations come first: a cell that is full of them, or of slots, keeps no note.
local function note(cell, id, expires, settled)
  local notes, known = 0, nil
  for index, hold in ipairs(cell.holds) do
    notes, known = notes + (is_note(hold) and 1 or 0), hold.id == id and index or known
  end
  local is_full = #cell.holds >= HOLDS_MAX or cell.l.slots
  local replaced = known or ((is_full or notes >= NOTES_MAX) and index_of(cell, is_note))
  if replaced then
    table.remove(cell.holds, replaced)
  end
  if replaced or not is_full then
    insert_hold(cell, {
      id = id,
      holder = '0',
      units = 0,
      made = 0,
      expires = expires,
      lapse = 0,
      nanos = 0,
      firm = not settled,
      expired = true,
    })
  end
end

local function new_slot(id, made, expires)
  return { id = id, holder = '0', units = 1, made = made, expires = expires }
end

-- Restarts the slots that a wild reading of the clock made, ahead by more than their time to live:
-- each lasts that long from now. Returns whether there were any.
local function restart_slots(cell, now)
  local holds, restarted = cell.holds, false
  for _, hold in ipairs(cell.l.slots and holds or {}) do
    local ttl, ahead = hold.expires - hold.made, hold.made - now
    if ahead > ttl and ahead > LATE_MAX then
      hold.made, hold.expires, restarted = now, now + ttl, true
    end
  end
  if restarted then
    cell.holds = {}
    for _, hold in ipairs(holds) do
      insert_hold(cell, hold)
    end
  end
  return restarted
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
  for index, hold in ipairs(cell.holds) do
    if hold.id == id and not hold.expired then
      table.remove(cell.holds, index)
      hold.made, hold.expires = now, now + ttl
      insert_hold(cell, hold)
      return true
    end
  end
end

-- Ends a reservation at its actual cost. Returns the shortfall in units, and 1, or 2 if it had
-- expired; nil without such a reservation.
local function settle(cell, id, now, cost)
  cost = cell.l.slots and 0 or cost
  for index, hold in ipairs(cell.holds) do
    if hold.id == id then
      table.remove(cell.holds, index)
      local found = hold.expired and 2 or 1
      if cost > hold.units then
        return record(cell, now, cost - hold.units), found
      end
      -- An estimate that was kept when it expired stays charged.
      if not hold.expired then
        give_held(cell, now, hold, hold.units - cost)
      end
      return 0, found
    end
  end
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
    local holds = cell.holds
    cell.holds, cell.excess = {}, 0
    for _, one in ipairs(holds) do
      if not one.expired then
        hold(cell, now, new_slot(one.id, one.made, one.expires))
      end
    end
    return
  end
  now = not_before(cell, now)
  local kept = a.used(cell.l, cell.s, now)
  cell.excess = a.keeps_count and not cell.l.counts and max(kept - cell.l.capacity - min(owed, cell.l.debt), 0) or 0
  -- Units beyond the new limit are no longer in use, and reservations cannot give them back.
  local gone = max(used - kept, 0)
  for _, hold in ipairs(cell.holds) do
    local cut = min(gone, hold.units)
    hold.units, gone = hold.units - cut, gone - cut
    hold.lapse, hold.nanos = a.lapse(cell.l, cell.s)
  end
end

-- Makes the cell exactly empty as of now. Reservations restart with their full lifetime.
local function rebase(cell, now)
  cell.s, cell.excess = cell.a.rebase(cell.l, cell.s, now), 0
  local holds = cell.holds
  cell.holds = {}
  for _, hold in ipairs(holds) do
    if not hold.expired then
      hold.expires, hold.made = now + hold.expires - hold.made, now
      hold.lapse, hold.nanos = cell.a.lapse(cell.l, cell.s)
    end
    if not hold.expired or is_note(hold) then
      insert_hold(cell, hold)
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
    holds = {},
  }
end

-- When the cell is idle, at the latest, if no request arrives: then forgetting it changes nothing.
local function idle_at(cell)
  local at = max(cell.a.idle(cell.l, cell.s), cell.blocked)
  for _, hold in ipairs(cell.holds) do
    at = max(at, ends_at(cell, hold))
  end
  return at
end

-- Whether forgetting the cell changes no later outcome, once expired reservations are given back.
local function is_idle(cell, now)
  return idle_at(cell) <= now
end
