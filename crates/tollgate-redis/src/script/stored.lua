-- The text of a cell: the tag of the limit, the state and, if there is a block, a reservation or an
-- excess, when the block was set and ends, the excess if there is any, and the reservations:
--
--   b 10 6000000000 1000 0|1800000123456789 0|0 1800000200000000|HOLD,HOLD,…
--
-- HOLD is `id:holder:units:made:expires:lapse:nanos:flags`, and the flags are 1 for a reservation
-- whose units stay drawn when it expires, and 2 for one that has expired. A note is stored as a
-- reservation of 0 units that has expired, was made at 0 and ends at `expires`; its flags are 2 if
-- the reservation was settled, and 3 if it was only renewed.

local function parse_holds(text)
  local holds = {}
  for one in string.gmatch(text, '[^,]+') do
    local id, holder, units, made, expires, lapse, nanos, flags =
      match(one, '^([^:]+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d)$')
    if not id then
      -- The format of an older version, without the holder and the time of creation.
      id, units, expires, lapse, nanos, flags = match(one, '^([^:]+):(%d+):(%d+):(%d+):(%d+):(%d)$')
    end
    holds[#holds + 1] = {
      id = id,
      holder = holder or '0',
      units = tonumber(units),
      made = tonumber(made or 0),
      expires = tonumber(expires),
      lapse = tonumber(lapse),
      nanos = tonumber(nanos),
      firm = flags == '1' or flags == '3',
      expired = flags == '2' or flags == '3',
    }
  end
  return holds
end

local function to_text(cell)
  local text = cell.tag .. '|' .. cell.a.save(cell.s)
  if cell.blocked == 0 and cell.excess == 0 and not cell.holds[1] then
    return text
  end
  local holds = {}
  for i, hold in ipairs(cell.holds) do
    local flags = (hold.firm and 1 or 0) + (hold.expired and 2 or 0)
    local numbers = format('%.0f:%.0f:%.0f:%.0f:%d:%d', hold.units, hold.made, hold.expires, hold.lapse, hold.nanos, flags)
    holds[i] = hold.id .. ':' .. hold.holder .. ':' .. numbers
  end
  local excess = cell.excess > 0 and format(' %.0f', cell.excess) or ''
  return text .. '|' .. format('%.0f %.0f', cell.set, cell.blocked) .. excess .. '|' .. table.concat(holds, ',')
end

-- The stored text of a key, if there is one, and whether the key has the expected type: a list for
-- a log, otherwise a string. It has the other type when the limit's algorithm has changed.
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

-- Converts the state that an older version wrote for an inline limit.
local function migrated(limit, written_by, state)
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

-- Parses a cell.
local function parse_cell(key, limit, text)
  local bar = find(text, '|', 1, true)
  local written_by, state = sub(text, 1, bar - 1), sub(text, bar + 1)
  local bar = find(state, '|', 1, true)
  local set, blocked, excess, holds = 0, 0, 0, {}
  if bar then
    local first, second, third, held = match(state, '^(%d+) ?(%d*) ?(%d*)|(.*)$', bar + 1)
    -- The format of an older version: only the end of the block.
    set, blocked = second ~= '' and first or 0, second ~= '' and second or first
    set, blocked, excess, holds = tonumber(set), tonumber(blocked), tonumber(third) or 0, parse_holds(held)
    state = sub(state, 1, bar - 1)
  end
  local tag = tag_of(limit)
  if tag ~= limit and written_by ~= tag then
    state, written_by = migrated(limit, written_by, state), tag
    if not state then
      return new_cell(key, limit)
    end
  end
  if written_by == tag then
    written_by = limit
  end
  local a = algorithm(sub(written_by, 1, 1))
  local cell = { key = key, limit = written_by, tag = tag_of(written_by), a = a, l = a.parse(written_by), text = text }
  cell.set, cell.blocked, cell.excess, cell.holds, cell.list = set, blocked, excess, holds, cell.l.list
  cell.s = a.load(state, key)
  cell.stored = cell.s.stored
  return cell
end

-- Loads the cell of a key, or makes a new one with the charge's limit.
local function load_cell(key, limit)
  local as_list = sub(limit, 1, 1) == 'l'
  local text, type_matches = read(key, as_list)
  if not type_matches then
    text = read(key, not as_list)
  end
  return text and parse_cell(key, limit, text) or new_cell(key, limit)
end

-- Writes a changed cell, with an expiry at which it is idle. Deletes it if it is idle already.
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
  local millis = format('%.0f', ceil((idle_at - now) / MILLISECOND) + grace)
  if cell.a.write then
    cell.a.write(cell.s, cell, text)
    redis.call('PEXPIRE', cell.key, millis)
  else
    redis.call('SET', cell.key, text, 'PX', millis)
  end
end
