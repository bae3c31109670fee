"""Streaming windows step by step, without a mill: the kernels of the product over rows in memory.

Each step assigns and aggregates all rows anew and revises what stands, as `fold` does with the rows of a
bucket; which rows are read again is not its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tests.support.strategies.streaming import SCALES, TICKS
from tests.support.streaming_results import Which, of_table, result_of

from tidemill.config.stream import Stream
from tidemill.model.streaming import Fate, Trigger, Value, WindowResult, WindowSpec
from tidemill.outputs.windows.aggregate import aggregate
from tidemill.outputs.windows.assign import assign
from tidemill.outputs.windows.extract import row_schema
from tidemill.outputs.windows.planning import first_trigger, processing_watermark
from tidemill.outputs.windows.results import changes, current, group_columns, results_schema
from tidemill.outputs.windows.row_fates import fates
from tidemill.outputs.windows.window_ids import newest
from tidemill.testing.streaming import StreamingRow, StreamingSlice, meet

STREAM = Stream.model_validate(
    {
        "name": TICKS.name,
        "schema": {
            column: {"type": declared.type}
            | ({"scale": declared.scale} if declared.scale is not None else {})
            for column, declared in TICKS.fields.items()
        },
    }
)


@dataclass(frozen=True, slots=True)
class Emitted:
    """A row that was appended to the results."""

    window_id: str
    revision: int
    trigger: Trigger
    result: WindowResult
    supersedes: tuple[str, ...]
    superseded_by: str | None
    withdrawn: bool
    slices: int


class Windows:
    """One declared window over rows that are pushed, and a watermark that is moved by hand."""

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.rows: list[StreamingRow] = []
        self.watermark: int | None = None
        self.revisions = results_schema(spec, STREAM).empty_table()  # every revision

    def push(self, rows: Iterable[StreamingRow]) -> None:
        self.rows += rows

    def late(self, row: StreamingRow) -> Fate:
        """A row that meets the watermark as it is."""
        met = row._replace(met=self.watermark)
        self.rows.append(met)
        return self.spec.fate(met.time, met.met)

    @property
    def fates(self) -> Counter[Fate]:
        return Counter(self.spec.fate(row.time, row.met) for row in self.rows)

    def advance(self, watermark: int) -> list[Emitted]:
        self.watermark = watermark
        return self._step(flush=False)

    def stop(self) -> list[Emitted]:
        return self._step(flush=True)

    def standing(self) -> dict[Which, tuple[WindowResult, str]]:
        return of_table(self.spec, current(self.revisions))

    def _step(self, *, flush: bool) -> list[Emitted]:
        table = table_of(self.spec, self.rows)
        assigned = assign(self.spec, table, self.watermark, flush=flush)
        found = changes(
            self.spec,
            STREAM,
            aggregate(self.spec, STREAM, table, assigned),
            newest(self.revisions, group_columns(self.spec)),
            watermark=self.watermark,
            batch=1,
            trigger=first_trigger(self.spec, flush=flush),
        ).table
        self.revisions = pa.concat_tables([self.revisions, found]).combine_chunks()
        return [
            Emitted(
                window_id=row["window_id"],
                revision=row["revision"],
                trigger=Trigger(row["trigger"]),
                result=result_of(self.spec, row),
                supersedes=tuple(row["supersedes"]),
                superseded_by=row["superseded_by"],
                withdrawn=row["withdrawn"],
                slices=row["slices"],
            )
            for row in found.to_pylist()
        ]


class EventTime:
    """Slices as they arrive; the rows of each meet the watermark that the slices before left."""

    def __init__(
        self,
        spec: WindowSpec,
        tolerance: int,
        *,
        idle_timeout: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.windows = Windows(spec)
        self.slices: list[StreamingSlice] = []
        self._tolerance, self._idle_timeout, self._max_bytes = tolerance, idle_timeout, max_bytes

    @property
    def watermark(self) -> int | None:
        return self.windows.watermark

    @property
    def fates(self) -> Counter[Fate]:
        return self.windows.fates

    def slice(self, slice_: StreamingSlice) -> list[Emitted]:
        self.slices.append(slice_)
        return self._look(None)

    def land(self, rows: Sequence[StreamingRow], *, source: str = "", arrival: int = 0) -> list[Emitted]:
        return self.slice(slice_of(rows, source, arrival))

    def tick(self, now: int) -> list[Emitted]:
        """Time passes, for sources that are idle."""
        return self._look(now)

    def stop(self) -> list[Emitted]:
        return self.windows.stop()

    def _look(self, now: int | None) -> list[Emitted]:
        met_rows = meet(
            self.slices,
            self._tolerance,
            idle_timeout=self._idle_timeout,
            max_bytes=self._max_bytes,
            now=now,
        )
        self.windows.rows = met_rows.rows
        return self.windows.advance(met_rows.watermark) if met_rows.watermark is not None else []


class ProcessingTime:
    """Rows happen when their slice arrives; ticks move the watermark."""

    def __init__(self, spec: WindowSpec) -> None:
        self.windows = Windows(spec)
        self._seqs = 0

    def slice(self, slice_: StreamingSlice) -> None:
        self._seqs += 1
        self.windows.push(
            StreamingRow(tenant, slice_.arrival, self._seqs, line, slice_.name, size, fields)
            for line, (tenant, _, size, fields) in enumerate(slice_.rows, start=1)
        )

    def land(self, rows: Sequence[StreamingRow], *, arrival: int) -> None:
        self.slice(slice_of(rows, "", arrival))

    def tick(self, now: int) -> list[Emitted]:
        return self.windows.advance(processing_watermark(self.windows.spec, now))

    def stop(self) -> list[Emitted]:
        return self.windows.stop()


def table_of(spec: WindowSpec, rows: Sequence[StreamingRow]) -> pa.Table:
    """Used rows in the order in which they count, as they are read from raw."""
    time = np.array([row.time for row in rows], np.int64)
    met = np.array([row.met or 0 for row in rows], np.int64)
    fate = fates(spec, time, met, np.array([row.met is not None for row in rows], np.bool_))
    columns: dict[str, list[object]] = {
        "at": fate.at.tolist(),
        "time": time.tolist(),
        "seq": [row.seq for row in rows],
        "line": [row.line for row in rows],
        "name": [row.slice for row in rows],
        "late": fate.late.tolist(),
        "bytes": [row.size for row in rows],
        "tenant": [row.tenant for row in rows],
    }
    if fate.past is not None:
        columns["past"] = fate.past.tolist()
    for column in spec.columns:
        columns[f"f.{column}"] = [decimal(row.fields.get(column), SCALES.get(column)) for row in rows]
    schema = row_schema(spec, STREAM)
    arrays = [
        pa.array(columns[field.name], pa.string()).dictionary_encode()
        if pa.types.is_dictionary(field.type)
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    table = pa.table(arrays, schema=schema).filter(pa.array(fate.used))
    order = pc.sort_indices(table, [(name, "ascending") for name in ("at", "seq", "line")])
    return table.take(order).combine_chunks()


def decimal(value: Value, scale: int | None) -> object:
    return value if scale is None or value is None else Decimal(value).scaleb(-scale)


def slice_of(rows: Sequence[StreamingRow], source: str = "", arrival: int = 0) -> StreamingSlice:
    reported = tuple((row.tenant, row.time, row.size, row.fields) for row in rows)
    return StreamingSlice(rows[0].slice, source, arrival, reported)


def rows_of(seq: int, slice_: StreamingSlice) -> list[StreamingRow]:
    """The rows of a slice, before they met anything."""
    return [
        StreamingRow(tenant, time, seq, line, slice_.name, size, fields)
        for line, (tenant, time, size, fields) in enumerate(slice_.rows, start=1)
    ]
