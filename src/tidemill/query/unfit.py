"""Events with a value that the type of its field cannot hold, since the type was changed after they were
accepted: rows of rollups beside those of each metric count them. Numbers that need such values are unknown.

The statistics of a part say whether it has such rows, so that an answer that lacks nothing reads no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidemill.model.completeness import Available, Missing, unfit
from tidemill.model.levels import LEVELS
from tidemill.model.names import UNFIT
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.query.cover import ALL_TIME, BEGINNING, cover
from tidemill.query.dimensions import MetricRows
from tidemill.query.groups import flat, group_numbers
from tidemill.query.plan_sql import FIRST, UNTIL, key_columns
from tidemill.query.source import Scans, Source, scans_of
from tidemill.query.unfit_fields import UnfitField
from tidemill.query.values import ValueColumn, ValuePart

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemill.query.plan import Plan

_OF_CELLS: Final = "numbers that depend on it are not known"
_OF_OBJECTS: Final = "what depends on it is not known, from there on"


@dataclass(frozen=True, slots=True)
class UnfitEvents:
    """What a plan found: `p0`… for each field by cell and group, as `plan_sql.aggregate` has them."""

    fields: tuple[UnfitField, ...] = ()
    by_group: pa.Table | None = None
    by_cell: pa.Table | None = None  # of the fields without keys
    since: int | None = None  # from here on nothing is known of objects
    missing: tuple[Missing, ...] = ()

    def rows(self, tables: Sequence[pa.Table], plan: Plan, column: ValueColumn) -> NDArray[np.bool_]:
        """For each row of all tables whether its number depends on such an event."""
        import numpy as np

        found = np.zeros(sum(table.num_rows for table in tables), np.bool_)
        for has_keys, counted in ((True, self.by_group), (False, self.by_cell)):
            fields = [one for one in self.fields if one.has_keys == has_keys]
            if counted is None:
                continue
            chosen = np.zeros(counted.num_rows, np.bool_)
            for number, one in enumerate(fields):
                if one.affects(column):
                    chosen |= flat(counted.column(f"p{number}")).to_numpy() > 0
            keys = key_columns(plan) if has_keys else key_columns(replace(plan, groups=()))
            numbers = group_numbers([counted, *tables], keys)
            found |= np.isin(numbers[counted.num_rows :], numbers[: counted.num_rows][chosen])
        return found

    @property
    def spans(self) -> list[Interval]:
        """The cells of such events, whatever their group."""
        found = []
        for has_keys, counted in ((True, self.by_group), (False, self.by_cell)):
            count = sum(one.has_keys == has_keys for one in self.fields)
            for row in counted.to_pylist() if counted is not None else ():
                if any(row[f"p{number}"] for number in range(count)):
                    found.append(Interval(row[FIRST], row[UNTIL]))
        return sorted(found)


NONE = UnfitEvents()


def unfit_events(
    plan: Plan, source: Source, scans: Scans, hits: Callable[[Plan, Scans], pa.Table]
) -> UnfitEvents:
    """Events that the numbers of a plan lack, in what it reads; where objects are followed, also before."""
    since = _since(plan, source, hits)
    kept = tuple(scan for scan in scans.levels if scan.files.unfit)
    raw = scans.raw if scans.raw is not None and _has_rows(scans.raw) else None
    if not kept and raw is None:
        return NONE if since is None else replace(NONE, since=since[0], missing=since[1])
    found = Scans(kept, raw)
    keyed = [one for one in plan.unfit if one.has_keys]
    others = [one for one in plan.unfit if not one.has_keys]
    by_group = hits(_counting(plan, keyed), found) if keyed else None
    by_cell = hits(replace(_counting(plan, others), groups=(), where=None), found) if others else None
    earlier = since or (None, ())
    named = {one.detail for one in earlier[1]}
    raw_from = source.available.raw
    missing = [*_missing(keyed, by_group, plan, raw_from), *_missing(others, by_cell, plan, raw_from)]
    return UnfitEvents(
        (*keyed, *others),
        by_group,
        by_cell,
        earlier[0],
        (*earlier[1], *(one for one in missing if one.detail not in named)),
    )


def _since(
    plan: Plan, source: Source, hits: Callable[[Plan, Scans], pa.Table]
) -> tuple[int, tuple[Missing, ...]] | None:
    """From when on nothing is known of objects, if that is before the end of what is read."""
    followed = [one for one in plan.unfit if one.follows]
    end = plan.read.end if plan.read is not None else ALL_TIME.end
    reach = Interval(BEGINNING, end)
    if not followed or not any(source.files_for(level.name, [reach]).unfit for level in LEVELS):
        return None
    whole = replace(plan, span=reach, grid=None, interval=None, level=None, step=None, groups=(), where=None)
    made = cover(reach, Available(lost=source.available.lost, levels=source.available.levels))
    found = hits(_counting(whole, followed), Scans(scans_of(made, source)))
    missing = tuple(_missing(followed, found, whole, source.available.raw))
    return (min(one.span.start for one in missing), missing) if missing else None


def _counting(plan: Plan, fields: Sequence[UnfitField]) -> Plan:
    rows = tuple(MetricRows(one.rows) for one in fields)
    parts = tuple(ValuePart("count", (each,)) for each in rows)
    return replace(plan, columns=(), parts=parts, rows=rows)


def _has_rows(raw: pa.Table) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.starts_with(pc.unique(raw.column("metric")).cast("string"), UNFIT)).as_py())


def _missing(
    fields: Sequence[UnfitField], found: pa.Table | None, plan: Plan, raw_from: int | None
) -> Iterator[Missing]:
    for number, one in enumerate(fields if found is not None else ()):
        assert found is not None
        rows = [row for row in found.select([f"p{number}", FIRST, UNTIL]).to_pylist() if row[f"p{number}"]]
        if rows:
            first, until = min(row[FIRST] for row in rows), max(row[UNTIL] for row in rows)
            read = plan.read or ALL_TIME
            span = Interval(
                max(first, read.start, MIN_INSTANT), min(until, max(read.end, first + 1), MAX_INSTANT)
            )
            count = sum(row[f"p{number}"] for row in rows)
            sealed = raw_from is not None and span.start < raw_from
            effect = _OF_OBJECTS if one.follows else _OF_CELLS
            yield unfit(span, count, one.name, one.type, effect=effect, sealed=sealed)
