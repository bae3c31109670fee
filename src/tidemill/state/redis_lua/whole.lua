-- The state as a whole. Its keys hang under a generation, `PREFIX:GENERATION:…`, which is reached by name:
--   PREFIX:format        what this is, and which version of it
--   PREFIX:current       the generation that everybody uses
--   PREFIX:fresh         the one that `recover` fills, until it takes the place of the current one
--   PREFIX:generations   the last number given out
--   PREFIX:garbage       generations that nobody reaches, to be deleted
--   PREFIX:said:CALLER   the last answer that a caller was given, kept for a day

local whole = {} -- acts that do not work inside one generation

local function at(name)
  return PREFIX .. ':' .. name
end

-- A number for a new generation; it is garbage until something points to it.
local function generation()
  local number = tostring(call('INCR', at('generations')))
  call('SADD', at('garbage'), number)
  return number
end

-- Points `name` to a generation, in one step for everybody; what it pointed to before is garbage.
local function point(name, number)
  local before = call('GET', at(name))
  if before then
    call('SADD', at('garbage'), before)
  end
  call('SREM', at('garbage'), number)
  call('SET', at(name), number)
end

function whole.exists()
  return { 'ok', call('EXISTS', at('current')) }
end

-- An instant as it is kept for comparing, from its plain decimal text: 20 digits, 2^63 higher.
local function ordered(instant)
  local sign, digits = string.match(instant, '^(-?)(%d+)$')
  digits = string.rep('0', 20) .. digits
  local factor = sign == '-' and -1 or 1
  local high = 922337203 + factor * tonumber(string.sub(digits, -20, -11))
  local low = 6854775808 + factor * tonumber(string.sub(digits, -10))
  local carry = math.floor(low / 1e10)
  return string.format('%010.0f%010.0f', high + carry, low - carry * 1e10)
end

-- Of sources (source -> true), the arrival of the newest slice in the ledger that a record was accepted of.
local function last_heard(stream, sources)
  local found, first = {}, 0
  while next(sources) do
    local places = call('ZREVRANGE', key('ledger', stream, 'accepted'), first, first + 99)
    for _, text in ipairs(rows(key('slices'), places)) do
      local row = cjson.decode(text)
      if sources[row.source] and row.accepted ~= '0' then
        found[row.source], sources[row.source] = ordered(row.arrival), nil
      end
    end
    if #places < 100 then
      break
    end
    first = first + 100
  end
  return found
end

-- Format 1 knew no arrivals of clocks and no progress: a stream's watermark was the least of its sources'.
local function add_progress(stream)
  local list, sources, least = call('HGETALL', key('clocks', stream)), {}, nil
  for i = 1, #list, 2 do
    sources[list[i]] = true
    local mark = string.match(list[i + 1], ' (%d+)')
    least = least and least < mark and least or mark
  end
  local heard = last_heard(stream, sources)
  for i = 1, #list, 2 do
    local seen, mark = string.match(list[i + 1], '(%d+) (%d+)')
    call('HSET', key('clocks', stream), list[i], seen .. ' ' .. mark .. ' ' .. (heard[list[i]] or ordered('0')))
  end
  if least then
    advance(stream, {}, {
      watermark = least, emitted = '0', buffered_rows = '0', buffered_bytes = '0', released_early = '0',
    })
  end
end

-- Formats 1 and 2 did not try failed slices again: what they failed by is not known, so that they are tried once.
local function add_tries(stream)
  for _, place in ipairs(call('ZRANGE', key('ledger', stream, 'failed'), 0, -1)) do
    local row = slice_at(place)
    row.failures, row.failed_as = '1', ''
    put_slice(row)
    list_failed('ZADD', row)
  end
end

-- Brings the current state up to date; whoever still has an older script is refused from then on.
local function upgrade()
  local current = call('GET', at('current'))
  local format = tonumber(call('GET', at('format')) or FORMAT)
  if current and format < FORMAT then
    NS = at(current) .. ':'
    for _, stream in ipairs(streams()) do
      if format < 2 then
        add_progress(stream)
      end
      add_tries(stream)
    end
  end
  call('SET', at('format'), FORMAT)
end

function whole.open()
  upgrade()
  if call('EXISTS', at(TARGET)) == 0 then
    point(TARGET, generation())
  end
  return { 'ok' }
end

function whole.anew()
  upgrade()
  point(TARGET, generation())
  return { 'ok' }
end

-- Whether it has no ledger, no batches and no tiles; only such a state is restored.
local function is_empty(number)
  local prefix = at(number or '') .. ':'
  if call('EXISTS', prefix .. 'last') == 1 then
    return false
  end
  for _, stream in ipairs(call('SMEMBERS', prefix .. 'streams')) do
    if call('EXISTS', prefix .. 'batches:' .. stream, prefix .. 'levels:' .. stream) > 0 then
      return false
    end
  end
  return true
end

local function copy(name, from, to)
  local list = call('HGETALL', at(from) .. ':' .. name)
  if #list > 0 then
    call('HSET', at(to) .. ':' .. name, unpack(list))
  end
end

-- A generation to be filled out of sight, for `adopt`.
function whole.draft()
  if not is_empty(call('GET', at(TARGET))) then
    return { 'full' }
  end
  return { 'ok', generation() }
end

function whole.adopt(ask)
  local before = call('GET', at(TARGET))
  if not is_empty(before) then
    return { 'full' }
  end
  if before then
    copy('spans', before, ask.generation)
    copy('delivered', before, ask.generation)
    for _, stream in ipairs(call('SMEMBERS', at(before) .. ':streams')) do
      copy('marks:' .. stream, before, ask.generation)
    end
    for _, name in ipairs(RECEIPTS) do -- there may be very many: they are moved as they are
      if call('EXISTS', at(before) .. ':' .. name) == 1 then
        call('RENAME', at(before) .. ':' .. name, at(ask.generation) .. ':' .. name)
      end
    end
  end
  point(TARGET, ask.generation)
  return { 'ok' }
end

function whole.promote()
  local number = call('GET', at('fresh'))
  if not number then
    return { 'gone' }
  end
  call('DEL', at('fresh'))
  point('current', number)
  return { 'ok' }
end

function whole.garbage()
  return { 'ok', call('SMEMBERS', at('garbage')) }
end

-- A part of what `restore` is given, in ledger order.
function act.fill(ask)
  for _, row in ipairs(ask.rows) do
    insert(row)
    call('SET', key('last'), row.seq)
    if row.status == 'accepted' then
      call('ZADD', key('unlaid', row.stream), row.seq, row.seq)
    elseif row.status == 'retracted' then
      call('INCR', key('retractions'))
    end
  end
  return { 'ok' }
end

-- Everything, as it is kept.
function look.dump()
  local found = {}
  local function say(table_name, stream, list)
    found[#found + 1] = { table_name, stream, list }
  end
  say('slices', '', call('HVALS', key('slices')))
  say('retractions', '', { call('GET', key('retractions')) or '0' })
  say('layouts', '', call('HGETALL', key('spans')))
  say('outbox', '', call('HVALS', key('events')))
  for _, stream in ipairs(streams()) do
    for _, name in ipairs({ 'totals', 'versions', 'clocks', 'progress' }) do
      say(name, stream, call('HGETALL', key(name, stream)))
    end
    say('batches', stream, call('SMEMBERS', key('batches', stream)))
    say('runs', stream, call('LRANGE', key('runs', stream), 0, -1))
    say('unlaid', stream, call('ZRANGE', key('unlaid', stream), 0, -1))
    for _, level in ipairs(call('SMEMBERS', key('levels', stream))) do
      say('tiles ' .. level, stream, call('HGETALL', key('tiles', stream, level)))
    end
    for _, start in ipairs(call('HKEYS', key('tiles', stream, BASE))) do
      say('tile_slices ' .. start, stream, call('HGETALL', key('tile', stream, start)))
    end
    for _, start in ipairs(call('HKEYS', key('windows', stream))) do
      say('windows', stream, { call('HGET', key('windows', stream), start) })
      say('window_slices ' .. start, stream, call('HGETALL', key('members', stream, start)))
    end
  end
  return { 'ok', found }
end
