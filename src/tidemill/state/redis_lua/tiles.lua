-- Tiles of the rollups, and batches, which change ledger and tiles together.
--   tiles:STREAM:LEVEL   hash   start -> row (hash, revision, part, rows)
--   built:STREAM:LEVEL   zset   starts of those that were built, by text
--   stale:STREAM         zset   starts of 5s tiles whose desired set differs from the observed one, by text
--   tile:STREAM:START    hash   of a 5s tile: slice -> "desired observed" as "10", "01" or "11"
--   tiled                hash   place -> starts of the 5s tiles that should hold the slice, each followed by ","
--   levels:STREAM        set
-- A slice is "place" here, or "place~n" once its judgement is n: it is then called "id~n".

local BASE = '5s'

local function short_name(row)
  return row.judgement ~= '0' and row.seq .. '~' .. row.judgement or row.seq
end

local function flags(stream, start)
  local list, found = call('HGETALL', key('tile', stream, start)), {}
  for i = 1, #list, 2 do
    found[list[i]] = list[i + 1]
  end
  return found
end

local function tile_row(stream, level, start)
  local row = call('HGET', key('tiles', stream, level), start)
  return row and cjson.decode(row)
end

local function put_tile(stream, level, start, row)
  call('HSET', key('tiles', stream, level), start, cjson.encode(row))
  call('SADD', key('levels', stream), level)
  call('SADD', key('streams'), stream)
  if row.hash then
    call('ZADD', key('built', stream, level), 0, start)
  end
end

-- After its members changed: whether it has to be built.
local function mark_stale(stream, start)
  local row = tile_row(stream, BASE, start)
  if not row then
    row = { revision = '0', rows = '0' }
    put_tile(stream, BASE, start, row)
  end
  local differs = not row.hash
  for _, flag in pairs(flags(stream, start)) do
    differs = differs or flag ~= '11'
  end
  if differs then
    call('ZADD', key('stale', stream), 0, start)
  else
    call('ZREM', key('stale', stream), start)
  end
end

-- Puts slices into the desired sets of tiles: {start, which of `entries`}.
local function want(stream, tiles, entries)
  local tiled = {} -- place -> starts
  for _, tile in ipairs(tiles) do
    local start = tile[1]
    local name = key('tile', stream, start)
    for _, nth in ipairs(tile[2]) do
      local row = entries[nth]
      local short = short_name(row)
      local flag = call('HGET', name, short) or '00'
      if string.sub(flag, 1, 1) == '0' then
        call('HSET', name, short, '1' .. string.sub(flag, 2))
        tiled[row.seq] = tiled[row.seq] or { call('HGET', key('tiled'), row.seq) or nil }
        table.insert(tiled[row.seq], start .. ',')
      end
    end
    mark_stale(stream, start)
  end
  for place, starts in pairs(tiled) do
    call('HSET', key('tiled'), place, table.concat(starts))
  end
end

-- Takes a slice out of the desired sets of its tiles; one that was never built and has nothing left is forgotten.
local function unwant(row)
  local short, stream = short_name(row), row.stream
  for start in string.gmatch(call('HGET', key('tiled'), row.seq) or '', '(%d+),') do
    local name = key('tile', stream, start)
    if call('HGET', name, short) == '11' then
      call('HSET', name, short, '01')
    else
      call('HDEL', name, short)
    end
    if call('EXISTS', name) == 0 and not tile_row(stream, BASE, start).hash then
      call('HDEL', key('tiles', stream, BASE), start)
      call('ZREM', key('stale', stream), start)
    else
      mark_stale(stream, start)
    end
  end
  call('HDEL', key('tiled'), row.seq)
end

local function find(found, id, stream)
  if not found[id] then
    local place = place_of(id)
    local row = place and slice_at(place)
    found[id] = row and row.stream == stream and row or nil
  end
  return found[id]
end

function act.apply_batch(ask)
  local stream, known = ask.stream, {}
  if call('SISMEMBER', key('batches', stream), ask.batch) == 1 then
    return { 'ok', 0 }
  end
  for _, result in ipairs(ask.results) do
    if not find(known, result.id, stream) then
      return { 'unknown', result.id, stream }
    end
    if known[result.id].status == 'retracted' then
      return { 'retracted', result.id, ask.batch }
    end
  end
  for _, id in ipairs(ask.ids) do
    if not find(known, id, stream) then
      return { 'unknown', id, stream }
    end
  end
  call('SADD', key('streams'), stream)
  call('SADD', key('batches', stream), ask.batch)
  for name, version in pairs(ask.versions) do
    saw_version(stream, name, version)
  end
  for _, result in ipairs(ask.results) do
    local before, after = known[result.id], {}
    for name, value in pairs(before) do
      after[name] = value
    end
    for _, name in ipairs(ask.decides) do
      after[name] = result.row[name]
    end
    after.failures = after.status == 'failed' and tostring(tonumber(before.failures or '0') + 1) or '0'
    change(before, after)
    known[result.id] = after
    if after.status == 'accepted' then
      call('ZADD', key('unlaid', stream), after.seq, after.seq)
    end
  end
  advance(stream, ask.clocks, ask.progress)
  many('RPUSH', key('runs', stream), ask.runs)
  local entries = {}
  for i, id in ipairs(ask.ids) do
    entries[i] = known[id]
  end
  want(stream, ask.tiles, entries)
  return { 'ok', 1 }
end

function act.touch_tiles(ask)
  local entries = {}
  for i, id in ipairs(ask.ids) do
    entries[i] = find({}, id, ask.stream)
    if not entries[i] then
      return { 'unknown', id, ask.stream }
    end
  end
  want(ask.stream, ask.tiles, entries)
  return { 'ok' }
end

-- Makes the named slices the observed set. One that nobody asked for stays visible: the tile is stale.
local function observe_tile(stream, start, shorts)
  local name, now = key('tile', stream, start), {}
  for _, short in ipairs(shorts) do
    now[short] = true
  end
  for short, flag in pairs(flags(stream, start)) do
    local wanted = string.sub(flag, 1, 1)
    if now[short] then
      call('HSET', name, short, wanted .. '1')
      now[short] = nil
    elseif wanted == '1' then
      call('HSET', name, short, '10')
    else
      call('HDEL', name, short)
    end
  end
  for short in pairs(now) do
    call('HSET', name, short, '01')
  end
end

function act.apply_tiles(ask)
  local stream, known = ask.stream, {}
  for _, id in ipairs(ask.ids) do
    if not find(known, id, stream) then
      return { 'unknown', id, stream }
    end
  end
  call('SADD', key('streams'), stream)
  for _, build in ipairs(ask.builds) do
    put_tile(stream, build.level, build.start, build.row)
    if build.level == BASE then
      local shorts = {}
      for i, name in ipairs(build.slices) do
        local place, judgement = known[ask.ids[name[1]]].seq, name[2]
        shorts[i] = judgement ~= '0' and place .. '~' .. judgement or place
      end
      observe_tile(stream, build.start, shorts)
      mark_stale(stream, build.start)
    end
  end
  saw_version(stream, 'rollups', ask.version)
  return { 'ok' }
end

-- Rows of 5s tiles with their members, and the ids that the members' places stand for.
local function base_tiles(stream, starts)
  local tiles, ids, seen = {}, {}, {}
  for i, start in ipairs(starts) do
    local members = call('HGETALL', key('tile', stream, start))
    tiles[i] = { start, call('HGET', key('tiles', stream, BASE), start), members }
    for j = 1, #members, 2 do
      local place = string.match(members[j], '^%d+')
      if not seen[place] then
        seen[place] = true
        ids[#ids + 1] = place
        ids[#ids + 1] = slice_at(place).id
      end
    end
  end
  return { 'ok', tiles, ids }
end

function look.stale_tiles(ask)
  return base_tiles(ask.stream, call('ZRANGE', key('stale', ask.stream), 0, -1))
end

function look.base_tile(ask)
  local known = call('HEXISTS', key('tiles', ask.stream, BASE), ask.start) == 1
  return base_tiles(ask.stream, known and { ask.start } or {})
end

function look.tiles(ask)
  local starts = call('ZRANGEBYLEX', key('built', ask.stream, ask.level), ask.low, ask.high)
  return { 'ok', starts, rows(key('tiles', ask.stream, ask.level), starts) }
end

function look.tile_counts(ask)
  local counts = {}
  for _, level in ipairs(call('SMEMBERS', key('levels', ask.stream))) do
    local built = call('ZCARD', key('built', ask.stream, level))
    if built > 0 then
      counts[#counts + 1] = level
      counts[#counts + 1] = tostring(built)
    end
  end
  return { 'ok', counts }
end
