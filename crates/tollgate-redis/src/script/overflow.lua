-- Overflow: what the limits of a rule do not have of a cost is drawn on the budget of another rule.
-- The law is that of cell/transact/overflow.rs in the core.
--
-- A key's part is 0 if its limit covers the whole cost, n > 0 if overflow n covers what the limit
-- lacks, and -n if the limit is that of overflow n. `views` are the cells of all keys, brought to
-- `now`.

local cells, costs, parts = {}, {}, {}

-- The least or the most of `value` over the cells of a part; 0 without cells.
local function over(part, pick, value, views)
  local result
  for i, cell in ipairs(views) do
    if parts[i] == part then
      local one = value(cell, i)
      result = result and pick(result, one) or one
    end
  end
  return result or 0
end

-- Units that an overflow has left.
local function lent(views, number, now)
  return over(-number, min, function(cell)
    return available(cell, now)
  end, views)
end

-- Units that an overflow has to cover: the most that any limit lacks.
local function lacking(views, number, now)
  return over(number, max, function(cell, i)
    return max(costs[i] - available(cell, now), 0)
  end, views)
end

-- Units that key i draws if the request is admitted.
local function portion_of(views, i, now)
  local part = parts[i]
  if part == 0 then
    return costs[i]
  end
  local rest = lacking(views, math.abs(part), now)
  return part > 0 and max(costs[i] - rest, 0) or max(costs[i], rest)
end

-- Whether key i admits `cost`, together with its overflow.
local function fits_in_parts(views, i, now, cost)
  local cell, part = views[i], parts[i]
  if part <= 0 then
    return (part < 0 and cost == 0) or fits(cell, now, cost)
  end
  local lent = lent(views, part, now)
  return (cost > 0 or lent > 0 or fits(cell, now, 0))
    and not is_blocked(cell, now)
    and cost <= available(cell, now) + lent
end

-- The first time at which key i and its overflow cover `cost`; nil if they never do.
local function ready_at(views, i, now, cost)
  local cell, part = views[i], parts[i]
  local lends = over(-part, min, function(rest)
    return rest.l.capacity
  end, views)
  local has = cell.l.capacity
  if cost > has + lends then
    return nil
  end
  local function own_at(units)
    return units == 0 and now or available_at(cell, now, units)
  end
  local function rest_at(units)
    return units == 0 and now or over(-part, max, function(rest)
      return available_at(rest, now, units)
    end, views)
  end
  local at
  if cost == 0 then
    at = available_at(cell, now, 0)
    if lends > 0 then
      at = min(at, rest_at(1))
    end
  else
    local least = max(cost - lends, 0)
    local low, high = least, min(cost, has)
    while low < high do
      local middle = floor((low + high) / 2)
      if own_at(middle) >= rest_at(cost - middle) then
        high = middle
      else
        low = middle + 1
      end
    end
    at = max(own_at(low), rest_at(cost - low))
    if low > least then
      at = min(at, max(own_at(low - 1), rest_at(cost - low + 1)))
    end
  end
  return max(at, cell.blocked)
end

-- The units that a reservation holds in a cell; nil without such a reservation.
local function held_in(cell, id)
  local hold = find_hold(cell, id)
  return hold and hold.units
end

-- Units that can be taken, whether the cell is blocked or not.
local function left_in(cell, now)
  return cell.behind and 0 or cell.a.available(cell.l, cell.s, now)
end

-- Units that an overflow covers of a cost that was used, of which reservation `id` holds a part.
local function spent(views, number, now, id)
  local lent_before = over(-number, max, function(cell)
    return held_in(cell, id) or 0
  end, views)
  local lent = over(-number, min, function(cell)
    return left_in(cell, now)
  end, views)
  local lacking = over(number, max, function(cell, i)
    local beyond = max(costs[i] - (held_in(cell, id) or 0), 0)
    if beyond < lent_before then
      return beyond
    end
    return lent_before + max(beyond - lent_before - left_in(cell, now), 0)
  end, views)
  return min(lacking, lent_before + lent)
end

-- Units of a refund that go to an overflow, and those of them that are given back before its rule
-- is given any.
local function given_back(views, number, now)
  local function used(cell)
    return cell.a.used(cell.l, cell.s, not_before(cell, now))
  end
  local is_first_left = over(number, min, function(cell)
    return left_in(cell, now)
  end, views) > 0
  local rest = over(number, min, function(cell, i)
    return max(costs[i] - (is_first_left and used(cell) or 0), 0)
  end, views)
  return rest, is_first_left and 0 or min(over(-number, max, used, views), rest)
end

-- The part of the cost that key i covers of a cost that was used, or is given back.
local function acted_portion(views, i, now, op, id)
  local part = parts[i]
  if part == 0 then
    return costs[i]
  end
  local number = math.abs(part)
  if op == 'refund' then
    local rest, first = given_back(views, number, now)
    return part > 0 and max(costs[i] - first, 0) or rest
  elseif op == 'record' or op == 'settle' then
    local rest = spent(views, number, now, id)
    return part > 0 and max(costs[i] - rest, 0) or rest
  end
  return costs[i]
end

-- Whether reservation `id` holds units of key i, or of a key of the same overflow.
local function is_held(views, i, id)
  for j, cell in ipairs(views) do
    if (j == i or (parts[i] ~= 0 and math.abs(parts[j]) == math.abs(parts[i]))) and held_in(cell, id) then
      return true
    end
  end
end
