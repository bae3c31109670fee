-- The ledger, its totals, and what batches change in it.
--   slices              hash   place -> row
--   ids                 zset   "id:place", by text: exact ids and prefixes
--   ledger:STREAM:STATUS zset  places
--   totals:STREAM, versions:STREAM   hashes;   runs:STREAM   list
--   clocks:STREAM       hash   source -> "max_seen watermark arrival";   progress:STREAM   hash
--   retries:STREAM      zset   "retry_at place" of slices that failed and are tried by time, by text
--   unread:STREAM       zset   "failed_as place" of the other failed ones, by text
--   batches:STREAM      set;   batch_slices:STREAM  hash   batch -> how many slices it decided last

local STATUSES = { 'pending', 'accepted', 'failed', 'retracted' }
local AT_ONCE = '09223372036854775808' -- the instant 0
local COUNTED = { 'records', 'accepted', 'duplicate', 'conflict', 'rejected', 'late' }

local function place_of(id)
  local found = call('ZRANGEBYLEX', key('ids'), '[' .. id .. ':', '[' .. id .. ':\255', 'LIMIT', 0, 1)
  return found[1] and string.sub(found[1], #id + 2)
end

local function slice_at(place)
  local row = call('HGET', key('slices'), place)
  return row and cjson.decode(row)
end

local function put_slice(row)
  call('HSET', key('slices'), row.seq, cjson.encode(row))
end

local function add(totals, name, amount)
  if amount ~= 0 then
    call('HINCRBY', totals, name, amount)
  end
end

-- What one entry adds to the sums over its stream, or takes away again.
local function count(row, sign)
  local totals = key('totals', row.stream)
  if row.batch then
    call('HINCRBY', key('batch_slices', row.stream), row.batch, sign)
  end
  add(totals, row.status .. '_slices', sign)
  add(totals, 'landings', sign * tonumber(row.landings))
  add(totals, 'retried', sign * tonumber(row.retried or '0'))
  add(totals, 'bytes', sign * tonumber(row.size))
  if row.status == 'retracted' then
    return -- it is there, but its records are not
  end
  for _, name in ipairs(COUNTED) do
    add(totals, name, sign * tonumber(row[name]))
  end
  for code, amount in pairs(cjson.decode(row.rejects)) do
    add(totals, 'reject_' .. code, sign * amount)
  end
end

-- Takes a slice that failed out of the list of those to be tried again, or puts it there.
local function list_failed(command, row)
  if row.status ~= 'failed' then
    return
  end
  local name = row.retry_at and key('retries', row.stream) or key('unread', row.stream)
  local member = (row.retry_at or row.failed_as or '') .. ' ' .. row.seq
  if command == 'ZADD' then
    call('ZADD', name, 0, member)
  else
    call('ZREM', name, member)
  end
end

local function insert(row)
  put_slice(row)
  list_failed('ZADD', row)
  call('ZADD', key('ids'), 0, row.id .. ':' .. row.seq)
  call('ZADD', key('ledger', row.stream, row.status), row.seq, row.seq)
  call('SADD', key('streams'), row.stream)
  count(row, 1)
end

-- Puts `after` in the place of `before`: row, index, totals.
local function change(before, after)
  count(before, -1)
  list_failed('ZREM', before)
  list_failed('ZADD', after)
  put_slice(after)
  if before.status ~= after.status then
    call('ZREM', key('ledger', before.stream, before.status), before.seq)
    call('ZADD', key('ledger', after.stream, after.status), after.seq, after.seq)
  end
  count(after, 1)
end

function act.enter(ask)
  local entered = {}
  for i, row in ipairs(ask.rows) do
    local place = place_of(row.id)
    if place then
      local known, before = slice_at(place), slice_at(place)
      known.landings = tostring(tonumber(known.landings) + 1)
      if known.status == 'failed' and known.retry_at then
        known.retry_at = AT_ONCE
      end
      change(before, known)
      entered[i] = cjson.encode(known)
    else
      row.seq = tostring(call('INCR', key('last')))
      insert(row)
      entered[i] = cjson.encode(row)
    end
  end
  return { 'ok', entered }
end

function look.landings()
  local sum = 0
  for _, stream in ipairs(streams()) do
    for _, count in ipairs(call('HMGET', key('totals', stream), 'landings', 'retried')) do
      sum = sum + tonumber(count or 0)
    end
  end
  return { 'ok', sum }
end

function look.slice(ask)
  local found = call('ZRANGEBYLEX', key('ids'), '[' .. ask.prefix, '[' .. ask.prefix .. '\255', 'LIMIT', 0, 5)
  local places = {}
  for i, member in ipairs(found) do
    places[i] = string.match(member, ':(%d+)$')
  end
  return { 'ok', rows(key('slices'), places) }
end

function look.slice_at(ask)
  return { 'ok', call('HGET', key('slices'), ask.seq) }
end

function look.slices(ask)
  local limit, places = ask.limit, {}
  for _, stream in ipairs(ask.stream and { ask.stream } or streams()) do
    for _, status in ipairs(ask.status and { ask.status } or STATUSES) do
      local name = key('ledger', stream, status)
      local upto = ask.before and '(' .. ask.before or '+inf'
      local found = {}
      if limit ~= 0 then
        local low, high = ask.newest and upto or '-inf', ask.newest and '-inf' or upto
        local by = ask.newest and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
        found = call(by, name, low, high, 'LIMIT', 0, limit > 0 and limit or -1)
      end
      for _, place in ipairs(found) do
        places[#places + 1] = place
      end
    end
  end
  table.sort(places, ask.newest and descending or by_number)
  return { 'ok', rows(key('slices'), cut(places, limit)) }
end

function look.pending(ask)
  local taken, left, first = {}, tonumber(ask.max_bytes), 0
  while true do
    local places = call('ZRANGE', key('ledger', ask.stream, 'pending'), first, first + 99)
    for _, row in ipairs(rows(key('slices'), places)) do
      left = left - tonumber(cjson.decode(row).size)
      if #taken > 0 and left < 0 then
        return { 'ok', taken }
      end
      taken[#taken + 1] = row
    end
    if #places < 100 then
      return { 'ok', taken }
    end
    first = first + 100
  end
end

function look.totals(ask)
  return { 'ok', call('HGETALL', key('totals', ask.stream)) }
end

function look.has_batch(ask)
  return { 'ok', call('SISMEMBER', key('batches', ask.stream), ask.batch) }
end

function look.clocks(ask)
  return { 'ok', call('HGETALL', key('clocks', ask.stream)) }
end

function look.progress(ask)
  return { 'ok', call('HGETALL', key('progress', ask.stream)) }
end

function look.runs(ask)
  return { 'ok', call('LRANGE', key('runs', ask.stream), 0, -1) }
end

function look.table_versions(ask)
  return { 'ok', call('HGETALL', key('versions', ask.stream)) }
end

local function saw_version(stream, name, version)
  local known = call('HGET', key('versions', stream), name)
  if not known or tonumber(known) < tonumber(version) then
    call('HSET', key('versions', stream), name, version)
  end
end

function act.saw(ask)
  call('SADD', key('streams'), ask.stream)
  for name, version in pairs(ask.versions) do
    saw_version(ask.stream, name, version)
  end
  return { 'ok' }
end

local function later(a, b)
  return a > b and a or b
end

-- None of the three ever goes back.
local function advance_clock(stream, clock)
  local source, max_seen, watermark, arrival = clock[1], clock[2], clock[3], clock[4]
  local known = call('HGET', key('clocks', stream), source)
  if known then
    local seen, mark, heard = string.match(known, '(%d+) (%d+) (%d+)')
    max_seen, watermark, arrival = later(seen, max_seen), later(mark, watermark), later(heard, arrival)
  end
  call('HSET', key('clocks', stream), source, max_seen .. ' ' .. watermark .. ' ' .. arrival)
end

-- What a batch says of clocks and progress: nothing but the size of the buffer ever goes back.
local function advance(stream, clocks, progress)
  for _, clock in ipairs(clocks) do
    advance_clock(stream, clock)
  end
  local name = key('progress', stream)
  local mark, emitted, early = unpack(call('HMGET', name, 'watermark', 'emitted', 'released_early'))
  local watermark = progress.watermark or mark
  if watermark then
    call('HSET', name, 'watermark', later(mark or watermark, watermark))
  end
  if tonumber(emitted or 0) <= tonumber(progress.emitted) then
    call('HSET', name, 'emitted', progress.emitted)
  end
  if tonumber(early or 0) <= tonumber(progress.released_early) then
    call('HSET', name, 'released_early', progress.released_early)
  end
  call('HSET', name, 'buffered_rows', progress.buffered_rows, 'buffered_bytes', progress.buffered_bytes)
end

function act.replace_runs(ask)
  local name, gone, wanted = key('runs', ask.stream), {}, 0
  for _, run in ipairs(ask.old) do
    if not gone[run] then
      gone[run], wanted = true, wanted + 1
    end
  end
  local kept, found, place = {}, 0, nil
  for _, run in ipairs(call('LRANGE', name, 0, -1)) do
    if gone[run] then
      found, place = found + 1, place or #kept
    else
      kept[#kept + 1] = run
    end
  end
  if found < wanted then
    return { 'ok', 0 }
  end
  place = place or #kept
  local list = {}
  for i = 1, place do
    list[#list + 1] = kept[i]
  end
  for _, run in ipairs(ask.new) do
    list[#list + 1] = run
  end
  for i = place + 1, #kept do
    list[#list + 1] = kept[i]
  end
  call('DEL', name)
  many('RPUSH', name, list)
  call('SADD', key('streams'), ask.stream)
  return { 'ok', 1 }
end
