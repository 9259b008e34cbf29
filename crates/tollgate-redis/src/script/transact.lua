-- The request: KEYS are its keys, no key twice. ARGV: the operation; the time in microseconds, or nothing for this
-- server's own; how many milliseconds a key outlives its idling; for each key its limit, the cost and the rule (its
-- number, negative if it only watches); then what the operation needs. The answer: the time, and for each key six
-- numbers: the wait (0 admitted, -1 never), what remains, when all of it is back, when there is more, how many units
-- moved, and whether a reservation was held; after a `try` also a ticket for each, which undoes it.

local op, grace = ARGV[1], tonumber(ARGV[3])
local extra = 3 + 3 * #KEYS

-- Whether a request is decided, under the limit that applies to it. What is done to a client leaves its limit alone.
local decides = op == 'take' or op == 'try' or op == 'peek' or op == 'reserve' or op == 'refuse'

local cells, costs, rules, retuned = {}, {}, {}, {}
for i, key in ipairs(KEYS) do
  local limit = ARGV[3 * i + 1]
  costs[i], rules[i] = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
  local cell = load_cell(key, limit)
  roll(cell, now)
  -- An idle cell may have been forgotten by now: nobody can tell, so it has the limit of whoever comes.
  if decides or idle_at(cell, now) <= now then
    retuned[i] = cell.limit ~= limit
    retune(cell, limit, now)
  end
  cells[i] = cell
end

local answer = { now }

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
end

-- Whether there is no room for one more reservation.
local function is_full(cell)
  return op == 'reserve' and #cell.holds >= HOLDS_MAX
end

-- Takes, reserves or peeks: everything if every limit that enforces has room, nothing otherwise. A rule that only
-- watches is drawn on if the request is admitted and all of its limits have room.
local function decide()
  local fit, full, watched, tickets, admitted = {}, {}, {}, {}, true
  for i, cell in ipairs(cells) do
    full[i] = is_full(cell)
    fit[i] = not full[i] and fits(cell, now, costs[i])
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
    if op == 'peek' then
      -- Nothing is drawn.
    elseif not admitted or watched[rules[i]] then
      refuse(cell, now, costs[i])
    elseif op == 'reserve' then
      hold(cell, ARGV[extra + 1], costs[i], now, now + tonumber(ARGV[extra + 2]), ARGV[extra + 3] == '1')
    else
      take(cell, now, costs[i])
      if op == 'try' and costs[i] > 0 then
        tickets[i] = cell.a.ticket(cell.l, cell.s, now)
      end
    end
    -- After a denial each limit answers as a peek would next: counting the attempt may have used up its room.
    local allowed = admitted and fit[i]
    if not admitted then
      allowed = fits(cell, now, costs[i])
    end
    tell(cell, costs[i], allowed, 0, 0)
    if full[i] and allowed then
      answer[#answer - 5] = cell.holds[1].expires - now
    end
  end
  if op == 'try' then
    for _, ticket in ipairs(tickets) do
      answer[#answer + 1] = ticket
    end
  end
end

-- What treats each cell by itself.
local function act(cell, cost, i)
  local units, held = 0, 0
  if op == 'refund' then
    local before = cell.a.available(cell.l, cell.s, now)
    cell.a.give(cell.l, cell.s, now, cost)
    units = cell.a.available(cell.l, cell.s, now) - before
  elseif op == 'penalise' then
    units = penalise(cell, now, cost)
  elseif op == 'block' then
    cell.blocked = now + tonumber(ARGV[extra + 1])
  elseif op == 'settle' then
    local lacking = settle(cell, ARGV[extra + 1], now, cost)
    units, held = lacking or 0, lacking and 1 or 0
  elseif op == 'refuse' then
    refuse(cell, now, cost)
  elseif op == 'undo' then
    -- Takes back a `try` whose request another slot denied. What counts denied attempts keeps this one; a limit that
    -- has changed since knows nothing of it any more.
    local ticket = ARGV[extra + i]
    if ticket ~= '' and cell.limit == ARGV[3 * i + 1] and not cell.l.counts then
      cell.a.undo(cell.l, cell.s, now, cost, ticket)
    end
  end
  tell(cell, cost, fits(cell, now, cost), units, held)
end

if decides and op ~= 'refuse' then
  decide()
else
  for i, cell in ipairs(cells) do
    if op == 'reset' then
      local fresh = new_cell(cell.key, ARGV[3 * i + 1])
      fresh.text = cell.text
      cells[i], cell = fresh, fresh
    end
    act(cell, costs[i], i)
  end
end
for i, cell in ipairs(op == 'peek' and {} or cells) do
  if retuned[i] and costs[i] == 0 and (op == 'take' or op == 'try') then
    -- Who only asks changes nothing, not even under which limit the state is kept.
    cell = load_cell(cell.key, cell.limit)
    roll(cell, now)
  end
  save_cell(cell, now, grace)
end
return answer
