-- The short way. Nearly every request takes from token buckets and windows that hold nothing unusual, and defining
-- functions is half of what the long way below costs. So this is the same arithmetic without any: it decides such a
-- request, or leaves everything as it is to the long way. A request is unusual here if it is no take, only watches,
-- costs nothing or more than a whole limit; a limit if it is a log, a reserve, stepped or counts denials, or its
-- numbers do not multiply within 2^53; a state if it has a block or reservations, was written under another limit, or
-- lies in the future.

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
  local kind, capacity, x, y = match(limit, '^([bfs]) (%d+) (%d+) (%d+) ?0?$')
  usual = kind and tonumber(ARGV[3 * i + 3]) > 0
  if not usual then
    break
  end
  capacity, x, y = tonumber(capacity), tonumber(x), tonumber(y)
  local text = redis.pcall('GET', KEYS[i])
  local p, q, r = 0, 0, 0
  if text then
    if type(text) == 'string' and find(text, limit .. '|', 1, true) == 1 then
      p, q, r = match(text, '^(%d+) (%d+) ?(%d*)$', #limit + 2)
    else
      p = nil
    end
    usual = p
    p, q, r = tonumber(p), tonumber(q), tonumber(r)
  end
  usual = usual and cost >= 1 and cost <= capacity and capacity * x < 4503599627370496
  if not usual then
    break
  end
  local left
  if kind == 'b' then
    -- x is the token, y the parts of a microsecond; p and q are when it is full again. Here q becomes the debt in parts.
    q = p >= now and (p - now) * y + q or 0
    usual = q <= capacity * x
    left = capacity - ceil(q / x)
  elseif kind == 'f' then
    -- x is the period, y whether it is aligned; p is when the window opened, q what is used of it.
    usual = p <= now + LATE
    if now - p >= x then
      q = 0
    end
    left = capacity - q
  else
    -- x is the period, y whether denials count; p is the start of the current one, q and r are the counts.
    local start = now - now % x
    usual = y == 0 and p <= now + LATE and r <= capacity
    if p < start then
      if start - p == x and q > 0 then
        p, q, r = start, 0, q
      else
        p, q, r = start, 0, 0
      end
    end
    left = max(capacity - q - floor(r * max(x - max(now - p, 0), 0) / x), 0)
  end
  if not usual then
    break
  end
  admitted = admitted and cost <= left
  found[i] = { kind, limit, cost, left, capacity, x, y, p, q, r, text }
end

if usual then
  local answer = { now }
  for i, all in ipairs(found) do
    local kind, limit, cost, left, capacity, x, y, p, q, r, text = unpack(all, 1, 11)
    local fits = cost <= left
    if admitted then
      left = left - cost
    end
    local reset_at, grows_at, ready_at, state = now, now, 0, nil
    if kind == 'b' then
      if admitted then
        q = q + cost * x
        state = format('%.0f %.0f', now + floor(q / y), q % y)
      end
      reset_at = now + ceil(q / y)
      if left < capacity then
        grows_at = now + ceil((q - (capacity - left - 1) * x) / y)
      end
      ready_at = now + ceil((q - (capacity - cost) * x) / y)
    elseif kind == 'f' then
      if admitted then
        if q == 0 then
          p = y == 1 and now - now % x or now
        end
        q = q + cost
        state = format('%.0f %.0f', p, q)
      end
      if q > 0 then
        reset_at, grows_at, ready_at = p + x, p + x, p + x
      end
    else
      if admitted then
        q = q + cost
      end
      if q > 0 or r > 0 then
        state = format('%.0f %.0f %.0f', p, q, r)
      end
      -- When no more than `most` weighs: what is counted now has to fade in the next period, or that of the one before
      -- in this one.
      for which = 1, left < capacity and 3 or 0 do
        local most = which == 1 and 0 or which == 2 and capacity - left - 1 or capacity - cost
        local count, at = r, p
        if most >= q then
          most = most - q
        else
          count, at = q, p + x
        end
        at = at + max(x - (ceil((most + 1) * x / max(count, 1)) - 1), 0)
        if which == 1 then
          reset_at = at
        elseif which == 2 then
          grows_at = at
        else
          ready_at = at
        end
      end
    end
    local n = 6 * i - 4
    answer[n] = (admitted or fits) and 0 or max(ready_at - now, 1)
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = left, reset_at, grows_at, 0, 0
    if state and reset_at > now then
      local whole = limit .. '|' .. state
      if whole ~= text then
        local millis = format('%.0f', ceil((reset_at - now) / 1000) + tonumber(ARGV[3]))
        redis.call('SET', KEYS[i], whole, 'PX', millis)
      end
    end
  end
  return answer
end
