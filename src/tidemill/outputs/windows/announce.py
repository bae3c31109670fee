"""The events about results: they were published, changed or withdrawn, and where they are.

Pure, and a function of the results table: events that are published again after a crash or a recovery are
equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.streaming import Trigger, WindowSpec
from tidemill.model.time import format_instant
from tidemill.model.windows import OutboxEvent
from tidemill.storage import layout

AVAILABLE: Final = "tidemill.window.available"
MOST: Final = 500  # windows that are announced one by one; more at once are a backfill, announced as a whole


@dataclass(frozen=True, slots=True)
class Announced:
    """What was published for one window of the grid, or for several windows together."""

    start: int
    end: int
    windows: int
    results: int
    withdrawn: int
    rows: int
    late_rows: int
    revision: int  # the highest
    triggers: tuple[str, ...]


def announcements(spec: WindowSpec, table: pa.Table) -> list[Announced]:
    """From rows of the results table: by window if windows lie on a grid, else all of them as one."""
    table = table.filter(pc.not_equal(table.column("trigger").cast(pa.string()), Trigger.HAVING.value))
    if not table.num_rows:
        return []
    announced = pa.table(
        {
            "start": table.column("start").cast(pa.int64()),
            "end": table.column("end").cast(pa.int64()),
            "id": table.column("window_id"),
            "gone": table.column("withdrawn").cast(pa.int64()),
            "rows": table.column("rows"),
            "late": table.column("late_rows"),
            "revision": table.column("revision"),
            "trigger": table.column("trigger").cast(pa.string()),
        }
    )
    if not spec.kind.by_time:
        return [_whole(announced)]
    sums = announced.group_by(["start", "end"]).aggregate(
        [
            ("gone", "sum"),
            ("gone", "count"),
            ("rows", "sum"),
            ("late", "sum"),
            ("revision", "max"),
            ("trigger", "distinct"),
        ]
    )
    return [
        Announced(
            start=row["start"],
            end=row["end"],
            windows=1,
            results=row["gone_count"] - row["gone_sum"],
            withdrawn=row["gone_sum"],
            rows=row["rows_sum"],
            late_rows=row["late_sum"],
            revision=row["revision_max"],
            triggers=tuple(sorted(row["trigger_distinct"])),
        )
        for row in sums.sort_by("start").to_pylist()
    ]


def _whole(announced: pa.Table) -> Announced:
    gone = pc.sum(announced.column("gone")).as_py()
    return Announced(
        start=pc.min(announced.column("start")).as_py(),
        end=pc.max(announced.column("end")).as_py(),
        windows=pc.count_distinct(announced.column("id")).as_py(),
        results=announced.num_rows - gone,
        withdrawn=gone,
        rows=pc.sum(announced.column("rows")).as_py(),
        late_rows=pc.sum(announced.column("late")).as_py(),
        revision=pc.max(announced.column("revision")).as_py(),
        triggers=tuple(sorted(pc.unique(announced.column("trigger")).to_pylist())),
    )


def results_available(
    spec: WindowSpec, announced: Sequence[Announced], batch: int, now: int
) -> list[OutboxEvent]:
    """The events of one commit."""
    if spec.kind.by_time and len(announced) <= MOST:
        return [_event(spec, one, batch, now) for one in sorted(announced, key=lambda one: one.start)]
    return [_event(spec, _together(announced), batch, now)] if announced else []


def _together(announced: Iterable[Announced]) -> Announced:
    first, *others = announced
    for one in others:
        first = replace(
            first,
            start=min(first.start, one.start),
            end=max(first.end, one.end),
            windows=first.windows + one.windows,
            results=first.results + one.results,
            withdrawn=first.withdrawn + one.withdrawn,
            rows=first.rows + one.rows,
            late_rows=first.late_rows + one.late_rows,
            revision=max(first.revision, one.revision),
            triggers=tuple(sorted({*first.triggers, *one.triggers})),
        )
    return first


def _event(spec: WindowSpec, announced: Announced, batch: int, now: int) -> OutboxEvent:
    data: dict[str, object] = {
        "stream": spec.stream,
        "window": spec.name,
        "kind": spec.kind.value,
        "start": format_instant(announced.start),
        "end": format_instant(announced.end),
        "windows": announced.windows,
        "results": announced.results,
        "withdrawn": announced.withdrawn,
        "rows": announced.rows,
        "late_rows": announced.late_rows,
        "revision": announced.revision,
        "triggers": list(announced.triggers),
        "location": layout.results_location(spec.stream, spec.name),
        "batch": batch,
    }
    content = (
        announced.results,
        announced.withdrawn,
        announced.rows,
        announced.late_rows,
        announced.revision,
    )
    parts = (
        AVAILABLE,
        spec.stream,
        spec.name,
        spec.fingerprint,
        batch,
        announced.start,
        announced.end,
        *content,
    )
    event_id = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
    return OutboxEvent(0, event_id, AVAILABLE, spec.stream, now, data)
