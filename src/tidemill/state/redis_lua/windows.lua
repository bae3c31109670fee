-- Windows, who is in them, what is due, queued and leased, and the outbox. What becomes of a window is decided by
-- whoever calls (`phases.py`): here it is found, and kept if nobody changed it meanwhile.
--   windows:STREAM           hash   start -> row; `stamp` goes up whenever anything of it changes
--   members:STREAM:START     hash   place -> "member,desired,observed,judgement,ignored"
--   laid:STREAM              hash   place -> starts of the windows it is a member of, each followed by ","
--   left:STREAM              zset   "place start" where it is none, but the window was built with it, by text
--   unlaid:STREAM            zset   places
--   spans                    hash   stream -> span
--   phase:STREAM:PHASE       zset   starts, by text
--   changed:STREAM           zset   starts of those that are due at once, by text
--   check:STREAM             zset   "check_at start" of the others, by text
--   queue:STREAM             zset   starts of queued ones that wait for nothing, by the end in seconds
--   delayed:STREAM           zset   "not_before start" of queued ones, by text
--   leases:STREAM            zset   "lease_until start", by text
--   events                   hash   place in the outbox -> event;   event_ids  hash   id -> place
--   outbox:STREAM            zset   places;   delivered  hash   sink -> place

local PHASES = { 'waiting', 'queued', 'building', 'built', 'failed' }
local NEVER = '09223372036854775808' -- the instant 0: no delay

local function window_row(stream, start)
  local row = call('HGET', key('windows', stream), start)
  return row and cjson.decode(row)
end

-- Takes a window out of every index that its row put it in, or puts it there.
local function index(command, row)
  local stream, start = row.stream, row.start
  local function enter(name, score, member)
    if command == 'ZADD' then
      call('ZADD', name, score, member)
    else
      call('ZREM', name, member)
    end
  end
  enter(key('phase', stream, row.phase), 0, start)
  if row.due == '1' then
    enter(key('changed', stream), 0, start)
  elseif row.check_at then
    enter(key('check', stream), 0, row.check_at .. ' ' .. start)
  end
  if row.phase == 'queued' and row.not_before == NEVER then
    enter(key('queue', stream), row.end_seconds, start)
  elseif row.phase == 'queued' then
    enter(key('delayed', stream), 0, row.not_before .. ' ' .. start)
  elseif row.phase == 'building' then
    enter(key('leases', stream), 0, row.lease_until .. ' ' .. start)
  end
end

local function put_window(row, before)
  if before then
    index('ZREM', before)
  end
  row.stamp = tostring(call('INCR', key('stamps')))
  call('HSET', key('windows', row.stream), row.start, cjson.encode(row))
  index('ZADD', row)
end

local function start_after(member)
  return string.sub(member, 22)
end

local function tell(events)
  for _, event in ipairs(events) do
    if call('HEXISTS', key('event_ids'), event.id) == 0 then
      event.seq = tostring(call('INCR', key('told')))
      call('HSET', key('event_ids'), event.id, event.seq)
      call('HSET', key('events'), event.seq, cjson.encode(event))
      call('ZADD', key('outbox', event.stream), event.seq, event.seq)
    end
  end
end

-- Whether all windows are as they were when it was decided what becomes of them.
local function unchanged(ask)
  for _, check in ipairs(ask.checks) do
    local row = window_row(check[1], check[2])
    if (row and row.stamp or '') ~= check[3] then
      return false
    end
  end
  for stream, span in pairs(ask.spans) do
    if call('HGET', key('spans'), stream) ~= span then
      return false
    end
  end
  return true
end

local function keep(ask)
  local version = tostring(call('INCR', key('window_versions')))
  for _, put in ipairs(ask.puts) do
    local row = put.row
    row.version = put.same_version and row.version or version
    local name = key('members', row.stream, row.start)
    for place, flag in pairs(put.flags) do
      if flag == '' then
        call('HDEL', name, place)
      else
        call('HSET', name, place, flag)
      end
      if string.sub(flag, 1, 1) == '0' then
        call('ZADD', key('left', row.stream), 0, place .. ' ' .. row.start)
      else
        call('ZREM', key('left', row.stream), place .. ' ' .. row.start)
      end
    end
    call('SADD', key('streams'), row.stream)
    put_window(row, window_row(row.stream, row.start))
  end
  for _, drop in ipairs(ask.drops) do
    index('ZREM', window_row(drop[1], drop[2]))
    call('HDEL', key('windows', drop[1]), drop[2])
    call('DEL', key('members', drop[1], drop[2]))
  end
  tell(ask.events)
end

-- Keeps windows as decided, all or none.
function act.commit(ask)
  if not unchanged(ask) then
    return { 'ok', 0 }
  end
  keep(ask)
  return { 'ok', 1 }
end

-- Windows with their members, and the ledger's rows of those.
local function whole_windows(list)
  local windows, places, seen = {}, {}, {}
  for i, window in ipairs(list) do
    local members = call('HGETALL', key('members', window[1], window[2]))
    windows[i] = { call('HGET', key('windows', window[1]), window[2]), members }
    for j = 1, #members, 2 do
      if not seen[members[j]] then
        seen[members[j]] = true
        places[#places + 1] = members[j]
      end
    end
  end
  return { 'ok', windows, rows(key('slices'), places) }
end

local function existing(list)
  local found = {}
  for _, window in ipairs(list) do
    if call('HEXISTS', key('windows', window[1]), window[2]) == 1 then
      found[#found + 1] = { window[1], window[2] }
    end
  end
  return found
end

function look.these(ask)
  return whole_windows(existing(ask.windows))
end

function look.last()
  return { 'ok', call('GET', key('last')) or '0' }
end

function look.entries(ask)
  local places = {}
  for _, id in ipairs(ask.ids) do
    places[#places + 1] = place_of(id) or nil
  end
  return { 'ok', rows(key('slices'), places) }
end

function look.span(ask)
  return { 'ok', call('HGET', key('spans'), ask.stream) }
end

function look.unlaid(ask)
  return { 'ok', rows(key('slices'), call('ZRANGE', key('unlaid', ask.stream), 0, ask.limit - 1)) }
end

function look.due(ask)
  local starts = call('ZRANGE', key('changed', ask.stream), 0, ask.limit - 1)
  for _, member in ipairs(call('ZRANGEBYLEX', key('check', ask.stream), '-', '[' .. ask.now .. ' \255')) do
    starts[#starts + 1] = start_after(member)
  end
  table.sort(starts)
  local list = {}
  for i, start in ipairs(cut(starts, ask.limit)) do
    list[i] = { ask.stream, start }
  end
  return whole_windows(list)
end

function look.windows(ask)
  local limit, found = ask.limit, {}
  for _, stream in ipairs(ask.stream and { ask.stream } or streams()) do
    for _, phase in ipairs(ask.phase and { ask.phase } or PHASES) do
      local name = key('phase', stream, phase)
      local starts
      if ask.newest then
        starts = call('ZREVRANGEBYLEX', name, ask.high, ask.low, 'LIMIT', 0, limit)
      else
        starts = call('ZRANGEBYLEX', name, ask.low, ask.high, 'LIMIT', 0, limit)
      end
      for _, start in ipairs(starts) do
        found[#found + 1] = { stream, start }
      end
    end
  end
  table.sort(found, function(a, b)
    if ask.newest then
      a, b = b, a
    end
    return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1])
  end)
  local list = {}
  for i, window in ipairs(cut(found, limit)) do
    list[i] = call('HGET', key('windows', window[1]), window[2])
  end
  return { 'ok', list }
end

function look.window_counts(ask)
  local counts = {}
  for _, phase in ipairs(PHASES) do
    counts[#counts + 1] = phase
    counts[#counts + 1] = call('ZCARD', key('phase', ask.stream, phase))
  end
  return { 'ok', counts }
end

-- Per window: how many of its members are desired, observed, ignored.
function look.member_counts(ask)
  local counts = {}
  for i, window in ipairs(ask.windows) do
    local desired, observed, ignored = 0, 0, 0
    for _, flag in ipairs(call('HVALS', key('members', window[1], window[2]))) do
      local member, wanted, built, judgement, why = string.match(flag, '^(%d),(%d),(%d*),(%d*),(.*)$')
      if member == '1' then
        desired = desired + (wanted == '1' and 1 or 0)
        observed = observed + (built == judgement and 1 or 0)
        ignored = ignored + (why ~= '' and 1 or 0)
      end
    end
    local row = window_row(window[1], window[2])
    counts[i] = row and row.span == window[3] and { desired, observed, ignored } or { 0, 0, 0 }
  end
  return { 'ok', counts }
end

local function starts_of(stream, place)
  local list = {}
  for start in string.gmatch(call('HGET', key('laid', stream), place) or '', '(%d+),') do
    list[#list + 1] = start
  end
  return list
end

local function left_by(stream, place)
  local list = {}
  for i, found in ipairs(call('ZRANGEBYLEX', key('left', stream), '[' .. place .. ' ', '(' .. place .. '!')) do
    list[i] = string.sub(found, #place + 2)
  end
  return list
end

function look.windows_of(ask)
  local place = place_of(ask.id)
  local row = place and slice_at(place)
  local list = {}
  if row then
    local starts = starts_of(row.stream, place)
    table.sort(starts)
    for i, start in ipairs(starts) do
      local flag = call('HGET', key('members', row.stream, start), place)
      list[i] = { call('HGET', key('windows', row.stream), start), { place, flag } }
    end
  end
  return { 'ok', list, row and { cjson.encode(row) } or {} }
end

function act.lay_out(ask)
  local stream = ask.stream
  local before = call('HGET', key('spans'), stream)
  if before == ask.span then
    return { 'ok' }
  end
  call('SADD', key('streams'), stream)
  call('HSET', key('spans'), stream, ask.span)
  if not before then
    return { 'ok' } -- nothing can have been laid yet
  end
  for _, start in ipairs(call('HKEYS', key('windows', stream))) do
    call('DEL', key('members', stream, start))
  end
  for _, phase in ipairs(PHASES) do
    call('DEL', key('phase', stream, phase))
  end
  for _, name in ipairs({ 'windows', 'laid', 'left', 'changed', 'check', 'queue', 'delayed', 'leases' }) do
    call('DEL', key(name, stream))
  end
  call('ZUNIONSTORE', key('unlaid', stream), 1, key('ledger', stream, 'accepted'))
  return { 'ok' }
end

-- Windows that start at `ask.last` or before go, with all that is known of them. Answers how many, or nothing
-- when the span is another meanwhile.
function act.forget(ask)
  local stream, count = ask.stream, 0
  if call('HGET', key('spans'), stream) ~= ask.span then
    return { 'ok', false }
  end
  for _, phase in ipairs(PHASES) do
    for _, start in ipairs(call('ZRANGEBYLEX', key('phase', stream, phase), '-', '[' .. ask.last)) do
      index('ZREM', window_row(stream, start))
      local members = call('HGETALL', key('members', stream, start))
      for i = 1, #members, 2 do
        local place = members[i]
        local laid = string.gsub(call('HGET', key('laid', stream), place) or '', start .. ',', '')
        if laid == '' then
          call('HDEL', key('laid', stream), place)
        else
          call('HSET', key('laid', stream), place, laid)
        end
        call('ZREM', key('left', stream), place .. ' ' .. start)
      end
      call('HDEL', key('windows', stream), start)
      call('DEL', key('members', stream, start))
      count = count + 1
    end
  end
  return { 'ok', count }
end

-- `ask.slices`: {id, starts}; `ask.ends`: start -> end in seconds. Answers whether the span is still the same.
function act.lay(ask)
  local stream, known = ask.stream, {}
  if call('HGET', key('spans'), stream) ~= ask.span then
    return { 'ok', 0 }
  end
  for _, slice in ipairs(ask.slices) do
    if not find(known, slice[1], stream) then
      return { 'unknown', slice[1], stream }
    end
  end
  local version = tostring(call('INCR', key('window_versions')))
  for _, slice in ipairs(ask.slices) do
    local entry = known[slice[1]]
    if entry.status == 'accepted' then -- else it was retracted or sent back meanwhile
      local laid = { call('HGET', key('laid', stream), entry.seq) or nil }
      for _, start in ipairs(slice[2]) do
        local name = key('members', stream, start)
        local member, built = string.match(call('HGET', name, entry.seq) or '0,0,,,', '^(%d),%d,(%d*),')
        if member == '0' then
          local before = window_row(stream, start)
          local row = before and window_row(stream, start) or {
            stream = stream, start = start, span = ask.span, end_seconds = ask.ends[start], phase = 'waiting',
            ready = '0', revision = '0', attempts = '0', not_before = NEVER,
          }
          row.due, row.version = '1', version
          put_window(row, before)
          call('HSET', name, entry.seq, '1,0,' .. built .. ',' .. entry.judgement .. ',')
          call('ZREM', key('left', stream), entry.seq .. ' ' .. start)
          laid[#laid + 1] = start .. ','
        end
      end
      if #laid > 0 then
        call('HSET', key('laid', stream), entry.seq, table.concat(laid))
      end
      call('ZREM', key('unlaid', stream), entry.seq)
    end
  end
  return { 'ok', 1 }
end
