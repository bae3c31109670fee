-- Receipts: where an ingestion is found, until it is dropped. The clock of the server has no say in it.
--   receipts        hash   id -> "until row"
--   receipts_until  zset   "until id", by text: whose time is up first

local RECEIPTS = { 'receipts', 'receipts_until' }

function act.keep_receipts(ask)
  local all, times = key('receipts'), key('receipts_until')
  for _, said in ipairs(ask.receipts) do
    local id, row = said[1], said[2]
    local known = call('HGET', all, id)
    local before = known and string.sub(known, 1, 20)
    if not before or before < ask['until'] then
      if before then -- it stays what it is, and is kept longer
        row = string.sub(known, 22)
        call('ZREM', times, before .. ' ' .. id)
      end
      call('HSET', all, id, ask['until'] .. ' ' .. row)
      call('ZADD', times, 0, ask['until'] .. ' ' .. id)
    end
  end
  return { 'ok' }
end

function look.receipt(ask)
  local known = call('HGET', key('receipts'), ask.id)
  return { 'ok', known and string.sub(known, 22) }
end

function act.drop_receipts(ask)
  local times = key('receipts_until')
  local gone = call('ZRANGEBYLEX', times, '-', '(' .. ask.before .. '!', 'LIMIT', 0, ask.limit) -- ! follows the space
  local ids = {}
  for i, member in ipairs(gone) do
    ids[i] = string.sub(member, 22)
  end
  many('ZREM', times, gone)
  many('HDEL', key('receipts'), ids)
  return { 'ok', #gone }
end
