-- Numbers. Lua's are doubles, exact for whole numbers up to 2^53, and every number here is one of
-- those: times and spans in microseconds, counts, parts of a microsecond.

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local format, match, sub, find = string.format, string.match, string.sub, string.find

-- How far behind another a reading of the clock may be and still be one that merely came late.
local LATE = 1000000
-- Counted denials stop counting here.
local MOST = 4503599627370496
