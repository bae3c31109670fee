"""Reads rows of raw in a given order: DuckDB over the parts that can hold them, in process.

Sorting is bounded in memory and spills to disk; rows come in small batches. Rows of slices that the caller
does not know are left out: raw may be ahead of the state for a moment.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.ingest.retraction_log import RetractionLog
from tidemill.model.errors import BusyError, StorageError
from tidemill.model.names import literal_path
from tidemill.model.time import Interval
from tidemill.raw.footers import declared_in
from tidemill.raw.part_payloads import PAYLOAD as _PAYLOAD
from tidemill.raw.part_payloads import PartPayloads, has_whole_payloads
from tidemill.raw.tables import RAW
from tidemill.storage import layout
from tidemill.storage.tables.part_checksums import checked
from tidemill.storage.tables.parts import open_part
from tidemill.storage.tables.snapshot import Range, Snapshot
from tidemill.storage.tables.table import Table, expect_version

if TYPE_CHECKING:
    import duckdb
    import pyarrow.parquet as pq

    from tidemill.raw.tail.offsets import Feed

INSTANT: Final = pa.timestamp("us", tz="UTC")
ROWS: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("event_time", INSTANT),
        pa.field("event_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("arrival", INSTANT),
        pa.field("slice", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("payload", pa.string()),
    ]
)
LATE: Final = "raw.event_time <= raw.watermark"
ON_TIME: Final = f"({LATE}) IS NOT TRUE"
BY_TIME: Final = "raw.event_time, seq, line"
BY_ARRIVAL: Final = "seq, line"
BATCH_ROWS: Final = 4_096
THREADS: Final = 2
MEMORY: Final = "256MB"
_INSTANTS: Final = frozenset({"event_time", "arrival", "watermark"})

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TailScope:
    """Which rows, in which order: `where` and `order` are SQL over raw and `seq`, made only in this
    package."""

    seqs: Mapping[str, int]  # ledger offset, by slice
    where: str
    order: str
    after: int | None = None  # event times, exclusive …
    upto: int | None = None  # … inclusive
    tenant: str | None = None
    limit: int | None = None


class TailRows:
    """Raw of one stream, open for reading. A context manager: it may need a folder to spill to."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._table: Table | None = None
        self._snapshot: Snapshot | None = None
        self._spill = tempfile.TemporaryDirectory(prefix="tidemill-", ignore_cleanup_errors=True)
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __enter__(self) -> TailRows:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._spill.cleanup()

    def refresh(self) -> None:
        """Read the newest version from now on."""
        warehouse, name = self._feed.warehouse, self._feed.stream.name
        # Read first: the table can only be ahead.
        committed = self._feed.state.table_versions(name).get("raw", 0)
        root = layout.raw(warehouse, name)
        if self._table is None:
            self._table = Table.existing(root)
        else:
            self._table.refresh()
        expect_version(root, self._table, committed)
        self._snapshot = self._without_lost(self._table.snapshot()) if self._table is not None else None
        if RetractionLog(warehouse).unfinished(self._feed.state, name) is not None:
            raise BusyError(
                f"a slice of {name} is being retracted",
                hint="it takes a moment; after a crash the next `tidemill run` finishes it",
            )

    def _without_lost(self, found: Snapshot) -> Snapshot:
        lost = layout.in_table(found.root, self._feed.warehouse, [one.file for one in self._feed.lost()])
        if not lost:
            return found
        return replace(found, parts=[part for part in found.parts if part.path not in lost])

    def rows(
        self, scope: TailScope, columns: pa.Schema = ROWS, *, piecewise: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Columns of the rows in scope, and `seq`. With `piecewise`, parts whose times do not overlap are
        sorted one after the other, which is equivalent if the order is by event time."""
        left = scope.limit
        for paths in self._paths(scope, piecewise=piecewise):
            with self._cursor(scope.seqs) as cursor:
                source, files = _PARTS, {"files": [literal_path(path) for path in paths]}
                if _PAYLOAD in columns.names and not all(has_whole_payloads(path) for path in paths):
                    cursor.register("parts", _with_payloads(paths, scope))
                    source, files = "parts", {}
                text, values = _statement(scope, columns, left, source)
                reader = cursor.execute(text, {**files, **values}).to_arrow_reader(BATCH_ROWS)
                for batch in reader:
                    if batch.num_rows:
                        yield _typed(batch, columns)
                        left = None if left is None else left - batch.num_rows
            if left == 0:
                return

    def numbers(self, scope: TailScope, sums: Sequence[str]) -> list[int]:
        """Counts over the rows in scope, each as SQL."""
        totals = [0] * len(sums)
        for paths in self._paths(scope, piecewise=False):
            where, values = _where(scope)
            text = f"SELECT {', '.join(sums)} FROM {_PARTS} {_JOINED} WHERE {where}"
            with self._cursor(scope.seqs) as cursor:
                files = [literal_path(path) for path in paths]
                found = cursor.execute(text, {"files": files, **values}).fetchone()
            totals = [int(number) for number in found or totals]
        return totals

    def _paths(self, scope: TailScope, *, piecewise: bool) -> Iterator[list[str]]:
        if self._snapshot is None or not scope.seqs or scope.limit == 0:
            return
        ranges: dict[str, Range] = {"event_time": (scope.after, scope.upto)}
        if scope.tenant is not None:
            ranges["tenant"] = (scope.tenant, scope.tenant)
        ranges["slice"] = (min(scope.seqs), max(scope.seqs))
        parts = self._snapshot.select(ranges=ranges)
        pieces = self._snapshot.apart("event_time", parts) if piecewise else [parts] if parts else []
        for piece in pieces:
            yield list(checked(self._snapshot.paths(piece)))

    @contextmanager
    def _cursor(self, seqs: Mapping[str, int]) -> Iterator[duckdb.DuckDBPyConnection]:
        import duckdb

        known = pa.table({"slice": pa.array(seqs, pa.string()), "seq": pa.array(seqs.values(), pa.int64())})
        try:
            if self._connection is None:
                self._connection = duckdb.connect(
                    ":memory:",
                    config={
                        "threads": THREADS,
                        "memory_limit": MEMORY,
                        "temp_directory": str(Path(self._spill.name) / "sort"),
                        "preserve_insertion_order": False,
                        "autoload_known_extensions": False,
                        "autoinstall_known_extensions": False,
                    },
                )
            cursor = self._connection.cursor()
            try:
                cursor.register("places", known)
                yield cursor
            finally:
                cursor.close()
        except duckdb.Error as error:
            raise StorageError(
                f"raw cannot be read: {str(error).splitlines()[0]}",
                hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
                where=str(layout.raw(self._feed.warehouse, self._feed.stream.name)),
            ) from error


def of_slices(spans: Sequence[Interval | None]) -> tuple[int | None, int | None]:
    """`after` and `upto` for rows that lie in these spans of event time."""
    known = [span for span in spans if span is not None]
    if not known:
        return None, None
    return min(span.start for span in known) - 1, max(span.end for span in known) - 1


_PARTS: Final = "read_parquet($files, hive_partitioning = false)"
_JOINED: Final = "raw JOIN places USING (slice)"


def _with_payloads(paths: Sequence[str], scope: TailScope) -> pa.RecordBatchReader:
    """The rows of parts that may be in scope, with payloads as they were sent."""

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            with open_part(path) as file:
                payloads = PartPayloads(declared_in(file, path))
                names = list(dict.fromkeys([*RAW.names, *payloads.names]))
                groups = [group for group in range(file.num_row_groups) if _may_hold(file, group, scope)]
                for batch in file.iter_batches(BATCH_ROWS, groups, columns=names, use_threads=False):
                    yield payloads.put_back(batch).select(RAW.names).cast(RAW)

    return pa.RecordBatchReader.from_batches(RAW, batches())


def _may_hold(file: pq.ParquetFile, group: int, scope: TailScope) -> bool:
    statistics = (
        file.metadata.row_group(group).column(file.schema_arrow.get_field_index("event_time")).statistics
    )
    if statistics is None or not statistics.has_min_max:
        return True
    low, high = statistics.min_raw, statistics.max_raw
    return (scope.after is None or high > scope.after) and (scope.upto is None or low <= scope.upto)


def _statement(scope: TailScope, columns: pa.Schema, limit: int | None, source: str) -> tuple[str, Values]:
    where, values = _where(scope)
    named = ", ".join(_selected(name) for name in columns.names)
    text = f"SELECT {named}, seq FROM {source} {_JOINED} WHERE {where} ORDER BY {scope.order}"
    return (text if limit is None else f"{text} LIMIT {limit:d}"), values


def _selected(name: str) -> str:
    """Instants as integers: how DuckDB shows them depends on a time zone."""
    return f"epoch_us(raw.{name}) AS {name}" if name in _INSTANTS else f"{name}"


def _where(scope: TailScope) -> tuple[str, dict[str, object]]:
    terms = [scope.where]
    values: dict[str, object] = {}
    if scope.after is not None:
        terms.append("raw.event_time > make_timestamptz($after)")
        values["after"] = scope.after
    if scope.upto is not None:
        terms.append("raw.event_time <= make_timestamptz($upto)")
        values["upto"] = scope.upto
    if scope.tenant is not None:
        terms.append("tenant = $tenant")
        values["tenant"] = scope.tenant
    return " AND ".join(f"({term})" for term in terms), values


def _typed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).view(field.type)
        if field.name in _INSTANTS
        else batch.column(field.name).cast(field.type)
        for field in columns
    ]
    schema = pa.schema([*columns, pa.field("seq", pa.int64())])
    return pa.RecordBatch.from_arrays([*arrays, batch.column("seq").cast(pa.int64())], schema=schema)
