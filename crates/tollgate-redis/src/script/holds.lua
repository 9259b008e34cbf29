-- The holds of a cell: its reservations, or its slots. They are kept beside the row, so that a check
-- reads sums of them and no list:
--
-- * The row has the number of holds, how many of them give units back when they expire, when the
--   next one is due, until when all have ended at the latest, and when the newest was made at the
--   latest.
-- * The hash `KEY:holds` has each hold under its id: `units made expires drawn lapse rest flags`.
--   The flags are 1 for a hold whose units stay drawn when it expires, and 2 for one that has
--   expired. `drawn` is the time at which its units were entered, or 0 if another limit drew them.
-- * The sorted set `KEY:due` has the ids in order: by `expires`, the holds that give units back; by
--   `-1 - due`, all others. So each kind can be read in order of time.
--
-- The three keys have one hash tag. No budget can be named as the other two are, because the name
-- of a row ends in a number. Both are written before the row and expire no sooner than their units
-- lapse. A hold is a value: a change replaces it, and is kept in `put` until the cell is saved.

-- A time that never comes: 2^52.
local NEVER = HALF_LIMIT
-- Holds that one request expires. The next requests expire the rest.
local EXPIRE_MAX = 512
-- A request that would write nothing writes the expiry of more than this many holds.
local UNWRITTEN_MAX = 16
-- Holds that give back which a retry time counts.
local WALK_MAX = 64
-- The first page of them: most retry times need no more.
local WALK_PAGE = 8
-- Holds that one command reads or writes.
local HOLDS_PAGE = 1000

local function no_holds(key)
  return {
    key = key .. ':holds',
    due_key = key .. ':due',
    count = 0,
    gives = 0,
    due = NEVER,
    ends = 0,
    newest = 0,
    -- How many are in Redis, and how many of those count.
    kept = 0,
    stored = 0,
    put = {},
    puts = 0,
    -- Those of them whose place in the order changes.
    moved = {},
  }
end

-- Until when a reservation can be settled, or a slot released.
local function ends_at(cell, hold)
  return cell.l.slots and hold.expires or 2 * hold.expires - hold.made
end

-- When a hold expires or, if it has, when it is forgotten.
local function due_at(cell, hold)
  return hold.expired and ends_at(cell, hold) or hold.expires
end

local function gives_back(hold)
  return not hold.firm and not hold.expired
end

local function score(cell, hold)
  return gives_back(hold) and hold.expires or -1 - due_at(cell, hold)
end

-- A hold with other values.
local function changed_hold(hold, changes)
  return setmetatable(changes, { __index = hold })
end

local function hold_text(hold)
  local flags = (hold.firm and 1 or 0) + (hold.expired and 2 or 0)
  return format('%.0f %.0f %.0f %.0f %.0f %.0f %d', hold.units, hold.made, hold.expires, hold.drawn, hold.lapse, hold.rest, flags)
end

local function parse_hold(holds, id, text)
  local units, made, expires, drawn, lapse, rest, flags =
    match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([0-3])$')
  if not units then
    unreadable(holds.key, 'its hold ' .. id .. ' is damaged')
  end
  return {
    id = id,
    units = tonumber(units),
    made = tonumber(made),
    expires = tonumber(expires),
    drawn = tonumber(drawn),
    lapse = tonumber(lapse),
    rest = tonumber(rest),
    firm = flags == '1' or flags == '3',
    expired = flags == '2' or flags == '3',
  }
end

-- The stored holds with these ids, without those that have changed.
local function read_holds(holds, ids)
  local read, asked = {}, {}
  for _, id in ipairs(ids) do
    if holds.put[id] == nil then
      asked[#asked + 1] = id
    end
  end
  for first = 1, #asked, HOLDS_PAGE do
    local last = min(first + HOLDS_PAGE - 1, #asked)
    for i, text in ipairs(read_key('HMGET', holds.key, unpack(asked, first, last))) do
      local id = asked[first + i - 1]
      read[#read + 1] = parse_hold(holds, id, text)
    end
  end
  return read
end

-- A hold by its id; nil without one.
local function find_hold(cell, id)
  local holds = cell.holds
  if holds.put[id] ~= nil then
    return holds.put[id] or nil
  end
  local text = holds.stored > 0 and read_key('HGET', holds.key, id)
  return text and parse_hold(holds, id, text) or nil
end

local function put(holds, id, hold)
  holds.puts = holds.puts + (holds.put[id] == nil and 1 or 0)
  holds.put[id] = hold
end

-- Stores a hold, instead of `old` if there is one.
local function put_hold(cell, hold, old)
  local holds = cell.holds
  put(holds, hold.id, hold)
  if not old or score(cell, old) ~= score(cell, hold) then
    holds.moved[hold.id] = true
  end
  holds.count = holds.count + (old and 0 or 1)
  holds.gives = holds.gives + (gives_back(hold) and 1 or 0) - (old and gives_back(old) and 1 or 0)
  holds.due = min(holds.due, due_at(cell, hold))
  holds.ends = max(holds.ends, ends_at(cell, hold))
  holds.newest = max(holds.newest, hold.made)
end

local function remove_hold(cell, hold)
  local holds = cell.holds
  put(holds, hold.id, false)
  holds.count, holds.gives = holds.count - 1, holds.gives - (gives_back(hold) and 1 or 0)
  if holds.count == 0 then
    holds.due, holds.ends, holds.newest = NEVER, 0, 0
  end
end

-- Sorts holds by a time, and by id where that is equal.
local function sort_holds(list, time)
  table.sort(list, function(one, other)
    local at, other_at = time(one), time(other)
    return at < other_at or (at == other_at and one.id < other.id)
  end)
  return list
end

-- The holds that have changed and `match`, appended to a list.
local function append_changed(holds, list, matches)
  for _, hold in pairs(holds.put) do
    if hold and matches(hold) then
      list[#list + 1] = hold
    end
  end
  return list
end

local function expires_at(hold)
  return hold.expires
end

-- The holds that are due and `match`, of which Redis has these ids, in order of `time`.
local function due_of(holds, ids, matches, time)
  local due = read_holds(holds, ids)
  if holds.puts > 0 then
    sort_holds(append_changed(holds, due, matches), time)
  end
  return due
end

-- The holds that are due: those that give back, and all others, each in order. At most EXPIRE_MAX.
local function due_holds(cell, now)
  local holds, ids, others = cell.holds, {}, {}
  if holds.stored > 0 then
    local at = format('%.0f', now)
    ids = read_key('ZRANGEBYSCORE', holds.due_key, 0, at, 'LIMIT', 0, EXPIRE_MAX)
    at = format('%.0f', -1 - now)
    others = read_key('ZREVRANGEBYSCORE', holds.due_key, -1, at, 'LIMIT', 0, EXPIRE_MAX)
  end
  local function time(hold)
    return due_at(cell, hold)
  end
  local due = due_of(holds, ids, function(hold)
    return gives_back(hold) and hold.expires <= now
  end, expires_at)
  others = due_of(holds, others, function(hold)
    return not gives_back(hold) and time(hold) <= now
  end, time)
  for _, hold in ipairs(others) do
    due[#due + 1] = hold
  end
  for i = EXPIRE_MAX + 1, #due do
    due[i] = nil
  end
  return due
end

-- The first holds that give units back, in order of expiry: `most`, or all if they are fewer.
local function giving_holds(cell, most)
  local holds, ids = cell.holds, {}
  if holds.stored > 0 then
    ids = read_key('ZRANGEBYSCORE', holds.due_key, 0, '+inf', 'LIMIT', 0, most + holds.puts)
  end
  local list = read_holds(holds, ids)
  if holds.puts > 0 then
    sort_holds(append_changed(holds, list, gives_back), expires_at)
  end
  return list
end

-- All holds, in order of expiry if that is asked for. Only a conversion to another limit and a clock
-- that went back far need them.
local function all_holds(cell, in_order)
  local holds, list = cell.holds, {}
  local stored = holds.stored > 0 and read_key('HGETALL', holds.key) or {}
  for i = 1, #stored, 2 do
    if holds.put[stored[i]] == nil then
      list[#list + 1] = parse_hold(holds, stored[i], stored[i + 1])
    end
  end
  append_changed(holds, list, function()
    return true
  end)
  return in_order and sort_holds(list, expires_at) or list
end

-- Forgets that there are holds: they have ended, or the cell starts afresh.
local function drop_holds(cell)
  local kept = cell.holds.kept
  cell.holds = no_holds(cell.key)
  cell.holds.kept = kept
end

local function copy_holds(holds)
  local copy = {}
  for name, value in pairs(holds) do
    copy[name] = value
  end
  copy.put, copy.moved = {}, {}
  for id, hold in pairs(holds.put) do
    copy.put[id], copy.moved[id] = hold, holds.moved[id]
  end
  return copy
end

-- Reads the sizes of both keys before anything is written. Those of a row without holds are left
-- over from a row that was deleted.
local function check_holds(holds)
  if holds.kept > 0 or holds.puts > 0 then
    local count, due = read_key('HLEN', holds.key), read_key('ZCARD', holds.due_key)
    if holds.stored > 0 and (count ~= holds.stored or due ~= holds.stored) then
      unreadable(holds.key, format('it has %d of %d holds', count, holds.stored))
    end
    holds.is_left_over = holds.stored == 0 and count + due > 0
  end
end

-- When the next hold is due, of those in Redis.
local function next_due(holds)
  local giving = redis.call('ZRANGEBYSCORE', holds.due_key, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local other = redis.call('ZREVRANGEBYSCORE', holds.due_key, -1, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return min(tonumber(giving or NEVER), other and -1 - tonumber(other) or NEVER)
end

-- Calls a command with the arguments in `list`, `each` of them to a hold, page by page.
local function call_in_pages(command, key, list, each)
  for first = 1, #list, each * HOLDS_PAGE do
    redis.call(command, key, unpack(list, first, min(first + each * HOLDS_PAGE - 1, #list)))
  end
end

-- Writes the holds that have changed. What Redis refuses when it is out of memory comes first.
local function save_holds(cell, millis)
  local holds = cell.holds
  if holds.count == 0 or holds.is_left_over then
    if holds.kept > 0 or holds.is_left_over then
      redis.call('DEL', holds.key, holds.due_key)
    end
  end
  if holds.count == 0 or holds.puts == 0 then
    return
  end
  local texts, scores, gone = {}, {}, {}
  for id, hold in pairs(holds.put) do
    if hold then
      texts[#texts + 1], texts[#texts + 2] = id, hold_text(hold)
      if holds.moved[id] then
        scores[#scores + 1], scores[#scores + 2] = format('%.0f', score(cell, hold)), id
      end
    else
      gone[#gone + 1] = id
    end
  end
  call_in_pages('HSET', holds.key, texts, 2)
  call_in_pages('ZADD', holds.due_key, scores, 2)
  call_in_pages('HDEL', holds.key, gone, 1)
  call_in_pages('ZREM', holds.due_key, gone, 1)
  redis.call('PEXPIRE', holds.key, millis)
  redis.call('PEXPIRE', holds.due_key, millis)
  holds.due = next_due(holds)
end
