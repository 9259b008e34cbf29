-- The excess of a cell: units in use beyond the limit that are no debt. A window and a log keep their
-- whole count when their limit is lowered, and a replacement makes no debt. Whatever asks about debt
-- asks a limit that is larger by the excess.

-- The excess of the state `s` of a cell that is still in use.
local function excess_of(cell, s, now)
  return cell.excess == 0 and 0 or min(cell.excess, max(cell.a.used(cell.l, s, now) - cell.l.capacity, 0))
end

-- The limit that a question about debt is asked: larger by the excess.
local function raised(cell, s, now)
  local excess = excess_of(cell, s, now)
  if excess == 0 then
    return cell.l
  end
  local l = {}
  for name, value in pairs(cell.l) do
    l[name] = value
  end
  l.capacity = l.capacity + excess
  return l
end

local function owed(cell, now)
  return cell.a.owed(raised(cell, cell.s, now), cell.s, now)
end

