"""Compares two revisions of a window: rows that were added, and rows that were removed. It only reads.

Both files are sorted by event time, so they are compared stretch by stretch, with a few record batches of
each in memory. Rows are compared as a whole and counted with multiplicity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.windows import Dataset, WindowKey
from tidemill.outputs.datasets.catalog import open_dataset
from tidemill.outputs.datasets.dataset import read_batches

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

ADDED: Final = "added"
REMOVED: Final = "removed"
_TIME: Final = "event_time"
_CHANGED: Final = "~change"
_AT_ONCE: Final = 100_000  # rows of a file that are compared at once, or one record batch


@dataclass(frozen=True, slots=True)
class RevisionChanges:
    """From the revision `old` (None: the empty dataset) to `new`."""

    key: WindowKey
    old: Dataset | None
    new: Dataset
    added: int
    removed: int
    unchanged: int
    columns: Sequence[str]  # that were compared: those that both revisions have
    rows: Sequence[tuple[str, dict[str, object]]]  # a page of changes, each `added` or `removed`, by time
    more: bool

    @property
    def old_revision(self) -> int:
        return self.old.revision if self.old is not None else 0

    @property
    def slices_added(self) -> list[str]:
        return sorted(set(self.new.slices) - set(self.old.slices if self.old is not None else ()))

    @property
    def slices_removed(self) -> list[str]:
        return sorted(set(self.old.slices if self.old is not None else ()) - set(self.new.slices))


def chosen(revisions: Sequence[Dataset], old: int | None, new: int | None) -> tuple[Dataset | None, Dataset]:
    """The two revisions to compare: by default the newest and the one before it. Revision 0 is the empty
    dataset."""
    if not revisions:
        raise NotFoundError("the window has no dataset yet", hint="`tidemill window` says why it waits")
    by_number = {one.revision: one for one in revisions}
    last = new if new is not None else revisions[-1].revision
    before = [number for number in by_number if number < last]
    first = old if old is not None else max(before, default=0)
    missing = [number for number in (first, last) if number not in by_number and number != 0]
    if missing or last == 0:
        have = ", ".join(map(str, by_number))
        raise NotFoundError(
            f"the window has no revision {missing[0] if missing else last}", hint=f"revisions: 0, {have}"
        )
    if first >= last:
        raise InputError(f"revision {first} does not come before {last}", hint="name the older one first")
    return by_number.get(first), by_number[last]


def changes_between(
    warehouse: Path, old: Dataset | None, new: Dataset, tenant: str | None, offset: int, limit: int
) -> RevisionChanges:
    """Counts of all changes, and a page of them: those after the first `offset`, at most `limit`; of one
    tenant if one is named."""
    names = _columns(warehouse, old, new)
    counts = {ADDED: 0, REMOVED: 0}
    unchanged = 0
    rows: list[tuple[str, dict[str, object]]] = []
    old_rows, new_rows = (_batches(warehouse, one, names, tenant) for one in (old, new))
    for before, after in _stretches(old_rows, new_rows):
        changed = _compared(before, after)
        removed = int(pc.sum(pc.equal(changed.column(_CHANGED), REMOVED)).as_py() or 0)
        seen = sum(counts.values())
        counts[REMOVED] += removed
        counts[ADDED] += changed.num_rows - removed
        unchanged += before.num_rows - removed
        page = changed.slice(max(0, offset - seen), max(0, limit + 1 - len(rows)))
        rows += [(row.pop(_CHANGED), row) for row in page.to_pylist()]
    more = len(rows) > limit
    return RevisionChanges(
        new.key, old, new, counts[ADDED], counts[REMOVED], unchanged, names, rows[:limit], more
    )


def _columns(warehouse: Path, old: Dataset | None, new: Dataset) -> list[str]:
    """Columns that both have with the same type, in the order of the newer one."""
    schema = open_dataset(warehouse, new).schema
    if old is None:
        return list(schema.names)
    before = open_dataset(warehouse, old).schema
    return [
        field.name
        for field in schema
        if field.name in before.names and before.field(field.name).type == field.type
    ]


def _batches(
    warehouse: Path, dataset: Dataset | None, names: Sequence[str], tenant: str | None
) -> Iterator[pa.Table]:
    if dataset is None:
        return
    for batch in read_batches(open_dataset(warehouse, dataset).path):
        rows = pa.Table.from_batches([batch]).select(list(names)).replace_schema_metadata(None)
        own = rows if tenant is None else rows.filter(pc.equal(rows.column("tenant"), tenant))
        if own.num_rows:
            yield own


def _stretches(old: Iterator[pa.Table], new: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of both, stretch by stretch up to the same instant; all rows of one instant are in one stretch."""
    left, right = _PendingRows(old), _PendingRows(new)
    while left.fill() | right.fill():
        ends = [pile.last for pile in (left, right) if not pile.over and pile.last is not None]
        until = min(ends, default=None)
        pair = left.take(until), right.take(until)
        empty = next(table for table in (*pair, left.rows, right.rows) if table is not None).slice(0, 0)
        before, after = (empty if table is None else table for table in pair)
        if before.num_rows or after.num_rows:
            yield before, after
        elif until is not None:  # all rows that are held have one instant: more are needed
            left.grow()
            right.grow()


class _PendingRows:
    """Rows of one file that were read and are not compared yet."""

    def __init__(self, batches: Iterator[pa.Table]) -> None:
        self._batches = batches
        self._enough = _AT_ONCE
        self.rows: pa.Table | None = None
        self.over = False

    def fill(self) -> bool:
        """Read until enough rows are held; whether there are any."""
        while not self.over and (self.rows is None or self.rows.num_rows < self._enough):
            found = next(self._batches, None)
            self.over = found is None
            if found is not None:
                self.rows = found if self.rows is None else pa.concat_tables([self.rows, found])
        return self.rows is not None and self.rows.num_rows > 0

    def grow(self) -> None:
        self._enough *= 2

    @property
    def last(self) -> int | None:
        """The newest event time that is held."""
        if self.rows is None or not self.rows.num_rows:
            return None
        return int(self.rows.column(_TIME)[self.rows.num_rows - 1].value)

    def take(self, until: int | None) -> pa.Table | None:
        """The rows before an instant, or all."""
        if self.rows is None or until is None:
            taken, self.rows = self.rows, None
            return taken
        times = self.rows.column(_TIME).cast(pa.int64()).to_numpy()
        count = int(times.searchsorted(until))
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken


def _compared(before: pa.Table, after: pa.Table) -> pa.Table:
    """Rows of one side that the other lacks, with multiplicity, each marked added or removed; by time."""
    if before.equals(after):
        empty = after.slice(0, 0)
        return empty.append_column(_CHANGED, pa.array([], pa.string()))
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 2, "temp_directory": ""}) as db:
        db.register("before", before)
        db.register("after", after)
        return _difference(db)


def _difference(db: duckdb.DuckDBPyConnection) -> pa.Table:
    return db.execute(
        f"""SELECT * FROM (
            SELECT *, '{REMOVED}' AS "{_CHANGED}" FROM (SELECT * FROM before EXCEPT ALL SELECT * FROM after)
            UNION ALL
            SELECT *, '{ADDED}' FROM (SELECT * FROM after EXCEPT ALL SELECT * FROM before)
        ) ORDER BY ALL"""
    ).to_arrow_table()
