-- The row of a cell, as text: the tag of the limit and the state and, if there is a block, an excess
-- or a hold, two more parts: when the block was set and ends, and the excess; the sums of holds
-- (see holds.lua): how many there are, how many of them give back, when the next one is due, when
-- all have ended, and when the newest was made. A part without numbers is empty:
--
--   b 10 6000000000 1000 0|1800000123456789 0|0 1800000200000000 0|
--   b 10 6000000000 1000 0|1800000123456789 0||2 1 1800000060000000 1800000120000000 1800000000000000

local function to_text(cell)
  local text, holds, block, sums = cell.tag .. '|' .. cell.a.save(cell.s), cell.holds, '', ''
  if cell.blocked == 0 and cell.excess == 0 and holds.count == 0 then
    return text
  end
  if cell.blocked > 0 or cell.excess > 0 then
    block = format('%.0f %.0f %.0f', cell.set, cell.blocked, cell.excess)
  end
  if holds.count > 0 then
    sums = format('%d %d %.0f %.0f %.0f', holds.count, holds.gives, holds.due, holds.ends, holds.newest)
  end
  return text .. '|' .. block .. '|' .. sums
end

local function parse_sums(holds, text)
  local count, gives, due, ends, newest = match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  holds.count, holds.gives, holds.due = tonumber(count), tonumber(gives), tonumber(due)
  holds.ends, holds.newest = tonumber(ends), tonumber(newest)
  holds.kept, holds.stored = holds.count, holds.count
end

-- Parses a row. What cannot be parsed raises an error, or does not give the same text again.
local function parse_cell(key, limit, text)
  local written_by, state, more = match(text, '^([^|]+)|([^|]+)(.*)$')
  local block, sums = match(more, '^|([^|]*)|([^|]*)$')
  if written_by == tag_of(limit) then
    written_by = limit
  end
  local a = algorithm(sub(written_by, 1, 1))
  local cell = { key = key, limit = written_by, tag = tag_of(written_by), a = a, l = a.parse(written_by), text = text }
  cell.set, cell.blocked, cell.excess, cell.holds, cell.list = 0, 0, 0, no_holds(key), cell.l.list
  if block and block ~= '' then
    local set, blocked, excess = match(block, '^(%d+) (%d+) (%d+)$')
    cell.set, cell.blocked, cell.excess = tonumber(set), tonumber(blocked), tonumber(excess)
  end
  if sums and sums ~= '' then
    parse_sums(cell.holds, sums)
  end
  cell.s = a.load(state, key)
  cell.stored = cell.s.stored
  return cell.l.capacity and to_text(cell) == text and cell
end

-- The text of a key's row, if there is one, and whether it is the first element of a list, which is
-- how a log is kept. It is of the other type if the limit's algorithm has changed.
local function read_row(key, is_list)
  for attempt = 1, 2 do
    local row = is_list and redis.pcall('LRANGE', key, 0, 0) or redis.pcall('GET', key)
    if type(row) ~= 'table' or not row.err then
      if is_list then
        row = row[1]
      end
      return row or nil, is_list
    elseif not find(row.err, 'WRONGTYPE', 1, true) then
      error(row.err, 0)
    end
    is_list = not is_list
  end
  unreadable(key, 'it is neither a string nor a list')
end

-- Loads the cell of a key, or makes a new one with the charge's limit.
local function load_cell(key, limit)
  local text, is_list = read_row(key, sub(limit, 1, 1) == 'l')
  if not text then
    return new_cell(key, limit)
  end
  local is_parsed, cell = pcall(parse_cell, key, limit, text)
  if not is_parsed or not cell or (cell.list or false) ~= is_list then
    unreadable(key, 'it is no budget of this version')
  end
  return cell
end

-- Writes a changed cell, with an expiry at which it is idle. Deletes it if it is idle already.
local function save_cell(cell, now, grace)
  if cell.blocked <= now then
    cell.set, cell.blocked = 0, 0
  end
  local idle_at = idle_at(cell)
  if idle_at <= now then
    drop_holds(cell)
    save_holds(cell)
    if cell.text then
      redis.call('DEL', cell.key)
    end
    return
  end
  local millis = format('%.0f', ceil((idle_at - now) / MILLISECOND) + grace)
  save_holds(cell, millis)
  local text = to_text(cell)
  if cell.a.write then
    cell.a.write(cell.s, cell, text)
    redis.call('PEXPIRE', cell.key, millis)
  else
    redis.call('SET', cell.key, text, 'PX', millis)
  end
end
