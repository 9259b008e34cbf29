-- The short way. Nearly every request takes from token buckets and windows that hold nothing
-- unusual, and defining functions is half of what the long way below costs. So this is the same
-- arithmetic without any: it decides such a request, or leaves everything as it is to the long way.
-- A request is unusual here if it is no take, only watches, costs nothing or more than a whole
-- limit; a limit if it is a log, a reserve, stepped or counts denials, or its numbers do not
-- multiply within 2^53; a state if it has a block or reservations, was written under another limit
-- (or, where it belongs to all, in other parts of a microsecond), or is ahead of the clock.

local now
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(ARGV[2])
end

local usual, admitted, found = ARGV[1] == 'take', true, {}
for i = 1, usual and #KEYS or 0 do
  local limit, cost = ARGV[3 * i + 1], tonumber(ARGV[3 * i + 2])
  local kind, capacity, first, second, longest = match(limit, '^([bfstw]) (%d+) (%d+) ?(%d*) ?(%d*)')
  -- What follows the numbers: whether denials count, or how long a step is.
  local plain = kind == 't' or kind == 'w' or (kind == 's' and second or longest) == '0'
  usual = kind and plain and tonumber(ARGV[3 * i + 3]) > 0
  if not usual then
    break
  end
  capacity, first, second = tonumber(capacity), tonumber(first), tonumber(second)
  -- State that belongs to whatever limit comes is not tagged with it.
  local tag = (kind == 't' or kind == 'w') and kind or limit
  local text = redis.pcall('GET', KEYS[i])
  local one, two, three = 0, 0, 0
  if text then
    usual = type(text) == 'string' and find(text, tag .. '|', 1, true) == 1
    if usual then
      one, two, three = match(text, '^(%d+) (%d+) ?(%d*)$', #tag + 2)
      usual = one
    end
    one, two, three = tonumber(one), tonumber(two), tonumber(three)
  end
  usual = usual and cost >= 1 and cost <= capacity and capacity * first < 4503599627370496
  if not usual then
    break
  end
  local left, debt
  if kind == 'b' or kind == 't' then
    local token, parts, full_at, rest = first, second, one, two
    if kind == 't' then
      usual = (rest == 0 or three == parts) and full_at <= now + tonumber(longest)
    end
    debt = full_at >= now and (full_at - now) * parts + rest or 0
    usual = usual and (kind == 't' and debt < 4503599627370496 or debt <= capacity * token)
    left = max(capacity - ceil(debt / token), 0)
  elseif kind == 'f' then
    local period, opened_at = first, one
    usual = opened_at <= now
    if now - opened_at >= period then
      two = 0
    end
    left = max(capacity - two, 0)
  elseif kind == 'w' then
    local period, ends_at = first, one
    usual = ends_at - period <= now
    if now >= ends_at then
      two = 0
    end
    left = max(capacity - two, 0)
  else
    local period, start = first, now - now % first
    usual = one <= now
    if one < start then
      local follows = start - one == period
      one, two, three = start, 0, follows and two or 0
    end
    left = max(capacity - two - floor(three * max(period - max(now - one, 0), 0) / period), 0)
  end
  if not usual then
    break
  end
  local fits = cost <= left and (not debt or debt + cost * first <= capacity * first)
  admitted = admitted and fits
  found[i] = { kind, tag, cost, left, capacity, first, second, one, two, three, debt, fits }
end

if usual then
  local answer = { now, 0, admitted and 1 or 0 }
  for i, all in ipairs(found) do
    local kind, tag, cost, left, capacity, first, second, one, two, three, debt, fits = unpack(all, 1, 12)
    if admitted then
      left = left - cost
    end
    local reset_at, grows_at, ready_at, state = now, now, now, nil
    if debt then
      local token, parts = first, second
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
      local period, opened_at, used = first, one, two
      if admitted then
        if used == 0 then
          opened_at = second == 1 and now - now % period or now
        end
        used = used + cost
        state = format('%.0f %.0f', opened_at, used)
      end
      if used > 0 then
        reset_at, grows_at, ready_at = opened_at + period, opened_at + period, opened_at + period
      end
    elseif kind == 'w' then
      local period, ends_at, used = first, one, two
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
      local period, start, current, previous = first, one, two, three
      if admitted then
        current = current + cost
        state = format('%.0f %.0f %.0f', start, current, previous)
      end
      -- When no more than `most` weighs: what is counted now has to fade in the next period, or that
      -- of the one before in this one.
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
    local n = 7 * i - 4
    answer[n + 1] = (admitted or fits) and 0 or max(ready_at - now, 1)
    answer[n + 2], answer[n + 3], answer[n + 4] = left, reset_at, grows_at
    answer[n + 5], answer[n + 6], answer[n + 7] = 0, 0, 0
    if state then
      local millis = format('%.0f', ceil((reset_at - now) / 1000) + tonumber(ARGV[3]))
      redis.call('SET', KEYS[i], tag .. '|' .. state, 'PX', millis)
    end
  end
  return answer
end
