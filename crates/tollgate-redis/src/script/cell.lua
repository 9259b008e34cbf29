-- A cell is what is kept of one key: a state and the limit that wrote it, a block, and reservations
-- in the order of their expiry. As text: the limit, the state and, if there are any, when the block
-- was set and ends, and the reservations:
-- `b 10 6000000000 1000 0|1800000123456789 0|0 1800000200000000|id:holder:units:made:expires:lapse:nanos:firm,…`.

-- The most reservations of one key. Every request on it reads and writes them all, while everybody
-- else waits for Redis: fewer than in memory, where they cost next to nothing. One holder has at most
-- as many as are free, which is half of them.
local HOLDS_MAX = 1024

-- Where a state stands to a reading of the clock.
local function standing(cell, now)
  local ahead = cell.a.written(cell.l, cell.s) - now
  if ahead <= 0 then
    return 'current'
  end
  return ahead <= LATE and 'late' or ahead <= cell.l.period and 'behind' or 'wild'
end

-- `now`, or the state's own time if that is later.
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
  return cell.a.fits(cell.l, cell.s, now, cost)
end

local function give_held(cell, now, hold, units)
  cell.a.give_held(cell.l, cell.s, not_before(cell, now), units, hold.lapse, hold.nanos)
end

-- Gives back what is held by reservations that have expired.
local function expire(cell, now)
  local holds = cell.holds
  while holds[1] and holds[1].expires <= now do
    local hold = table.remove(holds, 1)
    if not hold.firm then
      give_held(cell, hold.expires, hold, hold.units)
    end
  end
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

-- When `units` are available if nothing more arrives: reservations that expire before count.
local function unheld_at(cell, now, units)
  local a, l = cell.a, cell.l
  if cell.behind then
    -- It counts as exactly empty until a reading is merely late.
    local own = a.written(l, cell.s)
    local at = a.available_at(l, cell.s, own, units)
    return at > own and at or own - LATE
  end
  if not cell.holds[1] then
    return a.available_at(l, cell.s, now, units)
  end
  local s = copy_state(cell)
  for _, hold in ipairs(cell.holds) do
    if not hold.firm then
      local at = a.available_at(l, s, now, units)
      if at <= hold.expires then
        return at
      end
      now = max(now, hold.expires)
      a.give_held(l, s, now, hold.units, hold.lapse, hold.nanos)
    end
  end
  return a.available_at(l, s, now, units)
end

local function available_at(cell, now, units)
  return max(unheld_at(cell, now, units), cell.blocked)
end

-- Takes what is known to be available.
local function take(cell, now, cost)
  if cost > 0 then
    cell.a.take(cell.l, cell.s, now, cost)
  end
end

-- Counts a denied attempt, if this limit does that, and says whether it did. What can never fit
-- never counts.
local function refuse(cell, now, cost)
  if cell.l.counts and cost > 0 and cost <= cell.l.capacity and not cell.behind and not cell.rebased then
    take(cell, now, cost)
    return true
  end
end

-- Takes up to `cost`, stops at empty, and says how many it took.
local function penalise(cell, now, cost)
  if cell.a.written(cell.l, cell.s) > now then
    return 0
  end
  local taken = min(cost, cell.a.available(cell.l, cell.s, now))
  take(cell, now, taken)
  return taken
end

-- When `holder` can have one more reservation: now, unless it has as many as there are places left.
local function place_at(cell, holder, now)
  local own, free, at = 0, HOLDS_MAX - #cell.holds, now
  for _, hold in ipairs(cell.holds) do
    own = hold.holder == holder and own + 1 or own
  end
  for _, hold in ipairs(cell.holds) do
    if own < free then
      break
    end
    own = hold.holder == holder and own - 1 or own
    free, at = free + 1, hold.expires
  end
  return at
end

local function insert_hold(cell, hold)
  local place = 1
  while cell.holds[place] and cell.holds[place].expires <= hold.expires do
    place = place + 1
  end
  table.insert(cell.holds, place, hold)
end

-- Takes units and holds them. Nothing is not held.
local function hold(cell, now, hold)
  take(cell, now, hold.units)
  if hold.units > 0 then
    hold.lapse, hold.nanos = cell.a.lapse(cell.l, cell.s)
    insert_hold(cell, hold)
  end
end

-- Ends a reservation at its actual cost. Says how many units that lacked, or nothing if it is not
-- held.
local function settle(cell, id, now, cost)
  for place, hold in ipairs(cell.holds) do
    if hold.id == id then
      table.remove(cell.holds, place)
      if cost >= hold.units then
        local more = cost - hold.units
        return more - penalise(cell, now, more)
      end
      give_held(cell, now, hold, hold.units - cost)
      return 0
    end
  end
end

-- State that belongs to whatever limit comes is not tagged with it.
local function tag_of(limit)
  local kind = sub(limit, 1, 1)
  return (kind == 't' or kind == 'w') and kind or limit
end

-- Goes on under another limit: units in use stay in use.
local function retune(cell, text, now)
  local old_a, old_l = cell.a, cell.l
  now = not_before(cell, now)
  local used = old_a.used(old_l, cell.s, now)
  local a = algorithm(sub(text, 1, 1))
  cell.limit, cell.tag, cell.a, cell.l = text, tag_of(text), a, a.parse(text)
  cell.s = a == old_a and a.adopt(cell.l, old_l, cell.s, now) or a.with_used(cell.l, now, used)
  -- What the new limit has no room for is no longer in use, and cannot be given back.
  local gone = max(used - a.used(cell.l, cell.s, not_before(cell, now)), 0)
  for _, hold in ipairs(cell.holds) do
    local cut = min(gone, hold.units)
    hold.units, gone = hold.units - cut, gone - cut
    hold.lapse, hold.nanos = a.lapse(cell.l, cell.s)
  end
end

-- Exactly empty as of now. Reservations last as long from now as they were made for.
local function rebase(cell, now)
  cell.s = cell.a.rebase(cell.l, cell.s, now)
  local holds = cell.holds
  cell.holds = {}
  for _, hold in ipairs(holds) do
    hold.expires, hold.made = now + hold.expires - hold.made, now
    hold.lapse, hold.nanos = cell.a.lapse(cell.l, cell.s)
    insert_hold(cell, hold)
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
    holds = {},
  }
end

-- From when on forgetting it changes nothing, at the latest, if nothing more arrives.
local function idle_at(cell)
  local last = cell.holds[#cell.holds]
  return max(cell.a.idle(cell.l, cell.s), cell.blocked, last and last.expires or 0)
end

-- Whether forgetting it changes no later outcome, once what has expired is given back.
local function is_idle(cell, now)
  return idle_at(cell) <= now
end

local function parse_holds(text)
  local holds = {}
  for one in string.gmatch(text, '[^,]+') do
    local id, holder, units, made, expires, lapse, nanos, firm =
      match(one, '^([^:]+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d)$')
    if not id then
      -- As an older version wrote it, which did not say whose it was or when it was made.
      id, units, expires, lapse, nanos, firm = match(one, '^([^:]+):(%d+):(%d+):(%d+):(%d+):(%d)$')
    end
    holds[#holds + 1] = {
      id = id,
      holder = holder or '0',
      units = tonumber(units),
      made = tonumber(made or 0),
      expires = tonumber(expires),
      lapse = tonumber(lapse),
      nanos = tonumber(nanos),
      firm = firm == '1',
    }
  end
  return holds
end

local function to_text(cell)
  local text = cell.tag .. '|' .. cell.a.save(cell.s)
  if cell.blocked == 0 and not cell.holds[1] then
    return text
  end
  local holds = {}
  for i, hold in ipairs(cell.holds) do
    local firm = hold.firm and 1 or 0
    local numbers = format('%.0f:%.0f:%.0f:%.0f:%d:%d', hold.units, hold.made, hold.expires, hold.lapse, hold.nanos, firm)
    holds[i] = hold.id .. ':' .. hold.holder .. ':' .. numbers
  end
  return text .. '|' .. format('%.0f %.0f', cell.set, cell.blocked) .. '|' .. table.concat(holds, ',')
end

-- What is stored: its text, if there is any. A log is a list, anything else a string; which one it
-- is shows when the limit's algorithm has changed and Redis says that it is the other.
local function read(key, as_list)
  local stored = as_list and redis.pcall('LRANGE', key, 0, 0) or redis.pcall('GET', key)
  if type(stored) == 'table' then
    if stored.err then
      if not find(stored.err, 'WRONGTYPE', 1, true) then
        error(stored.err, 0)
      end
      return nil
    end
    stored = stored[1]
  end
  return stored or nil, true
end

-- What an older version wrote for a limit that came with a request, as of the limit that comes now.
local function carried_over(limit, written_by, state)
  local kind, old = sub(limit, 1, 1), sub(written_by, 1, 1)
  if kind == 't' and old == 'b' then
    local parts = match(written_by, '^b %d+ %d+ (%d+)')
    return match(state, '^%d+ %d+') .. ' ' .. parts
  end
  if kind == 'w' and old == 'f' then
    local period, at, used = match(written_by, '^f %d+ (%d+)'), match(state, '^(%d+) (%d+)')
    return format('%.0f %s', tonumber(at) + tonumber(period), used)
  end
end

-- The cell that a text is.
local function parse_cell(key, limit, text)
  local bar = find(text, '|', 1, true)
  local written_by, state = sub(text, 1, bar - 1), sub(text, bar + 1)
  local bar = find(state, '|', 1, true)
  local set, blocked, holds = 0, 0, {}
  if bar then
    local first, second, held = match(state, '^(%d+) ?(%d*)|(.*)$', bar + 1)
    -- An older version wrote only when the block ends.
    set, blocked = second ~= '' and first or 0, second ~= '' and second or first
    set, blocked, holds = tonumber(set), tonumber(blocked), parse_holds(held)
    state = sub(state, 1, bar - 1)
  end
  local own = tag_of(limit)
  if own ~= limit and written_by ~= own then
    state, written_by = carried_over(limit, written_by, state), own
    if not state then
      return new_cell(key, limit)
    end
  end
  if written_by == own then
    written_by = limit
  end
  local a = algorithm(sub(written_by, 1, 1))
  local cell = { key = key, limit = written_by, tag = tag_of(written_by), a = a, l = a.parse(written_by), text = text }
  cell.set, cell.blocked, cell.holds, cell.list = set, blocked, holds, cell.l.list
  cell.s = a.load(state, key)
  cell.stored = cell.s.stored
  return cell
end

-- The cell of a key, which has the charge's limit if nothing is stored.
local function load_cell(key, limit)
  local as_list = sub(limit, 1, 1) == 'l'
  local text, right = read(key, as_list)
  if not right then
    text = read(key, not as_list)
  end
  return text and parse_cell(key, limit, text) or new_cell(key, limit)
end

-- Writes back a cell that has changed: not at all if it is idle, and otherwise for as long as it is
-- not.
local function save_cell(cell, now, grace)
  if cell.blocked <= now then
    cell.set, cell.blocked = 0, 0
  end
  if cell.a.written(cell.l, cell.s) <= now then
    expire(cell, now)
  end
  local idle_at = idle_at(cell)
  if idle_at <= now then
    if cell.text then
      redis.call('DEL', cell.key)
    end
    return
  end
  local text = to_text(cell)
  local millis = format('%.0f', ceil((idle_at - now) / 1000) + grace)
  if cell.a.write then
    cell.a.write(cell.s, cell, text)
    redis.call('PEXPIRE', cell.key, millis)
  else
    redis.call('SET', cell.key, text, 'PX', millis)
  end
end
