-- The request: KEYS are its keys, no key twice. ARGV: the operation; the time in microseconds, or
-- nothing for this server's own; how many milliseconds a key outlives its idling; for each key its
-- limit, the cost and the rule (its number, negative if it only watches); then what the operation
-- needs. The answer: the time, how many states were converted from a limit that was replaced,
-- whether anything changed, and for each key seven numbers: the wait (0 admitted, -1 never), what
-- remains, when all of it is back, when there is more, how many units moved, whether a reservation
-- was held, and when the block ends, if there is one; after a `try` also a ticket for each, which
-- undoes it.
--
-- A denied request writes nothing, and neither does a peek. There are two exceptions, both for a
-- check that the limit itself denies: a state from a wild reading of the clock is re-based, and a
-- state that a replaced limit wrote is converted.

local op, grace = ARGV[1], tonumber(ARGV[3])
local extra = 3 + 3 * #KEYS

-- Whether a request is decided, under the limit that applies to it. What is done to a client leaves
-- its limit alone.
local decides = op == 'take' or op == 'try' or op == 'peek' or op == 'reserve' or op == 'refuse'

local cells, costs, rules, at = {}, {}, {}, now
for i, key in ipairs(KEYS) do
  costs[i], rules[i] = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
  cells[i] = load_cell(key, ARGV[3 * i + 1])
  -- A reading that merely came late counts as the one that was there before it.
  if standing(cells[i], now) == 'late' then
    at = max(at, cells[i].a.written(cells[i].l, cells[i].s))
  end
end
local reading, now = now, at

-- Brings a cell to `now`, under this limit.
local function view(cell, limit)
  local function is_current()
    return cell.a.written(cell.l, cell.s) <= now
  end
  if is_current() then
    expire(cell, now)
  end
  if cell.limit ~= limit then
    cell.converted = tag_of(limit) ~= cell.tag and not is_idle(cell, now)
    retune(cell, limit, now)
  end
  local where = is_current() and 'current' or standing(cell, reading)
  cell.rebased, cell.behind = where == 'wild', where == 'behind'
  if cell.rebased then
    rebase(cell, now)
  end
  -- A block that was set at a later reading of the clock lasts as long from now.
  local moved = cell.set - now > LATE
  if moved then
    cell.set, cell.blocked = now, now + cell.blocked - cell.set
  end
  cell.mends = cell.converted or cell.rebased or moved
end

local answer, changed = { now, 0, 0 }, {}

local function tell(cell, cost, allowed, units, held)
  local left, capacity = available(cell, now), cell.l.capacity
  local reset_at = available_at(cell, now, capacity)
  local wait = 0
  if not allowed then
    wait = cost > capacity and -1 or max(available_at(cell, now, cost) - now, 1)
  end
  local grows_at = now
  if left < capacity then
    grows_at = left + 1 == capacity and reset_at or available_at(cell, now, left + 1)
  end
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = wait, left, reset_at
  answer[n + 4], answer[n + 5], answer[n + 6] = grows_at, units, held
  answer[n + 7] = is_blocked(cell, now) and cell.blocked or 0
end

-- Takes, reserves or peeks: everything if every limit that enforces has room, nothing otherwise. A
-- rule that only watches is drawn on if the request is admitted and all of its limits have room.
local function decide()
  local fit, places, watched, tickets, admitted = {}, {}, {}, {}, true
  for i, cell in ipairs(cells) do
    view(cell, ARGV[3 * i + 1])
    places[i] = op == 'reserve' and costs[i] > 0 and place_at(cell, ARGV[extra + 2], now) or now
    fit[i] = places[i] <= now and fits(cell, now, costs[i])
    if not fit[i] then
      if rules[i] > 0 then
        admitted = false
      else
        watched[rules[i]] = true
      end
    end
  end
  for i, cell in ipairs(cells) do
    tickets[i] = ''
    if op == 'peek' or costs[i] == 0 then
      -- Nothing is drawn.
    elseif not admitted or watched[rules[i]] then
      changed[i] = refuse(cell, now, costs[i]) or (not fit[i] and cell.mends)
    elseif op == 'reserve' then
      changed[i] = true
      hold(cell, now, {
        id = ARGV[extra + 1],
        holder = ARGV[extra + 2],
        units = costs[i],
        made = now,
        expires = now + tonumber(ARGV[extra + 3]),
        firm = ARGV[extra + 4] == '1',
      })
    else
      changed[i] = true
      take(cell, now, costs[i])
      if op == 'try' then
        tickets[i] = cell.a.ticket(cell.l, cell.s, now)
      end
    end
    -- After a denial each limit answers as a peek would next: counting the attempt may have used up
    -- its room.
    local allowed = admitted and fit[i]
    if not admitted then
      allowed = fits(cell, now, costs[i])
    end
    tell(cell, costs[i], allowed, 0, 0)
    if not admitted and allowed and places[i] > now then
      answer[#answer - 6] = places[i] - now
    end
  end
  if op == 'try' then
    for _, ticket in ipairs(tickets) do
      answer[#answer + 1] = ticket
    end
  end
end

-- What treats each cell by itself.
local function act(i)
  local cell, cost, limit = cells[i], costs[i], ARGV[3 * i + 1]
  if op ~= 'refuse' and cell.a.written(cell.l, cell.s) <= now then
    expire(cell, now)
  end
  -- An idle cell may have been forgotten by now: nobody can tell, so it has the limit of whoever
  -- comes.
  if op == 'reset' or (op ~= 'refuse' and is_idle(cell, now)) then
    local fresh = new_cell(cell.key, limit)
    fresh.text, fresh.list, fresh.stored = cell.text, cell.list, cell.stored
    cells[i], cell = fresh, fresh
  end
  local units, held, before = 0, 0, nil
  if op == 'refund' then
    local own = not_before(cell, now)
    local used = cell.a.used(cell.l, cell.s, own)
    before = cell.a.save(cell.s)
    cell.a.give(cell.l, cell.s, own, cost)
    units = used - cell.a.used(cell.l, cell.s, own)
    changed[i] = before ~= cell.a.save(cell.s)
  elseif op == 'penalise' then
    units = penalise(cell, now, cost)
    changed[i] = units > 0
  elseif op == 'reset' then
    changed[i] = true
  elseif op == 'block' then
    local span, date = tonumber(ARGV[extra + 1]), ARGV[extra + 2] == '1'
    cell.set, cell.blocked = date and 0 or now, date and span or now + span
    changed[i] = true
  elseif op == 'settle' then
    local lacking = settle(cell, ARGV[extra + 1], now, cost)
    units, held = lacking or 0, lacking and 1 or 0
    changed[i] = lacking
  elseif op == 'refuse' then
    view(cell, limit)
    changed[i] = refuse(cell, now, cost)
  elseif op == 'undo' then
    -- Takes back a `try` whose request another slot denied. What counts denied attempts keeps this
    -- one; a limit that has changed since knows nothing of it any more.
    local ticket = ARGV[extra + i]
    if ticket ~= '' and cell.tag == tag_of(limit) and not cell.l.counts then
      cell.a.undo(cell.l, cell.s, not_before(cell, now), cost, ticket)
      changed[i] = true
    end
  end
  -- What is told is what a peek would say next; what is kept is what was done.
  local seen = cell
  if op ~= 'refuse' then
    seen = copy_cell(cell)
    view(seen, op == 'undo' and limit or cell.limit)
  end
  tell(seen, cost, fits(seen, now, cost), units, held)
end

if decides and op ~= 'refuse' then
  decide()
else
  for i in ipairs(cells) do
    act(i)
  end
end
for i, cell in ipairs(cells) do
  if changed[i] then
    answer[2], answer[3] = answer[2] + (cell.converted and 1 or 0), 1
    save_cell(cell, now, grace)
  end
end
return answer
