"""Dimensions, measures and metrics can be removed and declared with another type at any time."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemill import Mill
from tidemill.model.time import DAY, HOUR, format_instant, from_datetime, parse_instant
from tidemill.storage import layout

PROJECT = """
version: 1
streams:
  s:
    schema: {{id: string, at: string, api: string, code: integer, n: {n}}}
    identity: id
    event_time: {{column: at, type: iso8601}}
    metrics: {metrics}
"""
EVENTS = [("a", "x", 1, 5), ("b", "x", 2, 7), ("c", "y", 2, 0)]  # id, api, code, n


def declared(
    root: Path, metrics: str, query: str, n: str = "integer"
) -> tuple[list[dict[str, object]], list[str]]:
    """What the query says after a round with this declaration, and the columns of the table."""
    (root / "tidemill.yaml").write_text(PROJECT.format(metrics=metrics, n=n))
    lines = [
        json.dumps({"id": id_, "at": "2024-01-01T00:00:00Z", "api": api, "code": code_, "n": n_})
        for id_, api, code_, n_ in EVENTS
    ]
    with Mill.open(root) as mill:
        mill.land("s", "\n".join(lines).encode())
        assert mill.tick().faults == []
        answer = mill.ask(query)
        assert answer.completeness.missing == ()
        assert mill.verify().ok
        shown = DeltaTable(str(layout.rollups(mill.project.warehouse, "s"))).to_pyarrow_table()
    return answer.table.to_pylist(), shown.column_names


def test_a_dimension_and_a_measure_are_removed_and_come_back(tmp_path: Path) -> None:
    by_api = "{c: {kind: counter, dimensions: [api], measures: [n]}, h: {kind: histogram, value: n}}"
    first, before = declared(tmp_path, by_api, "SELECT count, sum(n) FROM s.c GROUP BY api")
    assert first == [
        {"api": "x", "count": 2, "sum(n)": Decimal(12)},
        {"api": "y", "count": 1, "sum(n)": Decimal(0)},
    ]
    by_code = "{c: {kind: counter, dimensions: [code]}}"
    second, after = declared(tmp_path, by_code, "SELECT count FROM s.c GROUP BY code")
    assert second == [{"code": 1, "count": 1}, {"code": 2, "count": 2}]
    assert {"api", "n__sum", "histogram__bins"} <= set(before)
    assert sorted(after) == ["bucket", "code", "count", "level", "metric", "tenant"]
    assert declared(tmp_path, by_api, "SELECT count, sum(n) FROM s.c GROUP BY api") == (first, before)


def test_a_measure_is_declared_with_another_type(tmp_path: Path) -> None:
    metrics = "{c: {kind: counter, dimensions: [code], measures: [n]}}"
    declared(tmp_path, metrics, "SELECT count FROM s GROUP BY code")
    rows, shown = declared(
        tmp_path, metrics, "SELECT count, sum(n), min(n) FROM s", n="{type: decimal, scale: 2}"
    )
    assert rows == [{"count": 3, "sum(n)": Decimal("12.00"), "min(n)": Decimal("0.00")}]
    assert {"code", "n__count", "n__sum", "n__min", "n__max"} <= set(shown)
    with Mill.open(tmp_path) as mill:
        table = DeltaTable(str(layout.rollups(mill.project.warehouse, "s"))).to_pyarrow_table()
    assert table.schema.field("n__sum").type == pa.decimal128(38, 2)
    assert set(table.column("n__min").to_pylist()) == {Decimal("0.00"), Decimal("5.00")}


SEALED = """
version: 1
streams:
  s:
    schema: {{id: string, at: string, api: string, code: integer, n: integer, obj: string, st: string}}
    identity: id
    event_time: {{column: at, type: iso8601}}
    retention: {{raw: 10d}}
    metrics:
      states: {{kind: state, object: obj, state: st}}
      few: {{kind: counter, dimensions: [api], max_cardinality: 1}}
      {more}
"""
COUNTER = "c: {kind: counter, dimensions: [code]}"


def day(number: int) -> int:
    return parse_instant("2024-01-01T00:00:00Z") + (number - 1) * DAY


STATES = "states: {kind: state, object: api, state: code}"


def test_slices_that_only_changed_states_leave_the_tiles_with_them(tmp_path: Path) -> None:
    """A late slice changes the state that a later event found, in a tile where it has no rows."""
    declarations = [f"{{{STATES}, {COUNTER}}}", f"{{{COUNTER}}}", f"{{{STATES}, {COUNTER}}}"]
    for number, metrics in enumerate(declarations):
        (tmp_path / "tidemill.yaml").write_text(PROJECT.format(metrics=metrics, n="integer"))
        with Mill.open(tmp_path) as mill:
            for hour in (10, 9) if not number else ():
                event = {"id": str(hour), "at": f"2024-01-01T{hour:02}:00:00Z", "api": "x", "code": hour}
                mill.land("s", json.dumps(event).encode())
                mill.tick()
            mill.tick()
            first, last = (mill.state.base_tiles("s", [day(1) + hour * HOUR])[0] for hour in (9, 10))
            assert (len(first.desired), len(last.desired)) == (1, 1 if number == 1 else 2)
            assert (first.desired, last.desired) == (first.observed, last.observed)
            assert mill.verify().findings == []


def test_verify_names_what_makes_a_tile_right_that_no_slice_is_in(tmp_path: Path) -> None:
    """As former versions left it, once the metric was removed."""
    declared(tmp_path, f"{{{STATES}, {COUNTER}}}", "SELECT count FROM s.c")
    with Mill.open(tmp_path) as mill:
        late = {"id": "late", "at": "2023-12-31T00:00:00Z", "api": "x", "code": 3}
        added = mill.land("s", json.dumps(late).encode()).entry.id
        mill.tick()
        mill.state.touch_tiles("s", {day(1) - DAY: frozenset([mill.ledger()[-1].id])})
        mill.tick()
        (found, *_above) = mill.verify().findings
        assert (found.what, found.remedy) == ("tile", "tidemill rebuild s --rollups")
        assert added != mill.ledger()[-1].id
        mill.remake.rollups("s", None, None)
        assert mill.verify().findings == []


def seen(number: int, api: str, obj: str, state: str) -> bytes:
    at = format_instant(day(number))
    return json.dumps({"id": f"{number}-{obj}", "at": at, "api": api, "obj": obj, "st": state}).encode()


def of_a_sealed_time(root: Path, *declared: str) -> dict[str, object]:
    """Objects a and b are seen in the past, whose raw expires; then each declaration has a round of its own,
    with one more observation of a. What is known at the end."""
    now = [day(2)]
    texts = [SEALED.format(more=more) for more in declared]
    (root / "tidemill.yaml").write_text(texts[0])
    with Mill.open(root, clock=lambda: now[0]) as mill:
        mill.land("s", b"\n".join([seen(1, "first", "a", "NEW"), seen(1, "other", "b", "NEW")]))
        mill.tick()
        now[0] = day(30)
        mill.land("s", seen(29, "other", "a", "DONE"))
        mill.tick()
        mill.retention.expire(mill.retention.plan())
    for number, text in enumerate(texts, 30):
        (root / "tidemill.yaml").write_text(text)
        now[0] = day(number + 1)
        with Mill.open(root, clock=lambda: now[0]) as mill:
            mill.land("s", seen(number, "other", "a", f"AT{number}"))
            assert mill.tick().faults == []
            assert mill.verify().ok
    with Mill.open(root, clock=lambda: now[0]) as mill:
        states = mill.ask("SELECT states FROM s.states")
        few = mill.ask("SELECT count FROM s.few GROUP BY api")
        assert (states.completeness.missing, few.completeness.missing) == ((), ())
        changes = mill.query("SELECT transitions FROM s.states BETWEEN 2024-01-20 AND now").to_pylist()
        assert changes == [{"transitions": 1 + len(declared)}]  # none from (none)
        return {"states": states.table.to_pylist(), "few": few.table.to_pylist()}


def expected(observations: int) -> dict[str, object]:
    return {
        "states": [{"states": 2}],
        "few": [{"api": "__other__", "count": observations}, {"api": "first", "count": 1}],
    }


def test_states_go_on_when_another_metric_changes_after_raw_has_expired(tmp_path: Path) -> None:
    """The columns of events have other positions then."""
    declared = (COUNTER, "c: {kind: counter, dimensions: [code, n]}")
    assert of_a_sealed_time(tmp_path, *declared) == expected(2 + len(declared))


@pytest.mark.long
def test_states_go_on_when_metrics_that_look_back_come_and_go_after_raw_has_expired(tmp_path: Path) -> None:
    by_api = "c: {kind: state, object: api, state: st}"
    limited = "c: {kind: counter, dimensions: [obj], max_cardinality: 2}"
    declared = (COUNTER, by_api, limited, COUNTER, by_api)
    assert of_a_sealed_time(tmp_path, *declared) == expected(2 + len(declared))


SHORT = """
version: 1
streams:
  s:
    schema: {{id: string, at: string, api: string}}
    identity: id
    event_time: {{column: at, type: iso8601}}
    retention: {{raw: 3d, rollups: {{1h: 5d}}}}
    metrics: {{c: {{kind: counter{dimensions}}}}}
"""


def test_days_whose_hours_and_raw_have_expired_stay_when_a_day_beside_them_is_made_again(
    tmp_path: Path,
) -> None:
    """Both are in one tile of 28 days."""
    now = day(16)
    (tmp_path / "tidemill.yaml").write_text(SHORT.format(dimensions=""))
    with Mill.open(tmp_path, clock=lambda: now) as mill:
        mill.land("s", b"\n".join([seen(2, "x", "a", ""), seen(2, "y", "b", "")]))
        mill.tick()
        mill.land("s", seen(15, "x", "c", ""))
        mill.tick()
        wrong = mill.land("s", seen(15, "y", "d", "")).entry
        mill.tick()
        mill.retention.expire(mill.retention.plan())
        mill.retract(mill.plan_retraction(wrong.id, "sent by mistake"))
        assert mill.tick().faults == []
        assert counted(mill, "SELECT count FROM s INTERVAL 1d") == [(day(2), 2), (day(15), 1)]
    (tmp_path / "tidemill.yaml").write_text(SHORT.format(dimensions=", dimensions: [api]"))
    with Mill.open(tmp_path, clock=lambda: now) as mill:
        assert mill.tick().faults == []
        assert counted(mill, "SELECT count FROM s INTERVAL 1d") == [(day(2), 2), (day(15), 1)]
        assert mill.query("SELECT count FROM s").to_pylist() == [{"count": 3}]
        recent = "SELECT count FROM s BETWEEN 2024-01-13 AND 2024-01-16 GROUP BY api"
        assert mill.query(recent).to_pylist() == [{"api": "x", "count": 1}]
        assert mill.verify().ok


def counted(mill: Mill, query: str) -> list[tuple[int, int]]:
    return [(from_datetime(row["bucket"]), row["count"]) for row in mill.query(query).to_pylist()]
