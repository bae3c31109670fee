-- Runs the act that was asked for, unless its caller was already answered: then it is told the same again.

local name, caller, number = ARGV[4], ARGV[5], tonumber(ARGV[6])
local ask = cjson.decode(ARGV[7])

local format = call('GET', at('format'))
if format and not string.match(format, '^%d+$') then
  return { 'foreign' }
end
if format and tonumber(format) > FORMAT then
  return { 'newer', format }
end

local generation_at_hand = string.match(TARGET, '^=(%d+)$') or call('GET', at(TARGET))
if not generation_at_hand and not whole[name] then
  return { 'gone' }
end
NS = PREFIX .. ':' .. (generation_at_hand or '') .. ':'

if caller == '' then
  return (look[name] or whole[name])(ask)
end

local said = at('said:' .. caller)
local before = call('GET', said)
if before then
  local last, answer = string.match(before, '^(%d+) (.*)$')
  if tonumber(last) == number then
    return cmsgpack.unpack(answer)
  end
  if tonumber(last) > number then
    return { 'stale' } -- it was on its way for so long that its caller has moved on
  end
end
local answer = (act[name] or whole[name])(ask)
call('SET', said, number .. ' ' .. cmsgpack.pack(answer), 'EX', 86400)
return answer
