"""Runs one statement: checks it, opens the views it names at one snapshot, and runs it on DuckDB.

Each statement has an engine of its own: in memory, without files, network or extensions, with settings that
can no longer be changed when the statement runs. Nothing is written anywhere.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import duckdb
import pyarrow as pa

from tidemill.model.completeness import ROUND, Completeness, Pending, completeness
from tidemill.model.errors import QueryError, StorageError, TidemillError
from tidemill.model.names import quoted
from tidemill.model.time import format_duration
from tidemill.query.plain_sql.file_scan import FileScan
from tidemill.query.plain_sql.open_views import open_view
from tidemill.query.plain_sql.statement_check import Statement, check
from tidemill.query.plain_sql.views import OpenView, View, declared_views
from tidemill.query.service import TenantChoice, arrivals, tenant_of
from tidemill.storage.state.faults import faults_of, named

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse

THREADS: Final = 2
_BATCH: Final = 65_536  # rows of an answer in a batch
_LISTING: Final = pa.schema(
    [("schema", pa.string()), ("name", pa.string()), ("column", pa.string()), ("type", pa.string())]
)
_LACK_MEMORY: Final = "Out of Memory Error"
_KIND: Final = re.compile(r"^(?:Invalid Input Error: )?(?:[A-Z][A-Za-z-]*(?: [A-Z][A-Za-z-]*)* Error: )+")


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one statement may use."""

    memory: int  # bytes, for the engine and for a table that its rows are gathered in
    timeout: int  # microseconds


class SqlAnswer:
    """The rows of a statement, which can be iterated once as `batches` or kept as one `table`, and the
    completeness of its streams. Close it, or use it as a context manager, unless all rows are read."""

    schema: pa.Schema
    completeness: Mapping[str, Completeness]  # by stream

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        lacks: Mapping[str, Completeness],
        memory: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.completeness = lacks
        self._memory = memory
        self._close = close
        names = _unique(schema.names)
        self.schema = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
        self._batches = batches

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as they are made, once."""
        try:
            for batch in self._batches:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        finally:
            self.close()

    @cached_property
    def table(self) -> pa.Table:
        """All rows. QueryError if they need more than the memory of a statement."""
        found, size = [], 0
        for batch in self.batches():
            found.append(batch)
            size += batch.nbytes
            if size > self._memory:
                self.close()
                raise QueryError(
                    f"the rows need more than {_size(self._memory)} of memory",
                    hint="select fewer rows or columns, write them to a file as they come (-o FILE), or give "
                    "it more memory (--memory, sql.memory)",
                )
        return pa.Table.from_batches(found, self.schema)

    @property
    def is_complete(self) -> bool:
        return all(one.complete for one in self.completeness.values())

    def lines(self) -> list[str]:
        """Sentences for a person: how far each stream is complete, and each thing that it lacks."""
        return [f"{stream}: {line}" for stream, one in self.completeness.items() for line in one.lines()]

    def check(self) -> None:
        """IncompleteError when something is missing or pending."""
        for one in self.completeness.values():
            one.check()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For whatever reads Arrow streams: `polars.from_arrow`, `duckdb`, `pyarrow.table`."""
        return self.table.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_sql(
    warehouse: Warehouse, text: str, tenants: TenantChoice, limits: SqlLimits, *, strict: bool = False
) -> SqlAnswer:
    """The answer to one statement; its rows are computed while they are read."""
    known = declared_views(warehouse.project.streams)
    run = _Run(limits)
    try:
        statement = run.checked(text, [*known])
        if statement.is_listing:
            run.close()
            return _listed(list_views(warehouse), limits)
        views = [known[key] for key in sorted(statement.views)]
        opened, lacks = _opened(warehouse, views, tenants)
        if strict:
            for one in lacks.values():
                one.check()
        schema, batches = run.start(statement, opened)
    except StorageError as error:
        run.close()
        raise named(error, warehouse.root) from error
    except BaseException:
        run.close()
        raise
    return SqlAnswer(schema, _named(batches, warehouse), lacks, limits.memory, run.close)


def list_views(warehouse: Warehouse) -> list[tuple[View, list[tuple[str, str]]]]:
    """All views with their columns and types. No rows are read."""
    run = _Run(SqlLimits(256 << 20, 60_000_000))
    try:
        return [
            (view, run.columns(open_view(warehouse, view, None)))
            for view in declared_views(warehouse.project.streams).values()
        ]
    finally:
        run.close()


def _listed(views: Sequence[tuple[View, Sequence[tuple[str, str]]]], limits: SqlLimits) -> SqlAnswer:
    rows = [
        {"schema": view.schema, "name": view.name, "column": name, "type": kind}
        for view, columns in views
        for name, kind in columns
    ]
    table = pa.Table.from_pylist(rows, _LISTING)
    return SqlAnswer(_LISTING, iter(table.to_batches()), {}, limits.memory)


def _opened(
    warehouse: Warehouse, views: Sequence[View], choice: TenantChoice
) -> tuple[list[OpenView], dict[str, Completeness]]:
    """The views, and what each of their streams lacks. Pending data is read first, then the tables: what is
    built meanwhile is in the answer and reported as pending."""
    streams = dict.fromkeys(view.stream for view in views)
    tenants = {stream: tenant_of(warehouse, stream, choice) for stream in streams}
    rolled = {view.stream for view in views if view.schema == "rollups"}
    known = {
        stream: arrivals(warehouse, stream, None, tiles=stream in rolled, tenant=choice.tenant)
        for stream in streams
    }
    opened = [open_view(warehouse, view, tenants[view.stream]) for view in views]
    lacks = {}
    for stream in streams:
        own = [one for one in opened if one.view.stream == stream]
        missing = dict.fromkeys(one for view in own for one in view.missing)
        pending = dict.fromkeys(one for view in own for one in view.pending)
        faults = _failing(warehouse, stream, {one.view.schema for one in own})
        waiting = replace(known[stream], pending=(*known[stream].pending, *pending, *faults))
        lacks[stream] = completeness(waiting, None, missing=tuple(missing))
    return opened, lacks


def _failing(warehouse: Warehouse, stream: str, schemas: set[str]) -> Iterator[Pending]:
    """Outputs that the rounds cannot bring up to date."""
    for fault in faults_of(warehouse.state, stream):
        if fault.output in schemas:
            yield Pending(
                what="windows" if fault.output == "windows" else "tiles",
                count=None,
                detail=f"{fault.output} of the stream cannot be brought up to date: {fault.message}",
                remedy=f"{fault.hint}; then `{ROUND}`",
            )


def _named(batches: Iterator[pa.RecordBatch], warehouse: Warehouse) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except StorageError as error:
        raise named(error, warehouse.root) from error


class _Run:
    """The engine of one statement, and the time it has left."""

    def __init__(self, limits: SqlLimits) -> None:
        self._limits = limits
        self._scans: list[OpenView] = []
        self._is_late = threading.Event()
        self._is_closed = False
        self._guard = threading.Lock()
        self._timer = threading.Timer(limits.timeout / 1_000_000, self._stop)
        self._timer.daemon = True
        self._engine = duckdb.connect(
            ":memory:",
            config={
                "threads": THREADS,
                "memory_limit": f"{limits.memory}B",
                "temp_directory": "",  # what does not fit in memory is refused, not written to some folder
                "autoload_known_extensions": False,
                "autoinstall_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
            },
        )
        self._engine.execute("SET TimeZone = 'UTC'; SET enable_external_access = false")

    def checked(self, text: str, views: Sequence[tuple[str, str]]) -> Statement:
        with self._errors():
            return check(text, views, self._engine)

    def columns(self, opened: OpenView) -> list[tuple[str, str]]:
        with self._errors():
            self._make(opened)
            found = self._engine.execute(f"DESCRIBE {_name(opened.view)}").fetchall()
        return [(name, kind) for name, kind, *_ in found]

    def start(
        self, statement: Statement, opened: Sequence[OpenView]
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Run it; its rows come as they are read."""
        with self._errors():
            for one in opened:
                self._make(one)
            self._engine.execute("SET lock_configuration = true")
            self._timer.start()
            reader = self._engine.execute(statement.text).to_arrow_reader(_BATCH)
        return reader.schema, self._batches(reader)

    def close(self) -> None:
        self._timer.cancel()
        with self._guard:
            self._is_closed = True
            self._engine.close()

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while True:
            with self._errors():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch

    def _make(self, opened: OpenView) -> None:
        """Create one view. Its scan has only the rows of its tenant, whatever the statement says."""
        source = f"source_{len(self._scans)}"
        if isinstance(opened.rows, FileScan):
            opened.rows.watch(self._check_time)
        self._scans.append(opened)
        self._engine.register(source, opened.rows)
        self._engine.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(opened.view.schema)}")
        self._engine.execute(f"CREATE VIEW {_name(opened.view)} AS {opened.sql(source)}")

    def _stop(self) -> None:
        self._is_late.set()
        with self._guard:
            if not self._is_closed:
                self._engine.interrupt()

    def _check_time(self) -> None:
        if self._is_late.is_set():
            raise self._too_long()

    def _too_long(self) -> QueryError:
        return QueryError(
            f"the statement ran longer than {format_duration(self._limits.timeout)}",
            hint="select less, use rollups instead of raw, or give it more time (--timeout, sql.timeout)",
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of DuckDB (or of Arrow, in a stream of batches) as errors of ours."""
        try:
            yield
        except TidemillError:
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._error_for(str(error)) from error

    def _error_for(self, message: str) -> TidemillError:
        if self._is_late.is_set():
            return self._too_long()
        for one in self._scans:
            failure = getattr(one.rows, "failure", None)
            if isinstance(failure, TidemillError):
                return failure
        if _LACK_MEMORY in message:
            return QueryError(
                f"the statement needs more than {_size(self._limits.memory)} of memory",
                hint="select less, group by less, or give it more memory (--memory, sql.memory)",
            )
        if "get_next failed" in message or "IOError" in message:
            return StorageError(
                f"a part cannot be read: {message.splitlines()[0]}",
                hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
            )
        first, *rest = [line.strip() for line in message.split("\n\nLINE ")[0].splitlines() if line.strip()]
        hint = " ".join(rest) or "the SQL is that of DuckDB; `tidemill sql` lists the views and their columns"
        return QueryError(_KIND.sub("", first) or first, hint=hint)


def _name(view: View) -> str:
    return f"{quoted(view.schema)}.{quoted(view.name)}"


def _unique(names: Sequence[str]) -> list[str]:
    """Column names, those that repeat with a number."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        shown = name
        while shown in found:
            seen[name] += 1
            shown = f"{name}_{seen[name]}"
        found.append(shown)
    return found


def _size(count: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.4g} {unit}"
    return f"{count} bytes"
