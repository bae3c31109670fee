"""State metrics: what observations of objects add to the rollups, in whatever order and batches they come."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.levels import BASE
from tidemill.model.metrics import CHANGE, NONE_STATE, MetricKind, TransitionRule
from tidemill.model.time import MINUTE, SECOND
from tidemill.outputs.rollups.observations import in_order, observed, positioned
from tidemill.outputs.rollups.spec import Dimension, Filter, Following, Metric
from tidemill.outputs.rollups.transitions import signed_cells, state_cells, touched_by, union_of

START = 1_704_067_200 * SECOND
RULES = (
    TransitionRule(CHANGE),
    TransitionRule("any", from_last=False),
    TransitionRule("blocked", from_last=False, from_states=("a", "b"), to=("c",)),
    TransitionRule("closing", to=("c", "d"), until=("d",)),
    TransitionRule("ever", from_last=False, until=("c",)),
)
LOCAL = (TransitionRule(CHANGE), TransitionRule("to_c", to=("c",)))


def metric_of(rules: Sequence[TransitionRule], dimensions: int = 1) -> Metric:
    return Metric(
        name="orders",
        kind=MetricKind.STATE,
        dimensions=(Dimension("region", "string", 2), Dimension("vip", "boolean", 3))[:dimensions],
        following=Following(0, "string", 1, "string", tuple(rules)),
    )


class Seen(NamedTuple):
    """One event."""

    object: str | None
    state: str | None
    time: int
    id: str
    region: str | None = None
    seq: int = 1
    tenant: str = "acme"


def events_of(seen: Iterable[Seen]) -> pa.Table:
    rows = list(seen)
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.table(
        {
            "tenant": pa.array([r.tenant for r in rows], text),
            "event_time": pa.array([r.time for r in rows], pa.timestamp("us", "UTC")),
            "event_id": pa.array([r.id for r in rows], pa.string()),
            "slice": pa.array([f"s{r.seq}" for r in rows], text),
            "line": pa.array(range(len(rows)), pa.int64()),
            "d0": pa.array([r.object for r in rows], text),
            "d1": pa.array([r.state for r in rows], text),
            "d2": pa.array([r.region for r in rows], text),
            "d3": pa.array([r.region == "eu" for r in rows], pa.bool_()),
        }
    )


def observations_of(metric: Metric, seen: Iterable[Seen]) -> pa.Table:
    rows = list(seen)
    return in_order(positioned(observed(metric, events_of(rows)), {f"s{r.seq}": r.seq for r in rows}))


def counts_of(cells: pa.Table) -> Counter[tuple[object, ...]]:
    out: Counter[tuple[object, ...]] = Counter()
    for row in cells.to_pylist():
        count = row.pop("count")
        assert count != 0
        key = tuple(row.values())
        assert key not in out
        out[key] = count
    return out


def naive(metric: Metric, seen: Iterable[Seen]) -> Counter[tuple[object, ...]]:
    """The rules as they are written, one observation after the other."""
    assert metric.following is not None
    out: Counter[tuple[object, ...]] = Counter()
    by_object: dict[tuple[str, str], list[Seen]] = {}
    for each in seen:
        if each.object is not None and each.state is not None:
            by_object.setdefault((each.tenant, each.object), []).append(each)
    for rows in by_object.values():
        rows.sort(key=lambda r: (r.time, r.id))
        for i, now in enumerate(rows):
            last = rows[i - 1] if i else None
            bucket = now.time - now.time % BASE.width
            dims = (now.region, now.region == "eu")[: len(metric.dimensions)]
            if last is None or (last.state, last.region) != (now.state, now.region):
                out[(now.tenant, *dims, now.state, None, None, None, bucket)] += 1
                if last is not None:
                    gone = (last.region, last.region == "eu")[: len(metric.dimensions)]
                    out[(now.tenant, *gone, last.state, None, None, None, bucket)] -= 1
            if last is not None and last.state == now.state:
                continue
            for rule in metric.following.rules:
                if rule.to is not None and now.state not in rule.to:
                    continue
                if any(r.state in rule.until for r in rows[:i]):
                    continue
                if rule.from_last:
                    froms = {NONE_STATE if last is None else str(last.state)}
                else:
                    froms = {str(r.state) for r in rows[:i]} - {str(now.state)}
                    froms = {f for f in froms if rule.from_states is None or f in rule.from_states}
                for state in froms:
                    out[(now.tenant, *dims, None, rule.name, state, now.state, bucket)] += 1
    return Counter({key: count for key, count in out.items() if count})


def merged(parts: Iterable[Counter[tuple[object, ...]]]) -> Counter[tuple[object, ...]]:
    out: Counter[tuple[object, ...]] = Counter()
    for part in parts:
        for key, count in part.items():
            out[key] += count
    return Counter({key: count for key, count in out.items() if count})


def plain(cells: pa.Table) -> dict[tuple[object, ...], int]:
    """Without tenant and bucket."""
    out: Counter[tuple[object, ...]] = Counter()
    for row in cells.to_pylist():
        out[(row["state"], row["rule"], row["from"], row["to"])] += row["count"]
    return {key: count for key, count in out.items() if count}


M5 = [
    Seen("o", "ACTIVE", START, "1"),
    Seen("o", "ACTIVE", START + MINUTE, "2"),
    Seen("o", "BLOCKED", START + 2 * MINUTE, "3"),
]


def test_m5_first_sight_no_change_and_a_change() -> None:
    metric = metric_of(LOCAL, 0)
    first = (None, CHANGE, NONE_STATE, "ACTIVE")
    assert plain(state_cells(metric, observations_of(metric, M5[:1]))) == {
        ("ACTIVE", None, None, None): 1,
        first: 1,
    }
    assert plain(state_cells(metric, observations_of(metric, M5[:2]))) == {
        ("ACTIVE", None, None, None): 1,
        first: 1,
    }
    assert plain(state_cells(metric, observations_of(metric, M5))) == {
        ("BLOCKED", None, None, None): 1,
        first: 1,
        (None, CHANGE, "ACTIVE", "BLOCKED"): 1,
    }


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_m6_any_order_of_arrival_gives_the_same(order: tuple[int, ...]) -> None:
    metric = metric_of(LOCAL, 0)
    parts = []
    before = observations_of(metric, [])
    for seq, at in enumerate(order, start=1):
        added = observations_of(metric, [M5[at]._replace(seq=seq)])
        parts.append(counts_of(signed_cells(metric, *union_of(before, added))))
        before = union_of(before, added)[0]
    assert merged(parts) == counts_of(state_cells(metric, observations_of(metric, M5)))


def test_two_changes_within_5s_are_two_transitions() -> None:
    metric = metric_of(LOCAL, 0)
    seen = [Seen("o", "a", START, "1"), Seen("o", "b", START + 1, "2"), Seen("o", "a", START + 2, "3")]
    cells = state_cells(metric, observations_of(metric, seen))
    assert set(cells.column("bucket").to_pylist()) == {START}
    assert plain(cells) == {
        ("a", None, None, None): 1,
        (None, CHANGE, NONE_STATE, "a"): 1,
        (None, CHANGE, "a", "b"): 1,
        (None, CHANGE, "b", "a"): 1,
    }


def test_an_object_that_moves_to_another_key_is_no_transition() -> None:
    metric = metric_of(LOCAL)
    seen = [Seen("o", "a", START, "1", "eu"), Seen("o", "a", START + MINUTE, "2", "us")]
    assert counts_of(state_cells(metric, observations_of(metric, seen))) == {
        ("acme", "eu", "a", None, None, None, START): 1,
        ("acme", "eu", None, CHANGE, NONE_STATE, "a", START): 1,
        ("acme", "eu", "a", None, None, None, START + MINUTE): -1,
        ("acme", "us", "a", None, None, None, START + MINUTE): 1,
    }


def test_equal_times_are_ordered_by_event_id() -> None:
    metric = metric_of(LOCAL, 0)
    seen = [Seen("o", "b", START, "2"), Seen("o", "c", START, "10"), Seen("o", "a", START, "1")]
    table = observations_of(metric, seen)
    assert table.column("event_id").to_pylist() == ["1", "10", "2"]
    assert (None, CHANGE, "c", "b") in plain(state_cells(metric, table))


def test_only_events_that_pass_and_say_object_and_state_are_followed() -> None:
    condition = parse_condition("region = 'eu'").condition
    metric = replace(metric_of(LOCAL), filter=Filter(condition, (("region", "d2", 0),)))
    seen = [
        Seen("o", "a", START, "1", "eu"),
        Seen("o", "b", START + 1, "2", "us"),
        Seen(None, "b", START + 2, "3", "eu"),
        Seen("o", None, START + 3, "4", "eu"),
        Seen("o", "c", START + 4, "5", "eu"),
    ]
    table = observations_of(metric, seen)
    assert table.column("event_id").to_pylist() == ["1", "5"]
    assert table.column("time").to_pylist() == [START, START + 4]


def test_numbers_and_booleans_are_objects_and_states_by_their_json_text() -> None:
    metric = replace(metric_of(LOCAL, 0), following=Following(0, "integer", 1, "boolean", LOCAL))
    events = events_of([Seen("x", "y", START, "1")])
    events = events.set_column(events.schema.get_field_index("d0"), "d0", pa.array([7], pa.int64()))
    events = events.set_column(events.schema.get_field_index("d1"), "d1", pa.array([True]))
    table = observed(metric, events)
    assert table.column("state").to_pylist() == ["true"]
    assert table.select(["high", "low"]).equals(
        observed(metric_of(LOCAL, 0), events_of([Seen("7", "y", START, "1")])).select(["high", "low"])
    )


def test_tenants_and_metrics_have_objects_of_their_own() -> None:
    metric = metric_of(LOCAL, 0)
    seen = [Seen("o", "a", START, "1"), Seen("o", "b", START + 1, "2", tenant="other")]
    keys = observations_of(metric, seen).column("high").to_pylist()
    keys += observations_of(replace(metric, name="else"), seen).column("high").to_pylist()
    assert len(set(keys)) == 4
    cells = plain(state_cells(metric, observations_of(metric, seen)))
    assert cells[(None, CHANGE, NONE_STATE, "b")] == 1


@st.composite
def many_seen(draw: st.DrawFn) -> list[Seen]:
    count = draw(st.integers(1, 40))
    rows = [
        Seen(
            draw(st.sampled_from(["o", "p", "q", None])),
            draw(st.sampled_from(["a", "b", "c", "d", None])),
            START + draw(st.sampled_from([0, 1, SECOND, 6 * SECOND, MINUTE, 20 * MINUTE, 45 * MINUTE])),
            f"{i:03d}",
            draw(st.sampled_from(["eu", "us", None])),
            tenant=draw(st.sampled_from(["acme", "zeta"])),
        )
        for i in range(count)
    ]
    return draw(st.permutations(rows))


@examples(150)
@given(many_seen(), st.sampled_from([RULES, LOCAL]), st.integers(0, 2))
def test_cells_are_what_the_rules_say(
    seen: list[Seen], rules: tuple[TransitionRule, ...], dimensions: int
) -> None:
    metric = metric_of(rules, max(1, dimensions))
    assert counts_of(state_cells(metric, observations_of(metric, seen))) == naive(metric, seen)


@examples(100)
@given(many_seen(), st.sampled_from([RULES, LOCAL]), st.lists(st.integers(0, 40), max_size=5))
def test_contributions_of_batches_cut_anywhere_add_up(
    seen: list[Seen], rules: tuple[TransitionRule, ...], cuts: list[int]
) -> None:
    metric = metric_of(rules)
    edges = sorted({0, len(seen), *(min(cut, len(seen)) for cut in cuts)})
    parts = []
    before = observations_of(metric, [])
    for seq, (first, last) in enumerate(itertools.pairwise(edges), start=1):
        added = observations_of(metric, [each._replace(seq=seq) for each in seen[first:last]])
        parts.append(counts_of(signed_cells(metric, *union_of(before, added))))
        before = union_of(before, added)[0]
    assert merged(parts) == naive(metric, seen)


def naive_touched(metric: Metric, seen: Sequence[Seen]) -> set[tuple[int, int]]:
    """Slices one after the other: tiles in which rows of earlier slices' observations changed by each."""
    assert metric.following is not None
    out: set[tuple[int, int]] = set()
    for seq in sorted({each.seq for each in seen}):
        old = [each for each in seen if each.seq < seq]
        now = [each for each in seen if each.seq <= seq]
        for each in old:
            rivals = [n for n in now if (n.tenant, n.object) == (each.tenant, each.object) and n.state]
            earlier = [n for n in rivals if (n.time, n.id) < (each.time, each.id)]
            if not each.object or not each.state or not earlier:
                continue
            nearest = max(earlier, key=lambda n: (n.time, n.id))
            if nearest.seq == seq or (not metric.following.is_local and any(n.seq == seq for n in earlier)):
                out.add((BASE.tile_of(each.time), seq))
    return out


@examples(150)
@given(many_seen(), st.sampled_from([RULES, LOCAL]), st.integers(1, 6), st.randoms(use_true_random=False))
def test_touched_tiles_do_not_depend_on_batches(
    seen: list[Seen], rules: tuple[TransitionRule, ...], slices: int, chance: random.Random
) -> None:
    metric = metric_of(rules)
    seen = [each._replace(seq=chance.randint(1, slices)) for each in seen]
    wanted = naive_touched(metric, seen)
    all_new = observations_of(metric, seen)
    tiles, places = touched_by(metric, all_new, np.ones(all_new.num_rows, np.bool_))
    assert set(zip(tiles.tolist(), places.tolist(), strict=True)) == wanted
    found: set[tuple[int, int]] = set()
    cut = chance.randint(1, slices)
    before = observations_of(metric, [each for each in seen if each.seq < cut])
    new = np.ones(before.num_rows, np.bool_)
    found |= set(zip(*(column.tolist() for column in touched_by(metric, before, new)), strict=True))
    union, new = union_of(before, observations_of(metric, [each for each in seen if each.seq >= cut]))
    found |= set(zip(*(column.tolist() for column in touched_by(metric, union, new)), strict=True))
    assert found == wanted
