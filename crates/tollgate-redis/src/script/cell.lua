-- A cell is what is kept of one key: a state and the limit that wrote it, a block, and reservations in the order of
-- their expiry. As text: the limit, the state and, if there are any, the block and the reservations:
-- `b 10 6000000000 1000 0|1800000123456789 0|1800000200000000|id:units:expires:lapse:nanos:firm,…`.

-- The most reservations of one key. Every request on it reads and writes them all, while everybody else waits for
-- Redis: fewer than in memory, where they cost next to nothing.
local HOLDS_MAX = 512

local function available(cell, now)
  return cell.blocked > now and 0 or cell.a.available(cell.l, cell.s, now)
end

local function give_held(cell, now, hold, units)
  cell.a.roll(cell.l, cell.s, now)
  cell.a.give_held(cell.l, cell.s, now, units, hold.lapse, hold.nanos)
end

-- Brings a cell to `now`: what has lapsed or expired is gone.
local function roll(cell, now)
  local holds = cell.holds
  while holds[1] and holds[1].expires <= now do
    local hold = table.remove(holds, 1)
    if not hold.firm then
      give_held(cell, hold.expires, hold, hold.units)
    end
  end
  cell.a.roll(cell.l, cell.s, now)
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

-- When `units` are available if nothing more arrives: reservations that expire before count.
local function unheld_at(cell, now, units)
  local a, l = cell.a, cell.l
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
      a.roll(l, s, now)
      a.give_held(l, s, now, hold.units, hold.lapse, hold.nanos)
    end
  end
  return a.available_at(l, s, now, units)
end

local function available_at(cell, now, units)
  return max(unheld_at(cell, now, units), cell.blocked)
end

local function fits(cell, now, cost)
  return cell.blocked <= now and cost <= cell.a.available(cell.l, cell.s, now)
end

-- Takes what is known to be available.
local function take(cell, now, cost)
  if cost > 0 then
    cell.a.take(cell.l, cell.s, now, cost)
  end
end

-- Counts a denied attempt, if this limit does that. What can never fit never counts.
local function refuse(cell, now, cost)
  if cell.l.counts and cost <= cell.l.capacity then
    take(cell, now, cost)
  end
end

-- Takes up to `cost`, stops at empty, and says how many it took.
local function penalise(cell, now, cost)
  local taken = min(cost, cell.a.available(cell.l, cell.s, now))
  take(cell, now, taken)
  return taken
end

local function hold(cell, id, units, now, expires, firm)
  take(cell, now, units)
  local lapse, nanos = cell.a.lapse(cell.l, cell.s, now)
  local place = 1
  while cell.holds[place] and cell.holds[place].expires <= expires do
    place = place + 1
  end
  local held = { id = id, units = units, expires = expires, lapse = lapse, nanos = nanos, firm = firm }
  table.insert(cell.holds, place, held)
end

-- Ends a reservation at its actual cost. Says how many units that lacked, or nothing if it is not held.
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

-- Goes on under another limit: units in use stay in use, as far as it goes.
local function retune(cell, text, now)
  if cell.limit == text then
    return
  end
  local old_a, old_l = cell.a, cell.l
  local used = old_l.capacity - old_a.available(old_l, cell.s, now)
  local a = algorithm(sub(text, 1, 1))
  cell.limit, cell.a, cell.l = text, a, a.parse(text)
  cell.s = a == old_a and a.adopt(cell.l, old_l, cell.s, now) or a.with_used(cell.l, now, used)
  -- What the new limit has no room for is no longer in use, and cannot be given back.
  local gone = max(used - (cell.l.capacity - a.available(cell.l, cell.s, now)), 0)
  for _, hold in ipairs(cell.holds) do
    local cut = min(gone, hold.units)
    hold.units, gone = hold.units - cut, gone - cut
    hold.lapse, hold.nanos = a.lapse(cell.l, cell.s, now)
  end
end

local function new_cell(key, limit)
  local a = algorithm(sub(limit, 1, 1))
  return { key = key, limit = limit, a = a, l = a.parse(limit), s = a.fresh(), blocked = 0, holds = {} }
end

local function parse_holds(text)
  local holds = {}
  local pattern = '([^:,]+):(%d+):(%d+):(%d+):(%d+):(%d)'
  for id, units, expires, lapse, nanos, firm in string.gmatch(text, pattern) do
    holds[#holds + 1] = {
      id = id,
      units = tonumber(units),
      expires = tonumber(expires),
      lapse = tonumber(lapse),
      nanos = tonumber(nanos),
      firm = firm == '1',
    }
  end
  return holds
end

local function to_text(cell)
  local text = cell.limit .. '|' .. cell.a.save(cell.s)
  if cell.blocked == 0 and not cell.holds[1] then
    return text
  end
  local holds = {}
  for i, hold in ipairs(cell.holds) do
    local firm = hold.firm and 1 or 0
    holds[i] = format('%s:%.0f:%.0f:%.0f:%d:%d', hold.id, hold.units, hold.expires, hold.lapse, hold.nanos, firm)
  end
  return text .. '|' .. format('%.0f', cell.blocked) .. '|' .. table.concat(holds, ',')
end

-- What is stored: its text, if there is any. A log is a list, anything else a string; which one it is shows when the
-- limit's algorithm has changed and Redis says that it is the other.
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

-- The cell of a key, which has the charge's limit if nothing is stored.
local function load_cell(key, limit)
  local as_list = sub(limit, 1, 1) == 'l'
  local text, right = read(key, as_list)
  if not right then
    text = read(key, not as_list)
  end
  if not text then
    return new_cell(key, limit)
  end
  local bar = find(text, '|', 1, true)
  local written_by, state = sub(text, 1, bar - 1), sub(text, bar + 1)
  local bar = find(state, '|', 1, true)
  local a = algorithm(sub(written_by, 1, 1))
  local cell = { key = key, limit = written_by, a = a, l = a.parse(written_by), blocked = 0, holds = {}, text = text }
  cell.list = cell.l.list
  if bar then
    local blocked, holds = match(state, '^(%d+)|(.*)$', bar + 1)
    cell.blocked, cell.holds = tonumber(blocked), parse_holds(holds)
    state = sub(state, 1, bar - 1)
  end
  cell.s = a.load(state, key)
  return cell
end

-- From when on forgetting it changes nothing, if nothing more arrives.
local function idle_at(cell, now)
  local last = cell.holds[#cell.holds]
  return max(available_at(cell, now, cell.l.capacity), last and last.expires or 0)
end

-- Writes a cell back if it has changed: not at all if it is idle, and otherwise for as long as it is not.
local function save_cell(cell, now, grace)
  if cell.blocked <= now then
    cell.blocked = 0
  end
  local a, s = cell.a, cell.s
  local idle_at = idle_at(cell, now)
  if idle_at <= now then
    if cell.text then
      redis.call('DEL', cell.key)
    end
    return
  end
  local text = to_text(cell)
  local entries = a.write and (s.kept < s.stored or s.tail > s.stored or s.head > 1)
  if text == cell.text and not entries then
    return
  end
  local millis = format('%.0f', ceil((idle_at - now) / 1000) + grace)
  if a.write then
    a.write(s, cell, text)
    redis.call('PEXPIRE', cell.key, millis)
  else
    redis.call('SET', cell.key, text, 'PX', millis)
  end
end
