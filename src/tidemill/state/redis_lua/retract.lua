-- Taking a slice back. What becomes of entries and windows is decided by whoever calls: here it is found, and
-- done if nothing changed meanwhile.

function look.retractions()
  return { 'ok', call('GET', key('retractions')) or '0' }
end

-- The entries with these ids, the windows they are members of, or were built with the first of them, which is
-- retracted, and how they are marked there.
function look.leaving(ask)
  local list, laid, starts, places = {}, {}, {}, {}
  for i, id in ipairs(ask.ids) do
    local place = place_of(id)
    local row = place and call('HGET', key('slices'), place)
    if not row or cjson.decode(row).stream ~= ask.stream then
      return { 'unknown', id, ask.stream }
    end
    places[#places + 1] = place
    list[#list + 1] = row
    laid[#laid + 1] = call('HGET', key('laid', ask.stream), place) or ''
    for _, list in ipairs({ starts_of(ask.stream, place), i == 1 and left_by(ask.stream, place) or {} }) do
      for _, start in ipairs(list) do
        starts[start] = starts[start] or {}
        table.insert(starts[start], place)
      end
    end
  end
  local windows = {}
  for start, marked in pairs(starts) do
    local flags = {}
    for _, place in ipairs(marked) do
      flags[#flags + 1] = place
      flags[#flags + 1] = call('HGET', key('members', ask.stream, start), place)
    end
    windows[#windows + 1] = { call('HGET', key('windows', ask.stream), start), flags }
  end
  return { 'ok', list, laid, windows }
end

function act.retract(ask)
  local stream = ask.stream
  if (call('GET', key('retractions')) or '0') ~= ask.applied or not unchanged(ask) then
    return { 'ok', 0 }
  end
  for _, leaving in ipairs(ask.leaving) do
    local place = leaving.after.seq
    if call('HGET', key('slices'), place) ~= leaving.before
      or (call('HGET', key('laid', stream), place) or '') ~= leaving.laid then
      return { 'ok', 0 }
    end
  end
  call('SET', key('retractions'), ask.n)
  local batches = {}
  for _, leaving in ipairs(ask.leaving) do
    local before = cjson.decode(leaving.before)
    unwant(before)
    change(before, leaving.after)
    call('ZREM', key('unlaid', stream), before.seq)
    call('HDEL', key('laid', stream), before.seq)
    if before.batch then
      batches[before.batch] = true
    end
  end
  for batch in pairs(batches) do
    if call('HGET', key('batch_slices', stream), batch) == '0' then
      call('SREM', key('batches', stream), batch)
      call('HDEL', key('batch_slices', stream), batch)
    end
  end
  call('DEL', key('clocks', stream), key('progress', stream))
  advance(stream, ask.clocks, ask.progress)
  for name, version in pairs(ask.versions) do
    saw_version(stream, name, version)
  end
  keep(ask)
  return { 'ok', 1 }
end
