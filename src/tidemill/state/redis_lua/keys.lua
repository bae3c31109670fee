-- How keys and rows are spelt. All acts are one script that `run.lua` ends; the server runs it as one act.
--
-- Lua's numbers are doubles, so an instant (int64 microseconds) is never a number here: it is text of 20 digits
-- (plus 2^63), which sorts and compares as the instant does. Places in the ledger, versions and counts are
-- small; they are kept as plain decimal text. A row is a flat JSON object of texts; what is null is left out.
--
-- Nothing is rolled back when a script fails: an act checks first, and writes when it can not fail any more.

local FORMAT, PREFIX, TARGET = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local call = redis.call
local look, act = {}, {} -- what only reads, and what writes, by name
local NS -- what all keys of the state at hand start with

local function key(...)
  return NS .. table.concat({ ... }, ':')
end

-- Runs a command over many arguments, some at a time: a call takes a few thousand.
local function many(command, name, list)
  for first = 1, #list, 1000 do
    call(command, name, unpack(list, first, math.min(first + 999, #list)))
  end
end

local function rows(name, fields)
  local found = {}
  for first = 1, #fields, 1000 do
    for _, row in ipairs(call('HMGET', name, unpack(fields, first, math.min(first + 999, #fields)))) do
      found[#found + 1] = row
    end
  end
  return found
end

local function by_number(a, b)
  return tonumber(a) < tonumber(b)
end

local function descending(a, b)
  return tonumber(a) > tonumber(b)
end

local function cut(list, limit)
  if limit >= 0 then
    for i = #list, limit + 1, -1 do
      list[i] = nil
    end
  end
  return list
end

local function streams()
  return call('SMEMBERS', key('streams'))
end
