"""Compares results with a computation from raw: every value, not only the hash of their slices.

It writes and repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.names import column_name
from tidemill.model.streaming import Trigger, WindowSpec
from tidemill.model.time import format_instant
from tidemill.outputs.windows.fold import FoldUnit, computed, held_by, rows_in
from tidemill.outputs.windows.results import changes, current

_PROVENANCE: Final = frozenset(
    {"revision", "trigger", "watermark", "supersedes", "superseded_by", "withdrawn", "batch"}
)  # columns about how it came about, which a computation does not show


@dataclass(frozen=True, slots=True)
class ResultDifference:
    position: str
    what: str


def check(unit: FoldUnit) -> Iterator[ResultDifference | int]:
    """The differences in a bucket; last, how many results were compared."""
    rows = rows_in(unit)
    fresh = computed(unit, rows)
    held = held_by(unit, rows)
    expected = changes(
        unit.spec,
        unit.stream,
        fresh,
        held.slice(0, 0),
        watermark=unit.watermark,
        batch=unit.batch,
        trigger=unit.trigger,
    ).table
    expected = expected.filter(pc.invert(expected.column("withdrawn")))
    waiting = fresh.filter(pc.invert(fresh.column("closed")))
    still_open = set(zip(*(waiting.column(n).to_pylist() for n in ("tenant", "start")), strict=True))
    found, right = _by_key(unit.spec, current(held)), _by_key(unit.spec, expected)
    for key in sorted(right.keys() - found.keys(), key=str):
        yield ResultDifference(_position(unit.spec, right[key]), "is missing")
    for key in sorted(found.keys() - right.keys(), key=str):
        row = found[key]
        open_yet = (row["tenant"], row["start"]) in still_open or _begins_after(
            unit.spec, row, unit.watermark
        )
        if not (row["trigger"] == Trigger.STOP.value and open_yet):
            yield ResultDifference(_position(unit.spec, row), "should not be there")
    for key in sorted(right.keys() & found.keys(), key=str):
        wrong = [
            name for name in right[key] if name not in _PROVENANCE and right[key][name] != found[key][name]
        ]
        if wrong:
            yield ResultDifference(_position(unit.spec, right[key]), f"differs in {', '.join(wrong)}")
    yield len(right)


def _by_key(spec: WindowSpec, table: pa.Table) -> dict[tuple[object, ...], dict[str, object]]:
    names = ["window_id", *(column_name(name) for name in spec.grouped_by)]
    times = [name for name in table.column_names if pa.types.is_timestamp(table.schema.field(name).type)]
    for name in times:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    return {tuple(row[name] for name in names): row for row in table.to_pylist()}


def _begins_after(spec: WindowSpec, row: dict[str, object], watermark: int | None) -> bool:
    """Rows after the watermark make no window yet, except for a stop."""
    return watermark is None or int(str(row["start"])) > watermark - spec.opens_after


def _position(spec: WindowSpec, row: dict[str, object]) -> str:
    group = "".join(f" {name}={row[column_name(name)]}" for name in spec.grouped_by)
    start, end = (format_instant(int(str(row[name]))) for name in ("start", "end"))
    return f"{spec.name} {start}..{end} {row['tenant']}{group}"
