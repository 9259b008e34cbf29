-- The request as a whole. ARGV and the reply are described at the head of the script.
--
-- A denied request writes nothing, and neither does a peek. A check that the limit itself denies
-- has three exceptions: a state from a wild reading of the clock is re-based, a state that a
-- replaced limit wrote is converted, and a denied cost is recorded if the rule says so.

local op, overflows = match(ARGV[1], '^%+?(%l+)$'), sub(ARGV[1], 1, 1) == '+'
local grace = tonumber(ARGV[3])
local extra = KEY_ARGUMENTS * (#KEYS + 1)
-- The windows of calendars come after the parts.
local parts_end = sub(ARGV[#ARGV], 1, 1) == '@' and #ARGV - 1 or #ARGV

-- Whether the operation decides a request. The other operations act on a client. All act under the
-- limit of the charge.
local decides = op == 'take' or op == 'try' or op == 'peek' or op == 'reserve' or op == 'acquire' or op == 'refuse'

local rules, budgets = {}, {}
-- The reading of the clock. A late reading is decided at the time of the reading before it.
local reading = now

-- Loads the cells.
local function load()
  local at = now
  for i, key in ipairs(KEYS) do
    parts[i] = overflows and tonumber(ARGV[parts_end - #KEYS + i]) or 0
    costs[i] = tonumber(ARGV[KEY_ARGUMENTS * i + 2])
    local rule, budget = match(ARGV[KEY_ARGUMENTS * i + 3], '^(-?%d+):?(%d*)$')
    rules[i], budgets[i] = tonumber(rule), budget
    cells[i] = load_cell(key, ARGV[KEY_ARGUMENTS * i + 1])
    if standing(cells[i], reading) == 'late' then
      at = max(at, cells[i].a.written(cells[i].l, cells[i].s))
    end
  end
  now = at
end

-- Converts a cell to the limit of its charge, if another limit wrote it.
local function convert(cell, limit)
  if cell.limit == limit then
    return
  end
  -- Live slots are the same under every number of them.
  local had_slots = cell.l.slots
  cell.converted = tag_of(limit) ~= cell.tag and not is_idle(cell, now)
  retune(cell, limit, now)
  cell.converted = cell.converted and not (had_slots and cell.l.slots)
end

-- Brings a cell to `now`, under `limit`.
local function view(cell, limit)
  catch_up(cell, now)
  convert(cell, limit)
  local is_current = cell.a.written(cell.l, cell.s) <= now
  local state = is_current and 'current' or standing(cell, reading)
  cell.rebased, cell.behind = state == 'wild', state == 'behind'
  if cell.rebased then
    rebase(cell, now)
  end
  -- A block that was set at a later reading of the clock restarts with its full duration.
  local moved = cell.set - now > LATE_MAX
  if moved then
    cell.set, cell.blocked = now, now + cell.blocked - cell.set
  end
  moved = restart_slots(cell, now) or moved
  cell.repaired = cell.converted or cell.rebased or moved
end

local answer, changed, overflow = { 0, 0, 0 }, {}, {}

-- How long key i keeps a request of `cost` waiting: -1 for ever.
local function wait_of(views, i, cost)
  local cell, at = views[i], nil
  if parts[i] > 0 then
    at = ready_at(views, i, now, cost)
  elseif cost <= cell.l.capacity then
    at = available_at(cell, now, cost)
  end
  return at and max(at - now, 1) or -1
end

-- Appends the numbers of key i to the reply.
local function report(views, i, cost, allowed, units, held, drawn)
  local cell = views[i]
  local left, capacity = available(cell, now), cell.l.capacity
  local reset_at = available_at(cell, now, capacity)
  local wait = allowed and 0 or wait_of(views, i, cost)
  local grows_at = now
  if left < capacity then
    grows_at = left + 1 == capacity and reset_at or available_at(cell, now, left + 1)
  end
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = wait, left, reset_at
  answer[n + 4], answer[n + 5], answer[n + 6] = grows_at, units, held
  answer[n + 7] = is_blocked(cell, now) and cell.blocked or 0
  answer[n + 8] = (left > 0 or cell.behind) and 0 or owed(cell, now)
  if overflows then
    overflow[#overflow + 1] = drawn
    overflow[#overflow + 1] = parts[i] > 0 and not is_blocked(cell, now) and lent(views, parts[i], now) or 0
  end
end

-- The units that a denied request records on each key: all limits of a budget of which one denied
-- record the cost, if denied costs are recorded there. An overflow covers its part of them.
local function recorded_units(fit)
  local denied, asked, units = {}, costs, {}
  for i in ipairs(cells) do
    if not fit[i] and budgets[i] ~= '' then
      denied[budgets[i]] = true
    end
  end
  if next(denied) then
    costs = {}
    for i in ipairs(cells) do
      costs[i] = denied[budgets[i]] and asked[i] or 0
    end
    for i in ipairs(cells) do
      local portion = acted_portion(cells, i, now, 'record')
      units[i] = max(portion, costs[i]) > 0 and portion or nil
    end
    costs = asked
  end
  return units
end

-- Whether key i holds a reservation of cost 0: a slot cannot be empty, and an overflow covers nothing
-- of it.
local function holds_nothing(i)
  return op == 'reserve' and costs[i] == 0 and parts[i] >= 0 and not cells[i].l.slots
end

-- Takes, refuses, reserves, acquires or peeks: all charges if every enforced limit has room, none otherwise.
-- A shadow rule is charged if the request is admitted and all of its limits have room.
local function decide()
  local fit, shadow_denied, tickets, admitted = {}, {}, {}, op ~= 'refuse'
  local portions, has, short = {}, {}, {}
  for i, cell in ipairs(cells) do
    view(cell, ARGV[KEY_ARGUMENTS * i + 1])
  end
  for i, cell in ipairs(cells) do
    portions[i] = portion_of(cells, i, now)
    fit[i] = fits_in_parts(cells, i, now, costs[i])
    -- Whether this limit by itself has enough.
    has[i] = fit[i]
    if parts[i] ~= 0 then
      has[i] = fits(cell, now, max(costs[i], portions[i]))
    end
    if not fit[i] then
      if rules[i] > 0 then
        admitted = false
      else
        shadow_denied[rules[i]] = true
      end
    end
  end
  local records = not admitted and (op == 'take' or op == 'try' or op == 'refuse')
  local recorded = records and recorded_units(fit) or {}
  for i, cell in ipairs(cells) do
    tickets[i] = ''
    local is_drawn = admitted and not shadow_denied[rules[i]]
    if recorded[i] then
      short[i] = record(cell, now, recorded[i])
      changed[i] = short[i] < recorded[i] or (not has[i] and cell.repaired)
    elseif op == 'peek' or (max(costs[i], portions[i]) == 0 and not (is_drawn and holds_nothing(i))) then
      -- Nothing is drawn.
    elseif not is_drawn then
      changed[i] = refuse(cell, now, costs[i]) or (not has[i] and cell.repaired)
    elseif portions[i] == 0 and not holds_nothing(i) then
      -- An overflow covers all of the cost.
      changed[i] = not has[i] and cell.repaired
    elseif cell.l.slots and (op == 'reserve' or op == 'acquire') then
      changed[i], tickets[i] = true, ARGV[extra + 1]
      hold(cell, now, new_slot(ARGV[extra + 1], now, now + tonumber(ARGV[extra + 2])))
    elseif op == 'reserve' then
      changed[i] = true
      hold(cell, now, {
        id = ARGV[extra + 1],
        units = portions[i],
        made = now,
        expires = now + tonumber(ARGV[extra + 2]),
        drawn = now,
        firm = ARGV[extra + 3] == '1',
      })
    else
      changed[i] = true
      take(cell, now, portions[i])
      if op == 'try' or op == 'acquire' then
        tickets[i] = cell.a.ticket(cell.l, cell.s, now)
      end
    end
  end
  for i in ipairs(cells) do
    -- After a denial the reply is that of the next peek: a counted attempt or a record may have used
    -- up the room of a limit.
    local allowed = admitted and fit[i]
    if not admitted then
      allowed = fits_in_parts(cells, i, now, costs[i])
    end
    local drawn = admitted and portions[i] or recorded[i] and recorded[i] - short[i] or 0
    report(cells, i, costs[i], allowed, short[i] or 0, short[i] and 1 or 0, drawn)
  end
  return (op == 'try' or op == 'acquire') and tickets or {}
end

-- A cell without anything in use, instead of another.
local function emptied(cell, limit)
  local fresh = new_cell(cell.key, limit)
  fresh.text, fresh.list, fresh.stored = cell.text, cell.list, cell.stored
  fresh.holds.kept, fresh.expired = cell.holds.kept, cell.expired
  return fresh
end

-- The rows of the budgets' further limits, emptied: a list of limits may shrink and grow again.
local function dropped_cells()
  local last, dropped = {}, {}
  for i, key in ipairs(KEYS) do
    local budget, index = match(key, '^(.*:)(%d+)$')
    if not last[budget] or last[budget].index < tonumber(index) then
      last[budget] = { index = tonumber(index), limit = ARGV[KEY_ARGUMENTS * i + 1] }
    end
  end
  for budget, one in pairs(last) do
    for index = one.index + 1, LIMITS_MAX - 1 do
      local cell = load_cell(budget .. index, one.limit)
      if cell.text then
        dropped[#dropped + 1] = emptied(cell, one.limit)
      end
    end
  end
  return dropped
end

-- Brings key i to an operation that acts on a client.
local function prepare(i)
  local cell, limit = cells[i], ARGV[KEY_ARGUMENTS * i + 1]
  local is_plain = cell.holds.count == 0 and cell.blocked <= now
  catch_up(cell, now)
  -- An idle cell may have expired already. So that both cases behave the same, it takes the limit
  -- of the charge. A bucket with a reserve stays as it is when units are recorded: after a clock
  -- that goes back, they look like a debt, and only the reserve's own state tells what it gave.
  local stays = op == 'record' and is_plain and cell.limit == limit and sub(limit, 1, 1) == 'r'
  if op == 'reset' or (is_idle(cell, now) and not stays) then
    cells[i] = emptied(cell, limit)
  end
  -- A limit that has changed since a `try` does not recognise its ticket.
  if op ~= 'undo' then
    convert(cells[i], limit)
  end
end

-- The cells as the next peek sees them: copies, since the cells are stored as they are.
local function peeked()
  local views = {}
  for i, cell in ipairs(cells) do
    views[i] = copy_cell(cell)
    view(views[i], ARGV[KEY_ARGUMENTS * i + 1])
  end
  return views
end

-- Applies an operation that treats each cell by itself. Returns the units moved or short, and
-- whether a reservation was found.
local function act(i, cost, is_held)
  local cell, limit = cells[i], ARGV[KEY_ARGUMENTS * i + 1]
  local units, held, before = 0, 0, nil
  if op == 'refund' then
    local at = not_before(cell, now)
    local used = cell.a.used(cell.l, cell.s, at)
    -- What has lapsed is no change.
    cell.a.give(cell.l, cell.s, at, 0)
    before = cell.a.save(cell.s)
    cell.a.give(cell.l, cell.s, at, cost)
    units = used - cell.a.used(cell.l, cell.s, at)
    changed[i] = before ~= cell.a.save(cell.s)
  elseif op == 'penalise' then
    units = penalise(cell, now, cost)
    changed[i] = units > 0
  elseif op == 'record' then
    units = record(cell, now, cost)
    changed[i] = units < cost
  elseif op == 'renew' then
    changed[i] = renew(cell, ARGV[extra + 1], now, tonumber(ARGV[extra + 2]))
    held = changed[i] and 1 or 0
  elseif op == 'reset' then
    changed[i] = true
  elseif op == 'block' then
    local span, date = tonumber(ARGV[extra + 1]), ARGV[extra + 2] == '1'
    cell.set, cell.blocked = date and 0 or now, date and span or now + span
    changed[i] = true
  elseif op == 'settle' then
    local shortfall, found = settle(cell, ARGV[extra + 1], now, cost)
    if not found and is_held then
      -- Only the other part of the cost is reserved.
      shortfall, found = record(cell, now, cost), 1
      changed[i] = shortfall < cost
    else
      changed[i] = found
    end
    units, held = shortfall or 0, found or 0
  elseif op == 'undo' then
    -- Undoes a `try` or an `acquire` whose request another slot of the cluster denied. A limit that
    -- counts denied attempts keeps the cost; a limit that has changed since the `try` does not
    -- recognise the ticket.
    local ticket = ARGV[extra + i]
    if ticket ~= '' and cell.l.slots then
      changed[i] = settle(cell, ticket, now, 0)
    elseif ticket ~= '' and cell.tag == tag_of(limit) and not cell.l.counts then
      cell.a.undo(cell.l, cell.s, not_before(cell, now), cost, ticket)
      changed[i] = true
    end
  end
  return units, held
end

-- Applies the operation to all cells, and then reports them.
local function act_on_all()
  local portions, units, held, is_part_held = {}, {}, {}, {}
  for i in ipairs(cells) do
    prepare(i)
  end
  local views, id = overflows and peeked(), op == 'settle' and ARGV[extra + 1]
  for i in ipairs(cells) do
    portions[i] = overflows and acted_portion(views, i, now, op, id) or costs[i]
    is_part_held[i] = overflows and id and is_held(views, i, id)
  end
  for i in ipairs(cells) do
    units[i], held[i] = act(i, portions[i], is_part_held[i])
  end
  views = peeked()
  for i in ipairs(cells) do
    -- A record has no cost to admit any more: its reply says until when units are owed.
    local cost = op == 'record' and 0 or costs[i]
    local drawn = (op == 'record' or held[i] > 0 and op == 'settle') and portions[i] - units[i] or 0
    report(views, i, cost, fits_in_parts(views, i, now, cost), units[i], held[i], drawn)
  end
end

-- Decides, and reads all that is needed to write. Returns the cells to write, the tickets, and the
-- lapsed entries of an index.
local function run()
  load()
  answer[1] = now
  local lapsed = index and lapsed_blocks(now)
  local tickets, written = {}, op == 'reset' and dropped_cells() or {}
  for _, cell in ipairs(written) do
    check_holds(cell.holds)
  end
  if decides then
    tickets = decide()
  else
    act_on_all()
  end
  for i, cell in ipairs(cells) do
    local saved = changed[i] and cell or cell.expired
    if saved then
      check_holds(saved.holds)
      answer[2], answer[3] = answer[2] + (changed[i] and cell.converted and 1 or 0), 1
      written[#written + 1] = saved
    end
  end
  return written, tickets, lapsed
end

local decided, written, tickets, lapsed = pcall(run)
if not decided then
  local problem = written
  if type(problem) ~= 'table' then
    error(problem, 0)
  elseif problem.calendar then
    return { problem.calendar, problem.at }
  end
  return redis.error_reply('BADROW ' .. problem.unreadable)
end
for _, cell in ipairs(written) do
  save_cell(cell, now, grace)
end
if index then
  index_blocks(tonumber(ARGV[extra + (op == 'block' and 3 or 1)]), lapsed, written, now, grace)
end
for _, number in ipairs(overflow) do
  answer[#answer + 1] = number
end
for _, ticket in ipairs(tickets) do
  answer[#answer + 1] = ticket
end
return answer
