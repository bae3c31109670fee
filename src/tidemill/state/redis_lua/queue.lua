-- What is to be built next, who holds what, what the world was told, and how far streaming windows are.
--   marks:STREAM         hash   name of a streaming window -> what its keeper wrote

-- Everything that may be taken: the first of each queue, and all whose delay is over or whose lease ran out.
function look.takable(ask)
  local list = {}
  for _, stream in ipairs(ask.streams or streams()) do
    local starts = ask.limit > 0 and call('ZRANGE', key('queue', stream), 0, ask.limit - 1) or {}
    for _, name in ipairs({ 'delayed', 'leases' }) do
      for _, member in ipairs(call('ZRANGEBYLEX', key(name, stream), '-', '[' .. ask.now .. ' \255')) do
        starts[#starts + 1] = start_after(member)
      end
    end
    for _, start in ipairs(starts) do
      list[#list + 1] = { stream, start }
    end
  end
  return whole_windows(list)
end

function look.held(ask)
  local list = {}
  for _, stream in ipairs(streams()) do
    for _, member in ipairs(call('ZRANGE', key('leases', stream), 0, -1)) do
      local start = start_after(member)
      if window_row(stream, start).owner == ask.owner then
        list[#list + 1] = { stream, start }
      end
    end
  end
  return whole_windows(list)
end

function look.failed(ask)
  local list = {}
  for _, start in ipairs(call('ZRANGE', key('phase', ask.stream, 'failed'), 0, -1)) do
    if not ask.start or ask.start == start then
      list[#list + 1] = { ask.stream, start }
    end
  end
  return whole_windows(list)
end

function look.queue_length(ask)
  local length = 0
  for _, stream in ipairs(ask.stream and { ask.stream } or streams()) do
    length = length + call('ZCARD', key('phase', stream, 'queued'))
  end
  return { 'ok', length }
end

function look.marks(ask)
  return { 'ok', call('HGETALL', key('marks', ask.stream)) }
end

function act.set_mark(ask)
  call('SADD', key('streams'), ask.stream)
  if ask.mark then
    call('HSET', key('marks', ask.stream), ask.window, ask.mark)
  else
    call('HDEL', key('marks', ask.stream), ask.window)
  end
  tell(ask.events)
  return { 'ok' }
end

function look.outbox(ask)
  local places = {}
  if ask.stream then
    places = call('ZRANGEBYSCORE', key('outbox', ask.stream), '(' .. ask.after, '+inf', 'LIMIT', 0, ask.limit)
  else
    local last = tonumber(call('GET', key('told')) or 0)
    for place = tonumber(ask.after) + 1, last do
      if #places == ask.limit then
        break
      end
      places[#places + 1] = tostring(place)
    end
  end
  return { 'ok', rows(key('events'), places) }
end

function look.delivered(ask)
  return { 'ok', call('HGET', key('delivered'), ask.sink) }
end

function act.set_delivered(ask)
  local before = tonumber(call('HGET', key('delivered'), ask.sink) or 0)
  if before < tonumber(ask.seq) then
    call('HSET', key('delivered'), ask.sink, ask.seq)
  end
  return { 'ok' }
end
