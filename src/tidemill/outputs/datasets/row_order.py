"""The order of a dataset's rows and the borders of its record batches: pure, and the same for the same rows.

Neither depends on the parts that rows came from or on spilling, so that equal sets of slices give equal
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one, string_buffers
from tidemill.model.time import MINUTE

# Imports inside functions keep start-up short: commands that list datasets put no rows in order.

STEP: Final = 15 * MINUTE  # a record batch ends at a multiple of it
LEAST_ROWS: Final = 8_192  # of a batch that ends with a step: one with fewer continues into the next step
BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 16 << 20  # of strings and lists in one batch

# Rank of the slice's id among those of the build; no declared column can have this name.
SLICE: Final = "~slice"
LINE: Final = "~line"
# Within a gated stream the first three decide; without a gate the line in its slice does.
KEYS: Final = ("event_time", "event_id", "tenant", SLICE, LINE)
_ASCENDING: Final = [(key, "ascending") for key in KEYS]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of a table in the order of a dataset."""

    table: pa.Table  # one chunk per column
    rows: Ints


def times(table: pa.Table) -> Ints:
    """Event times as integers, without copying."""
    column = one(table.column("event_time"))
    values: Ints = column.view(pa.int64()).to_numpy() if len(column) else np.empty(0, np.int64)
    return values


def whole(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables as one, with one chunk per column."""
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def arranged(table: pa.Table, rows: Ints | None = None) -> Run:
    """`rows` of the table (None: all) in order. Sorted by time first, and by strings only where times are
    equal: sorting all rows by five keys takes several times as long."""
    time = times(table)
    rows = np.arange(time.size) if rows is None else rows
    rows = rows[np.argsort(time[rows], kind="stable")]
    same = np.flatnonzero(np.diff(time[rows]) == 0)
    if same.size:
        import pyarrow.compute as pc

        tied = np.union1d(same, same + 1)
        keys = table.select(KEYS).take(pa.array(rows[tied]))
        rows[tied] = rows[tied][pc.sort_indices(keys, _ASCENDING).to_numpy()]
    return Run(table, rows)


def parted(table: pa.Table, cuts: pa.Table) -> Ints:
    """For each row the number of cuts at or before it; `cuts` are sorted keys."""
    import pyarrow.compute as pc

    keys = table.select(KEYS)
    both = pa.concat_tables(
        [
            cuts.append_column("~row", pa.array(np.zeros(cuts.num_rows, np.int8))),
            keys.append_column("~row", pa.array(np.ones(keys.num_rows, np.int8))),
        ]
    )
    order = pc.sort_indices(both, [*_ASCENDING, ("~row", "ascending")]).to_numpy().astype(np.int64)
    is_row = order >= cuts.num_rows
    found = np.empty(keys.num_rows, np.int64)
    found[order[is_row] - cuts.num_rows] = np.cumsum(~is_row)[is_row]
    return found


def batches(
    runs: Iterable[Run], schema: pa.Schema, step: int, least: int = LEAST_ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of consecutive runs as record batches. A batch ends with the first step after which it has
    `least` rows, or within a step when it has BATCH_ROWS rows or BATCH_BYTES."""
    held = _HeldRows(schema)
    at = 0
    for run in runs:
        steps = times(run.table)[run.rows] // step
        weights = np.cumsum(_weights(run))
        ends = np.append(np.flatnonzero(np.diff(steps)) + 1, steps.size)
        start = 0
        while start < steps.size:
            if held.count >= least and int(steps[start]) != at:
                yield held.batch()
            ending = int(np.searchsorted(ends, start + max(1, least - held.count)))
            end = int(ends[min(ending, ends.size - 1)])
            while start < end:
                room = min(end - start, BATCH_ROWS - held.count)
                before = int(weights[start - 1]) if start else 0
                size = weights[start : start + room] - before
                fitting = int(np.searchsorted(size, BATCH_BYTES - held.size, "right"))
                taken = min(room, max(fitting, 0 if held.count else 1))
                if taken:
                    held.add(Run(run.table, run.rows[start : start + taken]), int(size[taken - 1]))
                    start += taken
                    at = int(steps[start - 1])
                if start < end:
                    yield held.batch()
    if held.count:
        yield held.batch()


class _HeldRows:
    """The rows of the batch that is not full yet."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._runs: list[Run] = []
        self.count = 0
        self.size = 0

    def add(self, run: Run, size: int) -> None:
        self._runs.append(run)
        self.count += run.rows.size
        self.size += size

    def batch(self) -> pa.RecordBatch:
        """All rows held. `take` copies each array: a slice of another array would bring bits of its
        neighbours into the file."""
        names = self._schema.names
        tables = [run.table.select(names).take(pa.array(run.rows)) for run in self._runs]
        if len(tables) > 1:
            tables = [pa.concat_tables(tables).combine_chunks().take(pa.array(np.arange(self.count)))]
        self._runs, self.count, self.size = [], 0, 0
        return pa.RecordBatch.from_arrays([one(column) for column in tables[0].columns], schema=self._schema)


def _weights(run: Run) -> Ints:
    """The bytes of strings and lists in each row."""
    total = np.zeros(run.rows.size, np.int64)
    for column in run.table.columns if run.rows.size else ():
        if pa.types.is_string(column.type):
            ends, _ = string_buffers(one(column))
            total += ends[run.rows + 1] - ends[run.rows]
        elif pa.types.is_list(column.type):
            total += _list_bytes(one(column))[run.rows]
    return total


def _list_bytes(lists: pa.ListArray) -> Ints:
    """The bytes of the elements of each list."""
    import pyarrow.compute as pc

    sizes: Ints = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not pa.types.is_string(lists.type.value_type):
        return sizes * int(lists.type.value_type.bit_width // 8)
    texts, _ = string_buffers(lists.flatten())  # elements of the lists that are not null
    ends = np.append(0, np.cumsum(sizes))
    found: Ints = texts[ends[1:]].astype(np.int64) - texts[ends[:-1]]
    return found
