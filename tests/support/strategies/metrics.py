"""Hypothesis strategies for metrics: streams that declare several metrics of all kinds, and feeds for them.

They never decide what comes of them; `Oracle` and `MetricOracle` do. Feeds are of few objects, states, keys
and instants, so that events meet: late, twice, out of order, at equal times, with nulls and conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Final, Literal

from hypothesis import strategies as st
from tests.support.oracles.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleKept,
    OracleKind,
    OracleRatio,
    OracleState,
    OracleTerm,
)
from tests.support.oracles.oracle import Landing
from tests.support.oracles.spelling import plain, respelled
from tests.support.oracles.stream import OracleField, OracleStream
from tests.support.oracles.strictjson import Json, Number

from tidemill.model.metrics import NONE_STATE, OTHER, TransitionRule
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, WEEK, parse_instant

START: Final = parse_instant("2024-03-03T23:59:30Z")  # half a minute before a day, and near a week, ends
STATES: Final = ("new", "on", "off", "gone")

SENSORS: Final = OracleStream(
    name="sensors",
    fields={
        "id": OracleField("string", required=True),
        "at": OracleField("integer", required=True),
        "tenant": OracleField("string", required=True),
        "thing": OracleField("string"),
        "number": OracleField("integer"),
        "state": OracleField("string"),
        "gear": OracleField("integer"),
        "up": OracleField("boolean"),
        "place.region": OracleField("string"),
        "zone": OracleField("string"),
        "n": OracleField("integer"),
        "celsius": OracleField("decimal", scale=2),
    },
    time_column="at",
    time_type="unixtimestamp_us",
    identity=("id",),
    tenant_column="tenant",
    late_tolerance=2 * SECOND,
)
"""Every column that metrics can use in every role; the metrics themselves are drawn."""

_FILTERS: Final = (
    None,
    None,
    "zone = 'a'",
    "not up = true",
    "n > 0 or celsius <= 1.005",
    "celsius is not null and state in ('on', 'off')",
    "place.region != 'eu' or gear is null",
)


@st.composite
def metered_streams(draw: st.DrawFn, *, limits: bool = True, max_metrics: int = 5) -> OracleStream:
    """`SENSORS` with several metrics, a state metric nearly always among them."""
    drawers = [_states(limits)] * draw(st.integers(0, 2)) + [
        draw(st.sampled_from([_counters(limits), _gauges(limits), _histograms(limits)]))
        for _ in range(draw(st.integers(1, max(1, max_metrics - 2))))
    ]
    kept: dict[str, OracleKept] = {f"m{number}": draw(drawer) for number, drawer in enumerate(drawers)}
    kinds: dict[str, OracleKind] = dict(kept)
    terms = [name for name, kind in kept.items() if isinstance(kind, OracleCounter | OracleState)]
    if draw(st.booleans()) and terms:
        term = st.sampled_from(terms).map(OracleTerm)
        sides = st.lists(term, min_size=1, max_size=2).map(tuple)
        kinds["share"] = OracleRatio(draw(sides), draw(sides))
    return replace(SENSORS, kinds=kinds)


_Dimensions = tuple[tuple[str, ...], int | None]


@st.composite
def _keys(draw: st.DrawFn, limits: bool) -> _Dimensions:
    """Dimensions, and a limit of their combinations: it needs one of text."""
    names = ["zone", "place.region", "up", "gear"]
    dimensions = tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=2)))
    has_text = any(SENSORS.fields[name].type == "string" for name in dimensions)
    limit = draw(st.sampled_from([None, 1, 2, 3])) if limits and has_text else None
    return dimensions, limit


_conditions = st.sampled_from(_FILTERS)
_numbers = st.sampled_from(["n", "celsius"])


@st.composite
def _counters(draw: st.DrawFn, limits: bool) -> OracleCounter:
    dimensions, limit = draw(_keys(limits))
    measures = tuple(draw(st.lists(_numbers, unique=True, max_size=2)))
    return OracleCounter(dimensions, measures, draw(_conditions), limit)


@st.composite
def _gauges(draw: st.DrawFn, limits: bool) -> OracleGauge:
    dimensions, limit = draw(_keys(limits))
    policies: list[Literal["avg", "min", "max", "first", "last"]] = ["avg", "min", "max", "first", "last"]
    return OracleGauge(draw(_numbers), draw(st.sampled_from(policies)), dimensions, draw(_conditions), limit)


@st.composite
def _histograms(draw: st.DrawFn, limits: bool) -> OracleHistogram:
    dimensions, limit = draw(_keys(limits))
    bounds = draw(st.sampled_from([None, None, ("0",), ("-1.5", "0", "0.005", "2", "100"), ("1", "1.001")]))
    return OracleHistogram(
        draw(_numbers),
        None if bounds is None else tuple(map(Decimal, bounds)),
        draw(st.sampled_from([Decimal("0.01"), Decimal("0.2")])),
        dimensions,
        draw(_conditions),
        limit,
    )


@st.composite
def _states(draw: st.DrawFn, limits: bool) -> OracleState:
    dimensions, limit = draw(_keys(limits))
    state = draw(st.sampled_from(["state", "state", "gear", "up"]))
    count = draw(st.integers(0, 2))
    named = tuple(draw(_rules(f"rule{number}", texts_of(state))) for number in range(count))
    return OracleState(
        draw(st.sampled_from(["thing", "thing", "number"])),
        state,
        dimensions,
        named,
        draw(_conditions),
        limit,
    )


def texts_of(state: str) -> Sequence[str]:
    return {"gear": ("-1", "0", "1"), "up": ("false", "true")}.get(state, STATES)


@st.composite
def _rules(draw: st.DrawFn, name: str, states: Sequence[str]) -> TransitionRule:
    some = st.lists(st.sampled_from(states), unique=True, min_size=1, max_size=2).map(tuple)
    way = draw(st.sampled_from(["last", "any", "some"]))
    return TransitionRule(
        name,
        from_last=way == "last",
        from_states=draw(some) if way == "some" else None,
        to=draw(st.one_of(st.none(), some)),
        until=draw(st.one_of(st.just(()), some)),
    )


# --- feeds


@st.composite
def sensor_feeds(draw: st.DrawFn, *, max_events: int = 30, max_slices: int = 6) -> list[Landing]:
    """Slices in landing order. Hypothesis chooses sizes and seeds, dice the rest, so that feeds are rich."""
    random = Random(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, max_events))
    originals = [_event(number, random) for number in range(count)]
    records = [plain(event).encode() for event in originals]
    for _ in range(draw(st.integers(0, count // 2))):
        records.append(_once_more(dict(random.choice(originals)), random))
    random.shuffle(records)
    slices = draw(st.integers(1, min(max_slices, len(records))))
    cuts = [0, *sorted(random.sample(range(1, len(records)), slices - 1)), len(records)]
    landings, arrival = [], START + 5 * MINUTE
    for number, (begin, end) in enumerate(pairwise(cuts)):
        arrival += random.choice([0, SECOND, MINUTE, HOUR])
        landings.append(Landing(f"slice-{number:03d}", tuple(records[begin:end]), arrival))
    return landings


def _event(number: int, random: Random) -> dict[str, Json]:
    """Ids sort unlike the order in which they are made."""
    event: dict[str, Json] = {
        "id": f"{random.choice('zaé')}{number}",
        "at": _number(_instant(random)),
        "tenant": random.choice(["acme", "acme", "globex"]),
        "thing": random.choice(["x", "y", "z", ""]),
        "number": _number(random.choice([1, 2])),
        "state": random.choice([*STATES, *STATES, NONE_STATE]),
        "gear": _number(random.choice([-1, 0, 1])),
        "up": random.random() < 0.5,
        "place": {"region": random.choice(["eu", "us", "ap", OTHER, ""])},
        "zone": random.choice(["a", "b", "c"]),
        "n": _number(random.choice([0, 1, -1, 7, -120, 10**6, 2**62, -(2**62)])),
        "celsius": Number.parse(random.choice(["0", "-1.5", "0.005", "1.005", "2.5", "99.994", "123456.78"])),
    }
    for name in ("thing", "number", "state", "gear", "up", "place", "zone", "n", "celsius"):
        if random.random() < 0.12:
            event[name] = None if name != "place" and random.random() < 0.5 else {}
            if event[name] == {} and name != "place":
                del event[name]
    return event


def _instant(random: Random) -> int:
    """Few instants, on both sides of the ends of buckets and tiles; some days and weeks before."""
    near = random.choice([0, 0, 1, 2, 4, 5, 7, 29, 30, 31, 90]) * SECOND
    fine = random.choice([0, 0, 0, 1, SECOND - 1])
    return START + near + fine - random.choice([0, 0, 0, 0, 0, HOUR, DAY, WEEK, 5 * WEEK])


def _once_more(event: dict[str, Json], random: Random) -> bytes:
    """The event again: as it was, spelled otherwise, or contradicting itself."""
    way = random.choice(["verbatim", "respelled", "state", "time", "value", "bad"])
    if way == "state":
        event["state"] = random.choice(STATES)
    elif way == "time":
        event["at"] = _number(_instant(random))
    elif way == "value":
        event["n"] = _number(random.randrange(100))
    text = respelled(event, random) if way == "respelled" else plain(event)
    return text[:-1].encode() if way == "bad" else text.encode()


def _number(value: int) -> Number:
    return Number.parse(str(value))
