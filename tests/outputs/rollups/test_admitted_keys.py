"""`max_cardinality`: the first keys in the ledger are admitted, in whatever batches; totals stay."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.metrics import OTHER, MetricKind
from tidemill.outputs.rollups.admitted_keys import AdmittedKeys, keys_of
from tidemill.outputs.rollups.observations import positioned
from tidemill.outputs.rollups.spec import Dimension, Filter, Metric, RollupSpec

TEXT = pa.dictionary(pa.int32(), pa.string())


class Came(NamedTuple):
    seq: int
    line: int
    key: str | None
    number: int | None = None
    tenant: str = "acme"


def metric_of(limit: int = 2, condition: str | None = None) -> Metric:
    return Metric(
        name="requests",
        kind=MetricKind.COUNTER,
        dimensions=(Dimension("path", "string", 0), Dimension("status", "integer", 1)),
        filter=Filter(parse_condition(condition).condition, (("status", "d1", 0),)) if condition else None,
        limit=limit,
    )


def events_of(came: Iterable[Came]) -> pa.Table:
    rows = list(came)
    return pa.table(
        {
            "tenant": pa.array([r.tenant for r in rows], TEXT),
            "event_time": pa.array([0] * len(rows), pa.int64()),
            "slice": pa.array([f"s{r.seq}" for r in rows], TEXT),
            "line": pa.array([r.line for r in rows], pa.int64()),
            "d0": pa.array([r.key for r in rows], TEXT),
            "d1": pa.array([r.number for r in rows], pa.int64()),
        }
    )


def roster_of(metric: Metric, batches: Sequence[Sequence[Came]]) -> AdmittedKeys:
    roster = AdmittedKeys.of(RollupSpec("s", (metric,)))
    for came in batches:
        found = positioned(keys_of(metric, events_of(came)), {f"s{r.seq}": r.seq for r in came})
        roster = roster.grown({metric.name: found})
    return roster


def admitted(roster: AdmittedKeys) -> set[tuple[str, str | None, int | None]]:
    return {(r["tenant"], r["k0"], r["k1"]) for r in roster.keys("requests").to_pylist()}


def cells_of(came: Iterable[Came]) -> pa.Table:
    rows = list(came)
    return pa.table(
        {
            "tenant": pa.array([r.tenant for r in rows], TEXT),
            "k0": pa.array([r.key for r in rows], TEXT),
            "k1": pa.array([r.number for r in rows], pa.int64()),
            "count": pa.array([1] * len(rows), pa.int64()),
        }
    )


def test_the_first_keys_in_the_ledger_are_admitted_not_the_first_that_are_handed_in() -> None:
    came = [Came(2, 0, "late"), Came(1, 9, "b"), Came(1, 3, "a"), Came(1, 4, "a")]
    roster = roster_of(metric_of(2), [came])
    assert admitted(roster) == {("acme", "a", None), ("acme", "b", None)}
    places = {r["k0"]: (r["seq"], r["line"]) for r in roster.keys("requests").to_pylist()}
    assert places == {"a": (1, 3), "b": (1, 9)}


def test_a_key_is_a_combination_and_each_tenant_has_its_own_limit() -> None:
    came = [Came(1, 0, "a", 1), Came(1, 1, "a", 2), Came(1, 2, "a", 3), Came(1, 3, "a", 3, "other")]
    assert admitted(roster_of(metric_of(2), [came])) == {
        ("acme", "a", 1),
        ("acme", "a", 2),
        ("other", "a", 3),
    }


def test_only_events_that_the_metric_counts_take_a_place() -> None:
    came = [Came(1, 0, "a", 200), Came(1, 1, "b", 500), Came(1, 2, "c", None)]
    assert admitted(roster_of(metric_of(2, "status >= 500"), [came])) == {("acme", "b", 500)}


def test_what_is_not_admitted_counts_under_the_other_key() -> None:
    roster = roster_of(metric_of(2), [[Came(1, 0, "a", 1), Came(1, 1, None, None)]])
    given_cells = [
        Came(0, 0, "a", 1),
        Came(0, 0, "a", 2),
        Came(0, 0, "x", 1),
        Came(0, 0, None),
        Came(0, 0, "a", 1, "new"),
    ]
    out = roster.admit({"requests": cells_of(given_cells), "free": cells_of(given_cells)})
    assert [(r["k0"], r["k1"]) for r in out["requests"].to_pylist()] == [
        ("a", 1), (OTHER, None), (OTHER, None), (None, None), (OTHER, None),
    ]  # fmt: skip
    assert out["requests"].column("count").equals(cells_of(given_cells).column("count"))
    assert out["free"].equals(cells_of(given_cells))
    assert out["requests"].schema.equals(cells_of(given_cells).schema)


def test_what_came_before_a_place_in_the_ledger_is_found_again() -> None:
    batches = [[Came(1, 0, "a")], [Came(2, 0, "b")], [Came(3, 0, "c")]]
    whole = roster_of(metric_of(3), batches)
    assert admitted(whole.before(3)) == admitted(roster_of(metric_of(3), batches[:2]))
    assert admitted(whole.before(1)) == set()


def test_a_roster_can_be_sent_to_a_task() -> None:
    roster = roster_of(metric_of(2), [[Came(1, 0, "a", 1)]])
    again = pickle.loads(pickle.dumps(roster))  # noqa: S301 - our own
    assert admitted(again) == admitted(roster)


@pytest.mark.parametrize("tenants", [["acme"], ["acme", "other"]])
def test_it_says_when_no_key_can_be_admitted_any_more(tenants: list[str]) -> None:
    roster = roster_of(metric_of(1), [[Came(1, 0, "a")]])
    assert roster.is_full_for("requests", tenants) == (tenants == ["acme"])


came_many = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from(["a", "b", "c", "d", "e", None, OTHER]),
        st.sampled_from([1, 2, None]),
        st.sampled_from(["acme", "other"]),
    ),
    min_size=1,
    max_size=40,
)


@examples(120)
@given(came_many, st.integers(1, 5), st.integers(1, 5))
def test_any_cut_into_batches_gives_the_roster_of_the_ledger(
    rows: list[tuple[int, str | None, int | None, str]], limit: int, cut: int
) -> None:
    came = [Came(seq, line, key, number, tenant) for line, (seq, key, number, tenant) in enumerate(rows)]
    wanted: set[tuple[str, str | None, int | None]] = set()
    for each in sorted(came, key=lambda c: (c.seq, c.line)):
        if len({k for k in wanted if k[0] == each.tenant}) < limit:
            wanted.add((each.tenant, each.key, each.number))
    batches = [[c for c in came if c.seq <= cut], [c for c in came if c.seq > cut]]
    roster = roster_of(metric_of(limit), [batch for batch in batches if batch])
    assert admitted(roster) == wanted
    assert admitted(roster_of(metric_of(limit), [came])) == wanted
    renamed = roster.renamed("requests", cells_of(came)).to_pylist()
    for each, row in zip(came, renamed, strict=True):
        known = (each.tenant, each.key, each.number) in wanted
        assert (row["k0"], row["k1"]) == ((each.key, each.number) if known else (OTHER, None))
