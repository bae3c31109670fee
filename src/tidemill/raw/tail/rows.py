"""Rows of raw in one order or another: DuckDB over the parts that can hold them, in process.

What has to be sorted is sorted within a bound of memory and spilled beyond it; rows come out in small
batches. Rows whose slice the caller does not know are left out: raw may be ahead of the state for a
moment.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.ingest.retractions import RetractionLog
from tidemill.model.errors import BusyError, StorageError
from tidemill.model.time import Interval
from tidemill.storage import layout
from tidemill.storage.tables.checksums import checked
from tidemill.storage.tables.snapshot import Range, Snapshot
from tidemill.storage.tables.table import Table, expect_version

if TYPE_CHECKING:
    import duckdb

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
    """Which rows, in which order: `where` and `order` are SQL over raw and `seq`, written in this room."""

    seqs: Mapping[str, int]  # place in the ledger, by slice
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

    def look(self) -> None:
        """Read from the newest version from now on."""
        warehouse, name = self._feed.warehouse, self._feed.stream.name
        committed = self._feed.state.table_versions(name).get("raw", 0)  # first: the table only goes ahead
        root = layout.raw(warehouse, name)
        if self._table is None:
            self._table = Table.existing(root)
        else:
            self._table.refresh()
        expect_version(root, self._table, committed)
        self._snapshot = self._table.snapshot() if self._table is not None else None
        if RetractionLog(warehouse).unfinished(self._feed.state, name) is not None:
            raise BusyError(
                f"a slice of {name} is being retracted",
                hint="it takes a moment; after a crash the next `tidemill run` finishes it",
            )

    def rows(
        self, wanted: TailScope, columns: pa.Schema = ROWS, *, piecewise: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Columns of wanted rows, and `seq`. With `piecewise` parts whose times do not overlap are sorted one
        after the other, which is the same when order is by event time."""
        left = wanted.limit
        for paths in self._paths(wanted, piecewise=piecewise):
            text, values = _statement(wanted, columns, left)
            with self._cursor(wanted.seqs) as cursor:
                reader = cursor.execute(text, {"files": paths, **values}).to_arrow_reader(BATCH_ROWS)
                for batch in reader:
                    if batch.num_rows:
                        yield _typed(batch, columns)
                        left = None if left is None else left - batch.num_rows
            if left == 0:
                return

    def numbers(self, wanted: TailScope, sums: Sequence[str]) -> list[int]:
        """Counts over wanted rows, each as SQL."""
        totals = [0] * len(sums)
        for paths in self._paths(wanted, piecewise=False):
            where, values = _where(wanted)
            text = f"SELECT {', '.join(sums)} FROM {_FROM} WHERE {where}"
            with self._cursor(wanted.seqs) as cursor:
                found = cursor.execute(text, {"files": paths, **values}).fetchone()
            totals = [int(number) for number in found or totals]
        return totals

    def _paths(self, wanted: TailScope, *, piecewise: bool) -> Iterator[list[str]]:
        if self._snapshot is None or not wanted.seqs or wanted.limit == 0:
            return
        ranges: dict[str, Range] = {"event_time": (wanted.after, wanted.upto)}
        if wanted.tenant is not None:
            ranges["tenant"] = (wanted.tenant, wanted.tenant)
        ranges["slice"] = (min(wanted.seqs), max(wanted.seqs))
        parts = self._snapshot.select(ranges=ranges)
        pieces = self._snapshot.apart("event_time", parts) if piecewise else [parts] if parts else []
        for piece in pieces:
            yield [_literal(path) for path in checked(self._snapshot.paths(piece))]

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
    """`after` and `upto` of rows that lie in these spans of event time."""
    known = [span for span in spans if span is not None]
    if not known:
        return None, None
    return min(span.start for span in known) - 1, max(span.end for span in known) - 1


_FROM: Final = "read_parquet($files, hive_partitioning = false) raw JOIN places USING (slice)"


def _statement(wanted: TailScope, columns: pa.Schema, limit: int | None) -> tuple[str, Values]:
    where, values = _where(wanted)
    named = ", ".join(_selected(name) for name in columns.names)
    text = f"SELECT {named}, seq FROM {_FROM} WHERE {where} ORDER BY {wanted.order}"
    return (text if limit is None else f"{text} LIMIT {limit:d}"), values


def _selected(name: str) -> str:
    """Instants as integers: how DuckDB shows them depends on a time zone."""
    return f"epoch_us(raw.{name}) AS {name}" if name in _INSTANTS else f"{name}"


def _where(wanted: TailScope) -> tuple[str, dict[str, object]]:
    terms = [wanted.where]
    values: dict[str, object] = {}
    if wanted.after is not None:
        terms.append("raw.event_time > make_timestamptz($after)")
        values["after"] = wanted.after
    if wanted.upto is not None:
        terms.append("raw.event_time <= make_timestamptz($upto)")
        values["upto"] = wanted.upto
    if wanted.tenant is not None:
        terms.append("tenant = $tenant")
        values["tenant"] = wanted.tenant
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


def _literal(path: str) -> str:
    """The path with its glob characters made literal: the engine would expand them."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)
