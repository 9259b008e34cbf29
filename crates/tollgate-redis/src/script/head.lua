-- KEYS: the keys of a request, each once; for `block` and `reset` also the index of blocks, last
-- (see blocks.lua). Beside the row `KEY`, the script uses `KEY:holds` and `KEY:due`, which are in the
-- same slot (see holds.lua).
--
-- ARGV:
--
-- * The operation, with a `+` before it where an overflow takes part; the time in microseconds, or
--   empty for the server's clock; the grace in milliseconds by which a key outlives its idle time.
-- * For key i, from KEY_ARGUMENTS * i + 1 on: the limit, the cost and the rule (its number, negative
--   for a shadow rule; where denied costs are recorded, followed by `:` and the number of the
--   budget).
-- * The arguments of the operation: `block` a time or a span, 1 for a time, and the most entries of
--   the index; `reset` the most entries of the index; `reserve` an id, a time to live, and 1 if the
--   units are kept at expiry; `acquire` and `renew` an id and a time to live; `settle` an id; `undo`
--   a ticket per key. An id has 32 hexadecimal digits.
-- * Where an overflow takes part, the parts of all keys (see overflow.lua).
-- * Last, if the caller hands any in, windows of calendars in microseconds:
--   `@day Europe/Berlin 1800 1900;…`.
--
-- The reply: the time; the number of states converted from a limit that was replaced; whether any
-- state changed; then CHARGE_FIELDS numbers per key: the wait (0 admitted, -1 never), the remaining
-- units, when all units are back, when more units are back, the units moved or short, whether a
-- reservation was found (2 if it had expired), when the block ends (0 without one), and the units
-- owed. A take whose denied cost is recorded tells the shortfall as units, and 1 as if a reservation
-- was found. With overflow, also two numbers per key: the units drawn, and those that its overflow
-- has left. After `try` and `acquire`, also a ticket per key for `undo`. If a window of a calendar is
-- missing, the reply is that calendar and the time of the window, and nothing is written.
--
-- A key that cannot be read, because it is of another program or damaged, is an error that begins
-- with BADROW and names the key. Nothing is written then.
--
-- Lua numbers are doubles, exact for whole numbers up to 2^53. Every number here is whole: times
-- and spans in microseconds, counts, and parts of a microsecond.

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local format, match, sub, find = string.format, string.match, string.sub, string.find

-- Units in microseconds, and nanoseconds of a microsecond.
local SECOND, MILLISECOND, NANOS_PER_MICRO = 1000000, 1000, 1000
-- 2^53: products below it are exact.
local PRODUCT_LIMIT = 9007199254740992
-- 2^52: the sum of two products below it is exact.
local HALF_LIMIT = 4503599627370496
-- A count of denied attempts stops here: 2^52.
local COUNT_MAX = 4503599627370496
-- A reading of the clock is late, not wrong, if it is at most this far behind another.
local LATE_MAX = SECOND
-- A rule has at most this many limits.
local LIMITS_MAX = 64
-- Arguments per key: as many as there are before the first key.
local KEY_ARGUMENTS = 3
-- Numbers of the reply before the first key, and per key.
local HEAD_FIELDS, CHARGE_FIELDS = 3, 8

