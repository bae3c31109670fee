-- Slices that failed: which are due, those that still can not be read, those that go to the gate again. As in
-- `fates.py`, which says why.

function look.failing(ask)
  local places = {}
  local function found(name, low, high)
    local rest = ask.limit - #places
    for _, member in ipairs(call('ZRANGEBYLEX', key(name, ask.stream), low, high, 'LIMIT', 0, rest)) do
      places[#places + 1] = string.match(member, ' (%d+)$')
    end
  end
  found('retries', '-', '[' .. ask.now .. ' \255')
  found('unread', '-', '(' .. ask.declared .. ' ')
  found('unread', '(' .. ask.declared .. ' \255', '+')
  table.sort(places, by_number)
  return { 'ok', rows(key('slices'), places) }
end

local function copied(row)
  local copy = {}
  for name, value in pairs(row) do
    copy[name] = value
  end
  return copy
end

function act.postpone(ask)
  local place = place_of(ask.id)
  local before = place and slice_at(place)
  if before and before.status == 'failed' then
    local after = copied(before)
    after.error, after.retry_at, after.failed_as = ask.error, ask.retry_at, nil
    after.failures = tostring(tonumber(before.failures or '0') + 1)
    change(before, after)
  end
  return { 'ok' }
end

function act.hasten(ask)
  local places = call('ZRANGE', key('ledger', ask.stream, 'failed'), 0, -1)
  for _, place in ipairs(places) do
    local before = slice_at(place)
    local after = copied(before)
    after.failures = '0'
    if before.retry_at then
      after.retry_at = AT_ONCE
    else
      after.failed_as = ''
    end
    change(before, after)
  end
  return { 'ok', #places }
end

-- What was built with a slice, and not built anew since, calls it by its new place.
local function refer(stream, old, new)
  for _, start in ipairs(call('ZRANGE', key('stale', stream), 0, -1)) do
    local name = key('tile', stream, start)
    for short, flag in pairs(flags(stream, start)) do
      local place, rest = string.match(short, '^(%d+)(.*)$')
      if place == old then
        call('HDEL', name, short)
        call('HSET', name, new .. rest, flag)
      end
    end
  end
  for _, start in ipairs(left_by(stream, old)) do
    local name = key('members', stream, start)
    call('HSET', name, new, call('HGET', name, old))
    call('HDEL', name, old)
    call('ZREM', key('left', stream), old .. ' ' .. start)
    call('ZADD', key('left', stream), 0, new .. ' ' .. start)
    put_window(window_row(stream, start), window_row(stream, start))
  end
end

function act.send_again(ask)
  local list, sent = {}, {}
  for i, id in ipairs(ask.ids) do
    local place = place_of(id)
    list[i] = place and slice_at(place)
    if not list[i] then
      return { 'unknown', id, '' }
    end
    if list[i].status ~= 'failed' then
      return { 'not failed', id, list[i].status }
    end
  end
  for i, before in ipairs(list) do
    local stream, after = before.stream, copied(before)
    after.seq = tostring(call('INCR', key('last')))
    after.status, after.rejects = 'pending', '{}'
    for _, name in ipairs(COUNTED) do
      after[name] = '0'
    end
    for _, name in ipairs({ 'observed_start', 'observed_end', 'watermark', 'batch', 'error', 'retry_at', 'failed_as' }) do
      after[name] = nil
    end
    after.retried = tostring(tonumber(before.retried or '0') + 1)
    count(before, -1)
    list_failed('ZREM', before)
    call('HDEL', key('slices'), before.seq)
    call('ZREM', key('ids'), before.id .. ':' .. before.seq)
    call('ZREM', key('ledger', stream, before.status), before.seq)
    insert(after)
    if before.attempt ~= '0' then -- it was accepted once: something may be left that was built with it
      refer(stream, before.seq, after.seq)
    end
    if before.batch and call('HGET', key('batch_slices', stream), before.batch) == '0' then
      call('SREM', key('batches', stream), before.batch)
      call('HDEL', key('batch_slices', stream), before.batch)
    end
    sent[i] = cjson.encode(after)
  end
  return { 'ok', sent }
end
