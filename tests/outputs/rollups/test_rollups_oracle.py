"""The kernels of metrics against the oracle: events in any batches, merged level by level, give its rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles.kinds import OracleCounter, OracleKind, OracleState
from tests.support.oracles.metrics import MetricOracle
from tests.support.oracles.oracle import Event, Landing, Oracle, lookup
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import OracleStream
from tests.support.oracles.strictjson import Number
from tests.support.strategies.metrics import SENSORS, START, metered_streams, sensor_feeds

from tidemill.config import Stream, parse_project
from tidemill.model.levels import BASE, LEVELS
from tidemill.outputs.rollups.admitted_keys import AdmittedKeys, keys_of
from tidemill.outputs.rollups.cells import Cells, accumulate, merge
from tidemill.outputs.rollups.observations import in_order, no_observations, observed, positioned
from tidemill.outputs.rollups.rows import from_rows, to_rows
from tidemill.outputs.rollups.spec import RollupSpec, spec_for
from tidemill.outputs.rollups.transitions import signed_cells, state_cells, union_of

some = examples(40)
many = at_length(20_000)
TEXT = pa.dictionary(pa.int32(), pa.string())
COLUMNS = {"string": TEXT, "integer": pa.int64(), "boolean": pa.bool_()}


class Placed(NamedTuple):
    event: Event
    seq: int
    line: int


def declared(stream: OracleStream) -> Stream:
    """As the configuration has it."""
    text = project_text([stream])
    (found,) = parse_project(text, Path("tidemill.yaml"), ["unixtimestamp_us"], {}).streams.values()
    return found


def accepted(stream: OracleStream, feed: Sequence[Landing]) -> list[Placed]:
    oracle = Oracle(stream)
    for landing in feed:
        oracle.land(*landing)
    seqs = {landing.slice: seq for seq, landing in enumerate(feed, start=1)}
    return [
        Placed(event, seqs[row.slice], row.line)
        for event, row in zip(oracle.accepted, oracle.raw, strict=True)
    ]


def table_of(stream: Stream, events: Sequence[Placed]) -> pa.Table:
    """Accepted events as acceptance hands them to metrics."""

    def key(event: Event, path: str) -> object:
        value = lookup(event.fields, path)
        return value.integer() if isinstance(value, Number) else value

    def number(event: Event, path: str) -> int | None:
        value = lookup(event.fields, path)
        return value.rounded(stream.fields[path].scale or 0) if isinstance(value, Number) else None

    columns: dict[str, pa.Array] = {
        "tenant": pa.array([p.event.tenant for p in events], TEXT),
        "event_time": pa.array([p.event.ts for p in events], pa.timestamp("us", "UTC")),
        "event_id": pa.array([p.event.event_id for p in events], pa.string()),
        "slice": pa.array([f"s{p.seq}" for p in events], TEXT),
        "line": pa.array([p.line for p in events], pa.int64()),
    }
    for at, path in enumerate(stream.key_columns):
        kind = COLUMNS[stream.fields[path].type]
        columns[f"d{at}"] = pa.array([key(p.event, path) for p in events], kind)
    for at, path in enumerate(stream.number_columns):
        columns[f"m{at}"] = pa.array([number(p.event, path) for p in events], pa.int64())
    return pa.table(columns)


class Following:
    """What the metrics of a stream come to as batch after batch is added."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.spec: RollupSpec = spec_for(stream)
        self.admitted_keys = AdmittedKeys.of(self.spec)
        self.seen = {m.name: no_observations(m) for m in self.spec.metrics if m.following is not None}
        self.cells: list[Cells] = []

    def add(self, events: Sequence[Placed]) -> None:
        table = table_of(self.stream, events)
        seqs = {f"s{p.seq}": p.seq for p in events}
        limited = [metric for metric in self.spec.metrics if metric.limit is not None]
        keys = {metric.name: positioned(keys_of(metric, table), seqs) for metric in limited}
        self.admitted_keys = self.admitted_keys.grown(
            {name: found for name, found in keys.items() if found.num_rows}
        )
        cells = dict(self.admitted_keys.admit(accumulate(self.spec, table, BASE.width)))
        for metric in self.spec.metrics:
            if metric.following is not None:
                added = in_order(positioned(observed(metric, table), seqs))
                union, new = union_of(self.seen[metric.name], added)
                cells[metric.name] = signed_cells(metric, self.admitted_keys.renamed(metric.name, union), new)
                self.seen[metric.name] = union
        self.cells.append(merge(self.spec, [cells], BASE.width))

    def rows(self, width: int, below: Cells | None = None) -> tuple[list[dict[str, object]], Cells]:
        """Of a level, by way of rows of the level below, if there is one."""
        merged = merge(self.spec, self.cells if below is None else [below], width)
        rows = to_rows(self.spec, merged)
        again = from_rows(self.spec, rows)
        assert to_rows(self.spec, again).equals(rows)
        for index, field in enumerate(rows.schema):
            if pa.types.is_timestamp(field.type):
                rows = rows.set_column(index, field.name, rows.column(index).cast(pa.int64()))
        return rows.to_pylist(), again


def plain(rows: Sequence[Mapping[str, object]]) -> Counter[tuple[tuple[str, object], ...]]:
    return Counter(
        tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in row.items() if v is not None))
        for row in rows
    )


def same_as_the_oracle(stream: OracleStream, feed: list[Landing], data: st.DataObject) -> None:
    events = accepted(stream, feed)
    following = Following(declared(stream))
    slices = sorted({p.seq for p in events})
    ends = [seq for seq in slices if data.draw(st.booleans())]
    for after, upto in pairwise([0, *ends, len(feed) + 1]):
        batch = [p for p in events if after < p.seq <= upto]
        if batch:
            following.add(data.draw(st.permutations(batch)))
    oracle = MetricOracle(stream, [p.event for p in events])
    cells: Cells | None = None
    for level in LEVELS:
        rows, cells = following.rows(level.width, cells)
        found, wanted = plain(rows), plain(oracle.rows(level.name))
        assert (found - wanted, wanted - found) == (Counter(), Counter()), level.name
    for metric in following.spec.metrics:
        if metric.following is not None:  # all at once, with no past
            whole = following.admitted_keys.renamed(metric.name, following.seen[metric.name])
            at_once = merge(following.spec, [{metric.name: state_cells(metric, whole)}], BASE.width)
            in_parts = merge(following.spec, following.cells, BASE.width)
            assert at_once[metric.name].to_pylist() == in_parts[metric.name].to_pylist()


@some
@given(stream=metered_streams(), feed=sensor_feeds(), data=st.data())
def test_events_in_any_batches_give_the_rows_that_the_oracle_says(
    stream: OracleStream, feed: list[Landing], data: st.DataObject
) -> None:
    same_as_the_oracle(stream, feed, data)


@pytest.mark.soak
@many
@given(stream=metered_streams(), feed=sensor_feeds(max_events=60), data=st.data())
def test_events_in_any_batches_give_the_rows_that_the_oracle_says_at_length(
    stream: OracleStream, feed: list[Landing], data: st.DataObject
) -> None:
    same_as_the_oracle(stream, feed, data)


def in_batches(kinds: Mapping[str, OracleKind], batches: Sequence[Sequence[Mapping[str, object]]]) -> None:
    """By hand: events with ids and times of their own, in the order of the ledger."""
    numbers = count()
    stream = replace(SENSORS, kinds=kinds)
    feed = []
    for seq, batch in enumerate(batches, 1):
        events = [{"id": f"e{next(numbers)}", "at": START, "tenant": "acme"} | dict(e) for e in batch]
        feed.append(Landing(f"slice-{seq}", tuple(json.dumps(e).encode() for e in events), START))
    events_of = accepted(stream, feed)
    following = Following(declared(stream))
    for seq in range(1, len(feed) + 1):
        following.add([p for p in events_of if p.seq == seq])
    rows, _ = following.rows(BASE.width)
    wanted = MetricOracle(stream, [p.event for p in events_of]).rows(BASE.name)
    assert plain(rows) == plain(wanted)


def test_a_key_that_was_seen_but_not_admitted_is_never_taken_for_one_of_another_tenant() -> None:
    seen = [(zone, tenant) for zone in "abcdef" for tenant in ("acme", "globex")]
    zones = [{"zone": zone, "tenant": tenant, "thing": "x", "state": zone} for zone, tenant in seen]
    kinds: dict[str, OracleKind] = {
        "c": OracleCounter(("zone",), limit=1),
        "s": OracleState("thing", "state", ("zone",), limit=2),
    }
    in_batches(kinds, [zones, zones[::-1], zones])


def test_the_least_integer_is_a_key_like_any_other() -> None:
    kinds: dict[str, OracleKind] = {
        "c": OracleCounter(("gear", "n"), ("n",)),
        "s": OracleState("gear", "number", ("n",)),
    }
    least = [{"gear": -(2**63), "n": -(2**63) + i, "number": -(2**63)} for i in range(3)]
    in_batches(kinds, [least, least[:1], [{"gear": 2**63 - 1, "n": 2**63 - 1}, *least, {"gear": None}]])
