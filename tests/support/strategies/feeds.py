"""Hypothesis strategies: feeds as slices of raw lines, and scripts of what happens to windows, for comparing
an engine with the oracle.

The one module of the kit that needs hypothesis. It never decides an outcome; the oracle does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple

from hypothesis import strategies as st
from tests.support.oracles.oracle import ID_BYTES, TENANT_BYTES, Landing
from tests.support.oracles.spelling import SPOILED_TEXT, plain, respelled
from tests.support.oracles.stream import READINGS, REQUESTS, OracleField, OracleStream
from tests.support.oracles.strictjson import INT64_MAX, INT64_MIN, Json, Number
from tests.support.oracles.windows import Act, Land, OracleRules, Retract, Tick

from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, align, format_instant, parse_instant

FIRST_ARRIVAL: Final = parse_instant("2024-03-01T00:00:00Z")
_UNITS = {
    "unixtimestamp_s": (SECOND, 1),
    "unixtimestamp_ms": (1_000, 1),
    "unixtimestamp_us": (1, 1),
    "unixtimestamp_ns": (1, 1_000),
}
_LARGEST_PADDING = 1 << 16  # a stream that allows larger records gets no record that is too large

_WORDS = st.sampled_from(
    ["a", "b", "/x", "é", "日本", "😀", "", " ", '"', "\\", "\x00", "\u2028", "null", "1", "a.b"]
)
_TEXT = st.one_of(_WORDS, st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
_DIGITS = st.integers(-(10**6), 10**6)


def _number(value: int, exponent: int = 0) -> Number:
    return Number.parse(f"{value}e{exponent}")


_INTEGERS = st.one_of(st.sampled_from([0, 1, 2, 200, -1, INT64_MAX, INT64_MIN]), _DIGITS).map(_number)
_FLOATS = st.builds(_number, _DIGITS, st.sampled_from([0, 0, -1, -3, -7, 5, 30, 400, -400]))
_ANY: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), _INTEGERS, _FLOATS, _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=5,
)


def values(declared: OracleField) -> st.SearchStrategy[Json]:
    """Values that a declared field accepts, edges included."""
    if declared.type == "decimal":
        scale = declared.scale or 0
        largest = _number(10**18 - 1, -scale)
        # two digits more than are kept, so that rounding (and its ties) happens
        close = st.builds(_number, _DIGITS, st.sampled_from([0, -1, -scale, -scale - 1, -scale - 2]))
        return st.one_of(close, close, st.just(largest))
    by_type: dict[str, st.SearchStrategy[Json]] = {
        "string": _TEXT,
        "integer": _INTEGERS,
        "float": _FLOATS,
        "boolean": st.booleans(),
        "object": st.dictionaries(_TEXT, _ANY, max_size=2),
        "array": st.lists(_ANY, max_size=3),
        "any": _ANY,
    }
    return by_type[declared.type]


_WRONG: Final[dict[str, tuple[Json, ...]]] = {
    "string": (_number(1), True, {}, []),
    "integer": (_number(15, -1), _number(INT64_MAX + 1), _number(1, 400), _number(1, -400), "1", True, []),
    "decimal": (_number(1, 18), _number(-1, 400), "1", False, {}),
    "float": ("1", True, []),
    "boolean": (_number(1), _number(0), "true"),
    "object": ([], "{}", _number(1), True),
    "array": ({}, "[]", _number(1), False),
    "any": (),
}


def put(event: dict[str, Json], column: str, value: Json) -> None:
    """Set the value at a dotted path, making the objects on the way."""
    *outer, last = column.split(".")
    for key in outer:
        inner = event.get(key)
        if not isinstance(inner, dict):
            inner = event[key] = {}
        event = inner
    event[last] = value


def drop(event: dict[str, Json], column: str) -> None:
    """Remove what stands at a dotted path, if anything does."""
    *outer, last = column.split(".")
    for key in outer:
        inner = event.get(key)
        if not isinstance(inner, dict):
            return
        event = inner
    event.pop(last, None)


@st.composite
def events(draw: st.DrawFn, stream: OracleStream, number: int) -> dict[str, Json]:
    """A record that the stream accepts; `number` makes its identity its own."""
    event: dict[str, Json] = {}
    roles = {stream.tenant_column, stream.type_column, stream.time_column, *stream.identity}
    for column, declared in stream.fields.items():
        if column not in roles and (declared.required or draw(st.integers(0, 5))):
            optional = values(declared) if declared.required else st.one_of(values(declared), st.none())
            value = draw(optional)
            put(event, column, value if value is not None or not declared.required else "present")
    for column in stream.identity:
        put(event, column, draw(_ids(stream.fields.get(column), number)))
    if stream.tenant_column:
        put(event, stream.tenant_column, draw(st.sampled_from(["acme", "globex", "ténant\n"])))
    if stream.type_column:
        put(event, stream.type_column, draw(st.sampled_from(sorted(stream.allowed_types) or ["any"])))
    if stream.time_column:
        put(event, stream.time_column, draw(_times(stream)))
    if not draw(st.integers(0, 3)):
        key = draw(_TEXT)
        if key not in {column.split(".")[0] for column in (*stream.fields, *roles) if column}:
            event[key] = draw(_ANY)
    return event


def _ids(declared: OracleField | None, number: int) -> st.SearchStrategy[Json]:
    ends = st.sampled_from(["", "é", '"', "\\n", "\n", "/"])
    words: st.SearchStrategy[Json] = ends.map(lambda end: f"e{number}{end}")
    if declared and declared.type == "string":
        return words
    if declared and declared.type == "integer":
        return st.just(_number(number))
    return st.one_of(words, st.just(_number(number)))


def _instants(stream: OracleStream) -> st.SearchStrategy[int]:
    """Close together, on the edges of buckets, and hours or days apart: some will be late."""
    back = DAY if stream.skew_past is None else min(DAY, stream.skew_past // 2)
    seconds, fine = st.integers(0, 30), st.sampled_from([0, 1, 1_000, 999_999])
    near = st.builds(lambda s, us: s * SECOND + us, seconds, fine)
    widths = st.sampled_from([5 * SECOND, MINUTE, HOUR])
    edges = st.builds(lambda n, width: n * width, st.integers(0, 3), widths)
    return st.one_of(near, edges, st.integers(0, back)).map(lambda ago: FIRST_ARRIVAL - min(ago, back))


def _times(stream: OracleStream) -> st.SearchStrategy[Json]:
    """Spellings of an instant that the stream's time type and the column's declared type allow."""
    instants = _instants(stream)
    if stream.time_type == "iso8601":
        zones = st.sampled_from(["Z", "+00:00", "z", "-0000"])
        return st.builds(lambda us, zone: format_instant(us)[:-1] + zone, instants, zones)
    unit, factor = _UNITS[stream.time_type]
    declared = stream.fields.get(stream.time_column or "", OracleField("any"))
    whole = instants.map(lambda us: us * factor // unit)
    signs, tenths = st.sampled_from(["", "+", "+0"]), st.integers(0, 9)
    ends = st.sampled_from(["", "", ".0", ".25"])
    texts: st.SearchStrategy[Json] = st.builds(lambda n, sign, end: f"{sign}{n}{end}", whole, signs, ends)
    numbers: st.SearchStrategy[Json] = whole.map(_number)
    exact: st.SearchStrategy[Json] = st.builds(lambda n, part: _number(n * 10 + part, -1), whole, tenths)
    by_type = {"string": texts, "integer": numbers, "any": st.one_of(numbers, exact, texts)}
    return by_type.get(declared.type, st.one_of(numbers, exact))


Spoil = Callable[[dict[str, Json]], None]


def spoils(stream: OracleStream) -> dict[str, list[Spoil]]:
    """Every way in which a good event of this stream breaks one of its rules, by rule."""
    found: dict[str, list[Spoil]] = {}

    def setting(rule: str, column: str, *wrong: Json) -> None:
        for value in wrong:
            found.setdefault(rule, []).append(partial(put, column=column, value=value))

    def dropping(rule: str, column: str) -> None:
        found.setdefault(rule, []).append(partial(drop, column=column))

    for column in stream.identity:
        dropping("id", column)
        setting("id", column, None, "", True, _number(15, -1), _number(1, 30), [], {})
        setting("id", column, "é" * (ID_BYTES // 2 + 1))
    if tenant := stream.tenant_column:
        dropping("tenant", tenant)
        setting("tenant", tenant, None, "", _number(1), [], "t" * (TENANT_BYTES + 1), "é" * TENANT_BYTES)
    if kind := stream.type_column:
        dropping("type", kind)
        setting("type", kind, None, _number(1), {}, *["", "no such type"] * bool(stream.allowed_types))
    if time := stream.time_column:
        dropping("time", time)
        setting("time", time, None, True, [], {}, "", "yesterday", "1.5.", " 1", "2024-13-01T00:00:00Z")
        if stream.time_type == "iso8601":
            wrong = ("2024-01-01T25:00:00Z", "0000-01-01T00:00:00Z", "2024-03-01T00:00:00")  # no offset
            setting("time", time, _number(1), *wrong)
        else:
            setting("time", time, *(_number(sign, n) for sign in (1, -1) for n in (30, 400)), "9" * 40)
        setting("skew", time, *_skewed(stream))
    for column, declared in stream.fields.items():
        setting("schema", column, *_WRONG[declared.type])
        if declared.required:
            dropping("required", column)
            setting("required", column, None)
    nested: Json = []
    for _ in range(stream.depth - 1):
        nested = [nested]
    setting("depth", "too_deep", nested)
    if stream.record_bytes <= _LARGEST_PADDING:
        setting("size", "too_large", "x" * stream.record_bytes)
    return found


def _skewed(stream: OracleStream) -> list[Json]:
    """Times beyond the skew, whatever the slice they land in (they all arrive within two days)."""
    found: list[int] = []
    if stream.skew_future is not None:
        found.append(FIRST_ARRIVAL + stream.skew_future + 3 * DAY)
    if stream.skew_past is not None:
        found.append(FIRST_ARRIVAL - stream.skew_past - SECOND)
    return [_spelled_time(stream, us) for us in found]


def _spelled_time(stream: OracleStream, us: int) -> Json:
    if stream.time_type == "iso8601":
        return format_instant(us)
    unit, factor = _UNITS[stream.time_type]
    number = us * factor // unit
    declared = stream.fields.get(stream.time_column or "")
    return str(number) if declared and declared.type == "string" else _number(number)


@st.composite
def feeds(
    draw: st.DrawFn,
    stream: OracleStream = REQUESTS,
    *,
    max_records: int = 60,
    conflicts: bool = True,
    rejects: bool = True,
    sources: Sequence[str] = ("default", "edge"),
) -> list[Landing]:
    """Slices in landing order: new events, replays (verbatim and respelled), conflicts, bad records,
    shuffled and split in any way. `Oracle(stream).land(*landing)` takes each of them."""
    assert max_records >= 1
    count = draw(st.integers(1, max(1, max_records // 4)))
    originals = [draw(events(stream, number)) for number in range(count)]
    random = Random(draw(st.integers(0, 2**32 - 1)))
    records = [plain(event).encode() for event in originals]
    ways = ["verbatim", "respelled", *["conflict"] * conflicts, *["event", "text"] * rejects]
    broken = spoils(stream)
    # hypothesis chooses sizes and values, seeded dice the rest: feeds are then both small and rich
    for _ in range(draw(st.integers(0, max_records - count))):
        event = deepcopy(random.choice(originals))
        records.append(_once_more(random.choice(ways), event, stream, broken, random))
    random.shuffle(records)
    return _split(records, draw(st.integers(1, min(7, len(records)))), sources, random)


def _once_more(
    way: str, event: dict[str, Json], stream: OracleStream, broken: dict[str, list[Spoil]], random: Random
) -> bytes:
    if way == "verbatim":
        return plain(event).encode()
    if way == "conflict":
        _contradict(event, stream, random)
    elif way == "event":
        random.choice(broken[random.choice(list(broken))])(event)
    text = respelled(event, random)
    if way == "text":
        return SPOILED_TEXT[random.choice(sorted(SPOILED_TEXT))](text, random)
    return (random.choice(["", " ", "\t"]) + text + random.choice(["", " ", "\r"])).encode()


def _contradict(event: dict[str, Json], stream: OracleStream, random: Random) -> None:
    """Another payload under the same identity: one more field, or another time."""
    if stream.time_column and random.random() < 0.5:
        put(event, stream.time_column, _spelled_time(stream, FIRST_ARRIVAL - random.randrange(HOUR)))
    else:
        event["contradiction"] = _number(random.randrange(3))


def _split(records: list[bytes], slices: int, sources: Sequence[str], random: Random) -> list[Landing]:
    """Cut anywhere; arrivals never go back and stay within two days."""
    cuts = [0, *sorted(random.sample(range(1, len(records)), slices - 1)), len(records)]
    landings: list[Landing] = []
    arrival = FIRST_ARRIVAL
    for number, (begin, end) in enumerate(pairwise(cuts)):
        arrival += random.choice([0, 1, SECOND, MINUTE, HOUR])
        piece = tuple(records[begin:end])
        landings.append(Landing(f"slice-{number:03d}", piece, arrival, random.choice(sources)))
    return landings


# --- windows ---------------------------------------------------------------------------------------

WINDOWS: Final = 2  # a script is about as many windows of its span, and about their neighbours


class WindowScript(NamedTuple):
    rules: OracleRules
    acts: tuple[Act, ...]


@st.composite
def window_rules(draw: st.DrawFn) -> OracleRules:
    """Spans short and long, also shorter than the tolerance; mostly strict, often without a late policy."""
    span = draw(st.sampled_from([SECOND // 4, SECOND, 10 * SECOND, MINUTE, 90 * MINUTE, 7 * HOUR]))
    return OracleRules(
        span=span,
        stc=draw(st.sampled_from([0, 0, 1, span // 2, span, 2 * span + 1])),
        allow_incomplete=draw(st.sampled_from([False, False, False, True])),
        gap_tolerance=draw(st.sampled_from([SECOND, 0, 0, 1, span // 4, span])),
        max_lateness=draw(st.sampled_from([0, 0, 1, span])),
    )


@st.composite
def window_scripts(
    draw: st.DrawFn,
    stream: OracleStream = READINGS,
    *,
    rules: st.SearchStrategy[OracleRules] | None = None,
    around: Sequence[int] = (FIRST_ARRIVAL,),
    retractions: bool = True,
    max_acts: int = 14,
) -> WindowScript:
    """Slices that land before, at and after the cutoffs of a few windows, in any order of event time, with
    ticks at any pace between them and one at the end. Slices overlap, touch and leave gaps of about the
    tolerance; some have no declared bounds, some rows outside of them, some no rows at all; events are
    repeated and contradicted across slices, and slices land twice."""
    rules_drawn = draw(rules if rules is not None else window_rules())
    first = align(draw(st.sampled_from(around)), rules_drawn.span) - rules_drawn.span
    pool = [draw(events(stream, number)) for number in range(draw(st.integers(1, 4)))]
    count = draw(st.integers(1, max_acts - 1))
    # as with feeds: hypothesis chooses sizes and values, seeded dice the rest
    dice = _Dice(rules_drawn, first, Random(draw(st.integers(0, 2**32 - 1))))
    timed = [(dice.moment(), event) for event in pool]
    landed: dict[str, Land] = {}
    live: list[str] = []
    acts: list[Act] = []
    for at in sorted(dice.turning_point() for _ in range(count)):
        what = dice.random.choice(_KINDS[: None if retractions else -1]) if landed else "land"
        if what == "land":
            declared = dice.bounds()
            records = dice.records(stream, timed, declared)
            if landed and dice.random.random() < 0.3:
                records += dice.random.choice(list(landed.values())).records
            act = Land.of(stream.name, records, at, declared, dice.random.choice(["default", "edge"]))
            if act.slice not in landed:
                landed[act.slice] = act
                live.append(act.slice)
            acts.append(act)
        elif what == "again":
            acts.append(dice.random.choice(list(landed.values()))._replace(at=at))
        elif what == "tick":
            acts.append(Tick(at))
        elif live:
            acts.append(Retract(live.pop(dice.random.randrange(len(live))), at))
    last = acts[-1].at + dice.random.choice([0, 1, rules_drawn.span, 9 * rules_drawn.span])
    return WindowScript(rules_drawn, (*acts, Tick(last)))


_KINDS: Final = ("tick", "tick", "tick", "tick", "land", "land", "land", "land", "again", "retract")


class _Dice(NamedTuple):
    """What a script is made of, thrown for windows of these rules from `first` on."""

    rules: OracleRules
    first: int
    random: Random

    def moment(self) -> int:
        """An event time or a bound: a quarter of a window, give or take about what is tolerated."""
        near = self.rules.gap_tolerance
        quarter = self.first + self.random.randint(0, 4 * WINDOWS) * self.rules.span // 4
        return quarter + self.random.choice([0, 0, 0, 0, 1, -1, near, -near, near + 1, -near - 1])

    def turning_point(self) -> int:
        """An arrival or a tick: within the windows, at their ends, cutoffs and last admissions, just before
        and just after those, and long after."""
        rules = self.rules
        end = self.first + self.random.randint(0, WINDOWS + 1) * rules.span
        mark = self.random.choice([0, rules.stc, rules.stc + rules.max_lateness])
        return end + mark + self.random.choice([-1, 0, 1, self.random.randrange(rules.span)])

    def bounds(self) -> Interval | None:
        """Often such that a few of them make a window complete, or nearly."""
        way = self.random.choice(["head", "head", "tail", "tail", "whole", "part", "none"])
        if way == "none":
            return None
        span, one, other = self.rules.span, self.moment(), self.moment()
        if way == "head":
            one = align(other, span)
        elif way == "tail":
            other = align(one, span) + span
        elif way == "whole":
            one = align(one, span)
            other = one + self.random.randint(1, 2) * span
        start = min(one, other)
        return Interval(start, max(one, other, start + 1))

    def records(
        self,
        stream: OracleStream,
        timed: Sequence[tuple[int, dict[str, Json]]],
        declared: Interval | None,
    ) -> tuple[bytes, ...]:
        """Some of the events, mostly those within the bounds, if there are any."""
        assert stream.time_column is not None
        records: list[bytes] = []
        strict = self.random.random() < 0.7
        for _ in range(self.random.randint(0, 5)):
            at, event = deepcopy(self.random.choice(timed))
            way = self.random.choice(
                ["verbatim", "verbatim", "verbatim", "respelled", "moved", "other", "bad"]
            )
            if way == "moved":
                at = self.moment()
            elif way == "other":
                event["contradiction"] = _number(self.random.randrange(3))
            if strict and declared is not None and not declared.holds(at):
                continue
            put(event, stream.time_column, _spelled_time(stream, at))
            text = respelled(event, self.random) if way == "respelled" else plain(event)
            records.append(text[:-1].encode() if way == "bad" else text.encode())
        return tuple(records)
