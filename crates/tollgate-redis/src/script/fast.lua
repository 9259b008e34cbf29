-- The fast path. Nearly every request takes from token buckets and windows in an ordinary state,
-- and defining functions is half the cost of the slow path below. So this is the same arithmetic
-- without functions: it decides an ordinary request, or leaves the request untouched to the slow
-- path.
--
-- Left to the slow path: a request that is no take, has a shadow rule, costs 0 or costs more than a
-- whole limit; a limit that is a log or a reserve, refills in steps, counts denied attempts, or
-- whose capacity and first parameter multiply to HALF_LIMIT or more; a denial that is recorded; a
-- state that has a block, has more in use than the limit, was written under another limit (for an
-- inline limit: with another denominator), or is ahead of the clock; a calendar window that has to
-- be opened; reservations of which one is due, or gives units back before all others are back.
--
-- A limit is its kind, its capacity and parameters p1 to p3; a state is up to three numbers s1 to
-- s3:
--
--   kind                p1      p2       p3       s1         s2       s3
--   b  token bucket     token   parts    step     full_at    rest
--   t  inline bucket    token   parts    longest  full_at    rest     parts
--   f  fixed window     period  aligned  counts   opened_at  used
--   m  calendar window                   counts   starts_at  ends_at  used
--   w  inline window    period                    ends_at    used
--   s  sliding window   period  counts            start      current  previous

-- Values of a charge between the two passes below.
local CHARGE_VALUES = 15

local now
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now = time[1] * SECOND + time[2]
else
  now = tonumber(ARGV[2])
end

local ordinary, admitted, records, charges = ARGV[1] == 'take', true, false, {}
for i = 1, ordinary and #KEYS or 0 do
  local limit, cost = ARGV[KEY_ARGUMENTS * i + 1], tonumber(ARGV[KEY_ARGUMENTS * i + 2])
  local kind, capacity, p1, p2, p3 = match(limit, '^([bfstw]) (%d+) (%d+) ?(%d*) ?(%d*)')
  if not kind then
    kind, capacity, p3 = match(limit, '^(m) (%d+) %a+ %S+ (%d)')
    p1 = 1
  end
  -- Neither counts denied attempts nor refills in steps.
  local plain = kind == 't' or kind == 'w' or (kind == 's' and p2 or p3) == '0'
  local rule = ARGV[KEY_ARGUMENTS * i + 3]
  ordinary = kind and plain and sub(rule, 1, 1) ~= '-'
  records = records or find(rule, ':', 1, true)
  if not ordinary then
    break
  end
  capacity, p1, p2 = tonumber(capacity), tonumber(p1), tonumber(p2)
  -- The state of an inline limit is tagged with its kind only.
  local tag = (kind == 't' or kind == 'w') and kind or limit
  local text = redis.pcall('GET', KEYS[i])
  local s1, s2, s3, sums, gives_at, ends = 0, 0, 0, '', nil, 0
  if text then
    ordinary = type(text) == 'string' and find(text, tag .. '|', 1, true) == 1
    if ordinary then
      s1, s2, s3, sums = match(text, '^(%d+) (%d+) ?(%d*)(.*)$', #tag + 2)
      ordinary = s1
    end
    s1, s2, s3 = tonumber(s1), tonumber(s2), tonumber(s3)
    if ordinary and sums ~= '' then
      -- The sums of reservations are carried over.
      local gives, due, all_end = match(sums, '^||%d+ (%d+) (%d+) (%d+) %d+$')
      ordinary = gives and tonumber(due) > now
      gives_at, ends = gives ~= '0' and tonumber(due), tonumber(all_end)
    end
  end
  ordinary = ordinary and cost >= 1 and cost <= capacity and capacity * p1 < HALF_LIMIT
  if not ordinary then
    break
  end
  local left, debt
  if kind == 'b' or kind == 't' then
    local token, parts, full_at, rest = p1, p2, s1, s2
    if kind == 't' then
      ordinary = (rest == 0 or s3 == parts) and full_at <= now + tonumber(p3)
    end
    debt = full_at >= now and (full_at - now) * parts + rest or 0
    ordinary = ordinary and (kind == 't' and debt < HALF_LIMIT or debt <= capacity * token)
    left = max(capacity - ceil(debt / token), 0)
  elseif kind == 'f' then
    local period, opened_at = p1, s1
    ordinary = opened_at <= now
    if now - opened_at >= period then
      s2 = 0
    end
    ordinary = ordinary and s2 <= capacity
    left = capacity - s2
  elseif kind == 'm' then
    local starts_at, ends_at, used = s1, s2, s3
    ordinary = used > 0 and used <= capacity and starts_at <= now and now < ends_at
    left = capacity - used
  elseif kind == 'w' then
    local period, ends_at = p1, s1
    ordinary = ends_at - period <= now
    if now >= ends_at then
      s2 = 0
    end
    left = max(capacity - s2, 0)
  else
    local period, start = p1, now - now % p1
    ordinary = s1 <= now
    if s1 < start then
      local adjacent = start - s1 == period
      s1, s2, s3 = start, 0, adjacent and s2 or 0
    end
    left = capacity - s2 - floor(s3 * max(period - max(now - s1, 0), 0) / period)
    ordinary = ordinary and left >= 0
  end
  if not ordinary then
    break
  end
  local fits = cost <= left and (not debt or debt + cost * p1 <= capacity * p1)
  admitted = admitted and fits
  charges[i] = { kind, tag, cost, left, capacity, p1, p2, s1, s2, s3, debt, fits, sums, gives_at, ends }
end

if ordinary and (admitted or not records) then
  local answer, written = { now, 0, admitted and 1 or 0 }, {}
  for i, charge in ipairs(charges) do
    local kind, tag, cost, left, capacity, p1, p2, s1, s2, s3, debt, fits, sums, gives_at, ends =
      unpack(charge, 1, CHARGE_VALUES)
    if admitted then
      left = left - cost
    end
    local reset_at, grows_at, ready_at, state = now, now, now, nil
    if debt then
      local token, parts = p1, p2
      if admitted then
        debt = debt + cost * token
        local rest = debt % parts
        state = format('%.0f %.0f', now + floor(debt / parts), rest)
        if kind == 't' then
          state = state .. format(' %.0f', rest > 0 and parts or 0)
        end
      end
      reset_at = now + ceil(debt / parts)
      if left < capacity then
        grows_at = now + ceil((debt - (capacity - left - 1) * token) / parts)
      end
      ready_at = now + ceil((debt - (capacity - cost) * token) / parts)
    elseif kind == 'f' then
      local period, opened_at, used = p1, s1, s2
      if admitted then
        if used == 0 then
          opened_at = p2 == 1 and now - now % period or now
        end
        used = used + cost
        state = format('%.0f %.0f', opened_at, used)
      end
      if used > 0 then
        reset_at, grows_at, ready_at = opened_at + period, opened_at + period, opened_at + period
      end
    elseif kind == 'm' then
      local starts_at, ends_at, used = s1, s2, s3
      if admitted then
        state = format('%.0f %.0f %.0f', starts_at, ends_at, used + cost)
      end
      reset_at, grows_at, ready_at = ends_at, ends_at, ends_at
    elseif kind == 'w' then
      local period, ends_at, used = p1, s1, s2
      if admitted then
        if used == 0 then
          ends_at = now + period
        end
        used = used + cost
        state = format('%.0f %.0f', ends_at, used)
      end
      if used > 0 then
        reset_at, grows_at, ready_at = ends_at, ends_at, ends_at
      end
    else
      local period, start, current, previous = p1, s1, s2, s3
      if admitted then
        current = current + cost
        state = format('%.0f %.0f %.0f', start, current, previous)
      end
      -- When at most `most` units weigh: the previous count fades in this period, the current count
      -- in the next.
      for which = 1, left < capacity and 3 or 0 do
        local most = which == 1 and 0 or which == 2 and capacity - left - 1 or capacity - cost
        local count, at = previous, start
        if most >= current then
          most = most - current
        else
          count, at = current, start + period
        end
        at = at + max(period - (ceil((most + 1) * period / max(count, 1)) - 1), 0)
        if which == 1 then
          reset_at = at
        elseif which == 2 then
          grows_at = at
        else
          ready_at = at
        end
      end
    end
    local n = HEAD_FIELDS + CHARGE_FIELDS * (i - 1)
    answer[n + 1] = (admitted or fits) and 0 or max(ready_at - now, 1)
    answer[n + 2], answer[n + 3], answer[n + 4] = left, reset_at, grows_at
    answer[n + 5], answer[n + 6], answer[n + 7], answer[n + 8] = 0, 0, 0, 0
    ordinary = ordinary and not (gives_at and gives_at < reset_at)
    if state then
      local millis = ceil((max(reset_at, ends) - now) / MILLISECOND) + tonumber(ARGV[3])
      written[i] = { tag .. '|' .. state .. sums, format('%.0f', millis) }
    end
  end
  if ordinary then
    for i, row in ipairs(written) do
      redis.call('SET', KEYS[i], row[1], 'PX', row[2])
    end
    return answer
  end
end
