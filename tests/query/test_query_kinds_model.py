"""Gauges, percentiles, states and ratios of any events are what plain Python makes of them."""

from __future__ import annotations

import itertools
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.metrics import bounded, log_scaled, percentile
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
from tidemill.query.percentiles import estimated

BASE = parse_instant("2024-01-01T10:00:00Z")
QUANTILES = {"p1": Fraction(1, 100), "p50": Fraction(1, 2), "p99.9": Fraction(999, 1000), "p100": Fraction(1)}
SIGHT = st.tuples(
    st.integers(-400, 800),  # quarters of a minute around BASE
    st.sampled_from(["eu", "us", None]),
    st.sampled_from([True, False, None]),
    st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(-5000, 5000).map(lambda cents: Decimal(cents).scaleb(-2)),
    st.sampled_from("abc"),
    st.sampled_from(["NEW", "WORK", "DONE", None]),
    st.sampled_from(["acme", "umbra"]),
)
SETTINGS = examples(40)


def exact(number: Fraction, digits: int) -> Decimal:
    with localcontext() as context:
        context.prec = 80
        scaled = round(number * 10**digits)  # half to even
        return Decimal(scaled).scaleb(-digits)


def made(kit, tmp_path_factory, events):
    sights = [
        kit.Sight(
            BASE + at * 15_000_001, f"e{(i * 7) % 100:03}", region, 1, ok, latency, temp, order, status, who
        )
        for i, (at, region, ok, latency, temp, order, status, who) in enumerate(events)
    ]
    return sights, kit.Questions(kit.Shelf(tmp_path_factory.mktemp("kinds")).put(sights))


def rows_of(desk, text, tenant):
    table = desk.ask(text, tenant).table
    if "bucket" in table.column_names:
        table = table.set_column(0, "bucket", table.column("bucket").cast(pa.int64()))
    return [tuple(row.values()) for row in table.to_pylist()]


def in_order(rows, keys):
    return sorted(rows, key=lambda row: [(value is None, value) for value in row[:keys]])


@SETTINGS
@given(
    events=st.lists(SIGHT, min_size=1, max_size=40),
    interval=st.sampled_from([5 * SECOND, MINUTE, 7 * MINUTE, HOUR, 3 * HOUR, DAY]),
    tenant=st.none() | st.just("acme"),
)
def test_gauges_and_percentiles(tmp_path_factory, kit, events, interval, tenant):
    sights, desk = made(kit, tmp_path_factory, events)
    own = [e for e in sights if tenant in (None, e.tenant)]
    groups: dict = {}
    for e in own:
        groups.setdefault((align(e.at, interval), e.region), []).append(e)
    every = format_duration(interval)
    wanted = []
    for key, members in groups.items():
        ordered = sorted((e for e in members if e.temp is not None), key=lambda e: (e.at, e.id, e.temp))
        temps = [e.temp for e in ordered]
        mean = exact(Fraction(sum(temps)) / len(temps), 8) if temps else None
        ends = (temps[0], temps[-1]) if temps else (None, None)
        wanted.append((*key, *ends, min(temps, default=None), max(temps, default=None), mean, len(temps)))
    text = f"SELECT first, value, min, max, avg, count FROM plant.heat INTERVAL {every} GROUP BY region"
    assert rows_of(desk, text, tenant) == in_order(wanted, 2)

    for metric, field, scale in (("delay", "latency", 0), ("warmth", "temp", 2)):
        bins = kit.PLANT.metrics[metric].bins(scale)
        wanted = []
        for key, members in groups.items():
            samples = [int(getattr(e, field) * 10**scale) for e in members if getattr(e, field) is not None]
            held = Counter(map(bins.of, samples))
            found = [
                exact(percentile(bins, held, q, min(samples), max(samples)) / 10**scale, scale + 6)
                if samples
                else None
                for q in QUANTILES.values()
            ]
            wanted.append((*key, *found))
        text = f"SELECT {', '.join(QUANTILES)} FROM plant.{metric} INTERVAL {every} GROUP BY region"
        assert rows_of(desk, text, tenant) == in_order(wanted, 2)
    desk.querier.close()


@SETTINGS
@given(
    events=st.lists(SIGHT, min_size=1, max_size=40),
    bounds=st.none() | st.tuples(st.integers(-60, 60), st.integers(0, 120)),
    interval=st.sampled_from([5 * SECOND, MINUTE, 7 * MINUTE, HOUR, DAY]),
    edges=st.sampled_from(["include", "exclude", "null"]),
    by_state=st.booleans(),
    tenant=st.none() | st.just("acme"),
)
def test_states(tmp_path_factory, kit, events, bounds, interval, edges, by_state, tenant):
    sights, desk = made(kit, tmp_path_factory, events)
    changed = [
        (e.at, (region, state)[by_state], count)
        for region, e, state, _, _, count in kit.changes(sights)
        if state is not None and tenant in (None, e.tenant)
    ]
    group = "state" if by_state else "region"
    if bounds:
        start = BASE + bounds[0] * 77_123_457
        span = Interval(start, start + bounds[1] * 77 * SECOND)
    else:
        span = None
    time = f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}" if span else ""
    text = f"SELECT states FROM plant.orders {time} INTERVAL {format_duration(interval)} GROUP BY {group}"
    found = rows_of(desk, f"{text} EDGES {edges}", tenant)
    if span is None:
        cells = sorted({row[0] for row in found})
        read = Interval(cells[0], cells[-1] + interval) if cells else Interval(0, 0)
        hidden = set()
    else:
        if edges == "exclude":
            start = -(-span.start // interval) * interval
            read = Interval(start, max(start, align(span.end, interval)))
            cells, hidden = list(read.windows(interval)), set()
        elif edges == "include":
            read = span
            cells, hidden = list(read.windows(interval)), set()
        else:
            read = span
            cells = list(span.windows(interval))
            hidden = {c for c in cells if c < span.start or c + interval > span.end}
    wanted = {
        (cell, key): sum(n for at, k, n in changed if k == key and at < min(cell + interval, read.end))
        for cell, key in itertools.product(cells, {key for _, key, _ in changed})
    }
    assert {row[:2] for row in found} <= wanted.keys()
    assert len(found) == len({row[:2] for row in found})
    for cell, key, states in found:
        assert states == (None if cell in hidden else wanted[cell, key])
    shown = {key for _, key, _ in found}
    assert shown == {key for (_, key), stood in wanted.items() if stood}
    assert len(found) == len(cells) * len(shown)

    ends = read.end if span and read.start < read.end else None
    if ends is not None:
        time = f"BETWEEN {format_instant(read.start)} AND {format_instant(ends)}"
        total = rows_of(desk, f"SELECT states FROM plant.orders {time} GROUP BY {group}", tenant)
        stood = Counter()
        for at, key, count in changed:
            stood[key] += count if at < ends else 0
        assert dict(total) == {key: count for key, count in stood.items() if count}
    desk.querier.close()


@given(
    st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_an_estimate_is_that_of_the_rule(sample, rank, count, under, over, log):
    bins = log_scaled(Decimal("0.01")) if log else bounded([Decimal(-100), Decimal(0), Decimal(250)], 0)
    least, most = sample - under, sample + over
    rank = min(rank, count)
    bin = bins.of(sample)
    assert estimated(bins, bin, rank, count, least, most) == round(
        bins.estimate(bin, rank, count, least, most) * 10**6
    )
