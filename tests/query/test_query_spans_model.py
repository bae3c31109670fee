"""Any span, asked of a mill that let things expire and had its metrics declared anew: intervals add up to the
total, and both are what a loop over the accepted events says, or null where that is gone."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.mill import Mill
from tidemill.model.metrics import log_scaled, percentile
from tidemill.model.time import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Interval,
    align,
    format_duration,
    format_instant,
    parse_instant,
)
from tidemill.query import Answer

START = parse_instant("2024-03-01T00:00:00Z")
END = START + 60 * DAY
CONFIG = """
version: 1
streams:
  plant:
    schema:
      id: {type: string, required: true}
      who: {type: string, required: true}
      at: {type: string, required: true}
      site: string
      ms: integer
      order: string
      status: string
    event_time: {column: at, type: iso8601}
    identity: id
    tenant: who
    metrics:
      made: {kind: counter, dimensions: [DIMENSIONS], measures: [ms]}
      few: {kind: counter, dimensions: [site], max_cardinality: 2}
      speed: {kind: gauge, value: ms, dimensions: [site]}
      delay: {kind: histogram, value: ms, dimensions: [site]}
      orders: {kind: state, object: order, state: status, dimensions: [site]}
      share: {kind: ratio, numerator: few, denominator: made}
    retention: RETENTION
"""
KEPT = "{}"
GONE = "{raw: 20d, rollups: {5s: 10d, 1m: 25d, 1h: 45d}}"


@dataclass(frozen=True)
class Event:
    """As it was sent, in the order of arrival."""

    id: str
    who: str
    at: int
    site: str | None
    ms: int | None
    order: str
    status: str

    def line(self) -> str:
        fields = {"id": self.id, "who": self.who, "at": format_instant(self.at), "site": self.site}
        return json.dumps(fields | {"ms": self.ms, "order": self.order, "status": self.status})


@dataclass(frozen=True, repr=False)
class Story:
    mill: Mill
    events: list[Event]
    expires: bool


def story(seed: int, count: int) -> list[Event]:
    chance = random.Random(seed)
    # Few moments are busy, so that few tiles are built and short spans hold some events; some of those lie
    # just on the edge of a bucket.
    busy = [START + chance.randrange(60 * DAY) for _ in range(24)]
    moments = [chance.choice(busy) + chance.randrange(-20 * SECOND, 20 * SECOND) for _ in range(count)]
    for at in range(0, count, 4):
        moments[at] = align(moments[at], chance.choice((5 * SECOND, MINUTE, HOUR)))
    return [
        Event(
            f"e{number:05}",
            chance.choice(["acme", "acme", "umbra"]),
            moment,
            chance.choice(["a", "b", "c", None]),
            chance.choice([None, chance.randrange(-5, 500)]),
            f"o{chance.randrange(40)}",
            chance.choice(["NEW", "WORK", "DONE"]),
        )
        for number, moment in enumerate(moments)
    ]


def landed(mill: Mill, events: list[Event], step: int) -> None:
    for first in range(0, len(events), step):
        mill.land("plant", "\n".join(event.line() for event in events[first : first + step]).encode())
    mill.tick()


@pytest.fixture(scope="module", params=["kept", "expired", "declared anew"])
def played(request, tmp_path_factory) -> Iterator[Story]:
    folder: Path = tmp_path_factory.mktemp("story")
    project = folder / "tidemill.yaml"
    events = story(len(request.param), 600)
    now = END + 77_777_777
    retention = GONE if request.param == "expired" else KEPT
    early = "site, status" if request.param != "declared anew" else "site"
    project.write_text(CONFIG.replace("DIMENSIONS", early).replace("RETENTION", KEPT))
    with Mill.open(folder, clock=lambda: now) as mill:
        landed(mill, events[:450], 200)
    project.write_text(CONFIG.replace("DIMENSIONS", "site, status").replace("RETENTION", retention))
    with Mill.open(folder, clock=lambda: now) as mill:
        landed(mill, events[450:], 100)
        yield Story(mill, events, request.param == "expired")


SPAN = st.tuples(
    st.integers(0, 60 * DAY) | st.integers(0, 599),  # an instant, or just at an event
    st.integers(0, 12 * SECOND) | st.integers(0, 3 * HOUR) | st.integers(0, 60 * DAY),
    st.sampled_from([1, 1, 5 * SECOND, MINUTE, HOUR, DAY]),
)
INTERVALS = [5 * SECOND, 15 * SECOND, MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, DAY, 7 * DAY, 9 * DAY]
TENANTS = st.sampled_from(["acme", "umbra", None])


def span_of(played: Story, drawn: tuple[int, int, int]) -> Interval:
    first, length, aligned = drawn
    start = played.events[first].at if first < len(played.events) else START + first
    start = align(start, aligned)
    return Interval(start, start + align(length, aligned))


def interval_of(drawn: int, span: Interval) -> int:
    """Not so short that the answer has more than a few thousand cells."""
    return next(each for each in INTERVALS[drawn:] if (span.end - span.start) // each < 3_000)


def asked(played: Story, text: str, tenant: str | None) -> Answer:
    answer = played.mill.ask(text, tenant=tenant, all_tenants=tenant is None)
    assert isinstance(answer, Answer)
    return answer


def rows_of(answer: Answer) -> list[tuple]:
    table = answer.table
    if "bucket" in table.column_names:
        table = table.set_column(0, "bucket", table.column("bucket").cast(pa.int64()))
    return [tuple(row.values()) for row in table.to_pylist()]


def is_gone(answer: Answer, cell: Interval) -> bool:
    return any(one.span.overlaps(cell) for one in answer.completeness.missing)


def between(span: Interval) -> str:
    return f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}"


def chosen(played: Story, tenant: str | None) -> list[Event]:
    return [event for event in played.events if tenant in (None, event.who)]


def cells_of(span: Interval, interval: int, edges: str) -> dict[int, Interval | None]:
    """The part of each cell that counts; None: it has no number."""
    found: dict[int, Interval | None] = {}
    for cell in span.windows(interval):
        whole = span.start <= cell and cell + interval <= span.end
        part = Interval(max(cell, span.start), min(cell + interval, span.end))
        if whole or edges != "exclude":
            found[cell] = part if whole or edges == "include" else None
    return found


def admitted(played: Story) -> dict[str, set[str | None]]:
    """By tenant, the first two sites."""
    sites: dict[str, list[str | None]] = {}
    for event in played.events:
        known = sites.setdefault(event.who, [])
        if event.site not in known and len(known) < 2:
            known.append(event.site)
    return {who: set(known) for who, known in sites.items()}


def summary(events: list[Event]) -> tuple:
    """count, sum(ms), min(ms), max(ms)"""
    values = [event.ms for event in events if event.ms is not None]
    return len(events), sum(values), min(values, default=None), max(values, default=None)


def ends(events: list[Event]) -> tuple:
    valued = sorted((event.at, event.id, event.ms) for event in events if event.ms is not None)
    return (valued[0][2], valued[-1][2]) if valued else (None, None)


def median(events: list[Event]) -> Decimal | None:
    values = [event.ms for event in events if event.ms is not None]
    if not values:
        return None
    bins = log_scaled(Decimal("0.01"))
    found = percentile(bins, Counter(map(bins.of, values)), Fraction(1, 2), min(values), max(values))
    return Decimal(round(found * 10**6)).scaleb(-6)


def grouped(events: list[Event], by: str | None) -> dict[tuple, list[Event]]:
    found: dict[tuple, list[Event]] = {} if by else {(): []}
    for event in events:
        found.setdefault((getattr(event, by),) if by else (), []).append(event)
    return found


CASES = {
    "made": ("count, sum(ms), min(ms), max(ms)", summary),
    "speed": ("first, last", ends),
    "delay": ("p50", lambda events: (median(events),)),
}


@examples(40, shrink=False)
@given(
    drawn=SPAN,
    interval=st.integers(0, len(INTERVALS) - 1),
    edges=st.sampled_from(["include", "exclude", "null"]),
    tenant=TENANTS,
    by=st.sampled_from([None, "site"]),
    metric=st.sampled_from(sorted(CASES)),
)
def test_events_of_any_span(played, drawn, interval, edges, tenant, by, metric):
    span = span_of(played, drawn)
    interval = interval_of(interval, span)
    values, made = CASES[metric]
    events = [event for event in chosen(played, tenant) if span.holds(event.at)]
    group = f"GROUP BY {by}" if by else ""
    text = f"SELECT {values} FROM plant.{metric} {between(span)} {group}"
    total = asked(played, text, tenant)
    wanted = {key: made(found) for key, found in grouped(events, by).items()}
    width = 1 if by else 0
    for row in rows_of(total):
        none = (None,) * (len(row) - width)
        assert row[width:] == (none if total.completeness.missing else wanted[row[:width]])
    if not total.completeness.missing:
        assert len(total.table) == len(wanted)

    answer = asked(played, f"{text} INTERVAL {format_duration(interval)} EDGES {edges}", tenant)
    parts = cells_of(span, interval, edges)
    found = {row[: 1 + width]: row[1 + width :] for row in rows_of(answer)}
    for (cell, *key), row in found.items():
        part = parts[cell]
        if part is None or is_gone(answer, part):
            assert set(row) == {None}
        else:
            inside = [event for event in events if part.holds(event.at)]
            assert row == made(grouped(inside, by)[tuple(key)])
    for cell, part in parts.items():
        if part is not None and not is_gone(answer, part):
            inside = [event for event in events if part.holds(event.at)]
            assert {(cell, *key) for key in grouped(inside, by) if inside} <= found.keys()


@examples(30, shrink=False)
@given(drawn=SPAN, tenant=TENANTS)
def test_limited_keys_and_ratios_of_any_span(played, drawn, tenant):
    span = span_of(played, drawn)
    known = admitted(played)
    events = [event for event in chosen(played, tenant) if span.holds(event.at)]
    keys = Counter(event.site if event.site in known[event.who] else "__other__" for event in events)
    answer = asked(played, f"SELECT count FROM plant.few {between(span)} GROUP BY site", tenant)
    if not answer.completeness.missing:
        assert dict(rows_of(answer)) == dict(keys)
    ratio = asked(played, f"SELECT ratio FROM plant.share {between(span)}", tenant)
    expected = None if ratio.completeness.missing or not events else 1
    assert rows_of(ratio) == [(expected,)]


def changes_of(events: list[Event]) -> list[tuple[int, str | None, str, int]]:
    """By how many the objects in a state change, and when: at, site, state, by."""
    found = []
    last: dict[tuple[str, str], Event] = {}
    for event in sorted(events, key=lambda event: (event.at, event.id)):
        before = last.get((event.who, event.order))
        if before is None or (before.status, before.site) != (event.status, event.site):
            if before is not None:
                found.append((event.at, before.site, before.status, -1))
            found.append((event.at, event.site, event.status, 1))
        last[event.who, event.order] = event
    return found


@examples(40, shrink=False)
@given(
    drawn=SPAN,
    interval=st.integers(0, len(INTERVALS) - 1),
    edges=st.sampled_from(["include", "exclude", "null"]),
    tenant=TENANTS,
    by=st.sampled_from(["state", "site"]),
)
def test_states_of_any_span(played, drawn, interval, edges, tenant, by):
    span = span_of(played, drawn)
    interval = interval_of(interval, span)
    changes = [
        (at, site if by == "site" else state, n) for at, site, state, n in changes_of(chosen(played, tenant))
    ]

    def at_the_end_of(end: int) -> dict[object, int]:
        stood: Counter[object] = Counter()
        for at, key, count in changes:
            if at < end:
                stood[key] += count
        return {key: count for key, count in stood.items() if count}

    text = f"SELECT states FROM plant.orders {between(span)} GROUP BY {by}"
    total = asked(played, text, tenant)
    if not total.completeness.missing:
        assert dict(rows_of(total)) == at_the_end_of(span.end)
    else:
        assert {row[1] for row in rows_of(total)} <= {None}
    answer = asked(played, f"{text} INTERVAL {format_duration(interval)} EDGES {edges}", tenant)
    parts = cells_of(span, interval, edges)
    found: dict[int, dict[object, int | None]] = {cell: {} for cell in parts}
    for cell, key, states in rows_of(answer):
        found[cell][key] = states
    known = 0
    for cell, part in parts.items():
        if part is None:
            assert set(found[cell].values()) <= {None}
        elif set(found[cell].values()) != {None} or not is_gone(answer, part):
            known += 1
            stood = {key: count for key, count in found[cell].items() if count != 0}
            assert stood == at_the_end_of(part.end)
    if not answer.completeness.missing:
        assert known == sum(part is not None for part in parts.values())


@examples(20, shrink=False)
@given(drawn=SPAN, tenant=TENANTS)
def test_transitions_of_any_span(played, drawn, tenant):
    span = span_of(played, drawn)
    last: dict[tuple[str, str], str] = {}
    count = 0
    for event in sorted(chosen(played, tenant), key=lambda event: (event.at, event.id)):
        count += span.holds(event.at) and last.get((event.who, event.order)) != event.status
        last[event.who, event.order] = event.status
    answer = asked(played, f"SELECT transitions FROM plant.orders {between(span)}", tenant)
    assert rows_of(answer) == [(None if answer.completeness.missing else count,)]


def test_what_has_expired_is_read_from_the_level_that_has_it(played):
    """In the story that expires: 5s is kept 10 days, raw 20, 1m 25 and 1h 45."""
    days = Interval(START, START + 3 * DAY)
    whole = [event for event in played.events if days.holds(event.at)]
    aligned = asked(played, f"SELECT count FROM plant.made {between(days)}", None)
    assert (rows_of(aligned), aligned.completeness.missing) == ([(len(whole),)], ())
    inner = Interval(START + 7 * HOUR, START + 3 * DAY - 1)
    total = asked(played, f"SELECT count FROM plant.made {between(inner)}", None)
    daily = asked(played, f"SELECT count FROM plant.made {between(inner)} INTERVAL 1d FILL zero", None)
    if not played.expires:
        count = sum(inner.holds(event.at) for event in played.events)
        assert rows_of(total) == [(count,)]
        assert sum(row[1] for row in rows_of(daily)) == count
        return
    day = Interval(START + DAY, START + 2 * DAY)
    counted = sum(day.holds(event.at) for event in played.events)
    assert [row[1] for row in rows_of(daily)] == [None, counted, None]
    assert rows_of(total) == [(None,)]
    for answer in (total, daily):
        gone = [(one.span, one.why) for one in answer.completeness.missing]
        assert gone == [
            (Interval(inner.start, START + DAY), "expired"),
            (Interval(START + 2 * DAY, inner.end), "expired"),
        ]
        assert not answer.completeness.complete


def test_states_are_known_where_a_cell_ends_on_a_bucket_that_is_kept(played):
    """Wherever the span starts: all that counts is what was before the end."""
    span = Interval(START + 7 * HOUR + 1, START + 3 * DAY)
    changes = changes_of(played.events)
    for days in (1, 3):
        text = f"SELECT states FROM plant.orders {between(span)} INTERVAL {days}d"
        for cell, states in rows_of(asked(played, text, None)):
            assert states == sum(
                count for at, _, _, count in changes if at < min(cell + days * DAY, span.end)
            )
