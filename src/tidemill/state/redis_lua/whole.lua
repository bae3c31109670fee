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

function whole.open()
  call('SET', at('format'), FORMAT)
  if call('EXISTS', at(TARGET)) == 0 then
    point(TARGET, generation())
  end
  return { 'ok' }
end

function whole.anew()
  call('SET', at('format'), FORMAT)
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
    for _, name in ipairs({ 'totals', 'versions', 'clocks' }) do
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
