"""Runs a plan in process: DuckDB over the file list, Arrow out. One connection lives as long as the
runner, so that what it learned of a file is kept. Never starts a JVM, never reads raw.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from tidemill.model.errors import QueryError, StorageError
from tidemill.model.levels import Level
from tidemill.model.time import Interval
from tidemill.query import sql
from tidemill.query.answer import Answer, Engine, Explanation
from tidemill.query.coverage import Arrivals, completeness
from tidemill.query.grid import outward
from tidemill.query.plan import Plan
from tidemill.query.shape import Found, shaped
from tidemill.query.source import Files, Source

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MAX_FILLED: Final = 1_000_000  # rows that filling gaps may make
MAX_LISTS: Final = 200_000  # rows of files whose bins are held at once
THREADS: Final = 2
MEMORY: Final = "1GB"
_HITS: Final = "hits"
_STOOD: Final = "stood"


class Reader(Protocol):
    """An engine that folds the rows of files as `tidemill.query.sql` says."""

    @property
    def engine(self) -> Engine: ...
    def hits(self, plan: Plan, paths: Sequence[str]) -> pa.Table: ...
    def bins(self, plan: Plan, files: Files) -> pa.Table: ...
    def opening(self, plan: Plan, paths: Mapping[Level, Sequence[str]]) -> pa.Table: ...
    def extent(self, plan: Plan, paths: Sequence[str]) -> tuple[int | None, int | None]: ...


class Runner:
    """An in-process engine. Safe to share between threads: each run has its own cursor."""

    def __init__(self, threads: int = THREADS, memory: str = MEMORY) -> None:
        self._settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": threads,
            "memory_limit": memory,
            "temp_directory": "",  # a query that needs to spill is refused, not written to some folder
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
        }
        self._memory = memory
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def run(
        self,
        plan: Plan,
        source: Source,
        arrivals: Arrivals,
        reader: Reader | None = None,
    ) -> Answer:
        """The answer. Rows are folded by `reader`, or else here; the rest is the same for all engines."""
        files = source.files_for(plan.level.name, plan.read)
        earlier = {level: source.files_for(level.name, span) for level, span in plan.opening.items()}
        with self._cursor() as cursor:
            reads = reader or DuckReader(cursor)
            hits = reads.hits(plan, files.paths)
            opening = (
                reads.opening(plan, {level: each.paths for level, each in earlier.items()})
                if earlier
                else None
            )
            data = _data(reads, plan, hits, files.paths)
            cells = _cells_to_fill(plan, data)
            bins = reads.bins(plan, files) if plan.percentile else None
            gaps = _gaps(cursor, plan, hits, opening, cells)
        every = [files, *earlier.values()]
        return Answer(
            table=shaped(Found(hits, gaps, opening, bins), plan),
            stream=plan.stream,
            metric=plan.metric,
            level=plan.level.name,
            interval=plan.interval,
            span=plan.span,
            rows_read=sum(each.rows for each in every),
            files_read=sum(len(each.paths) for each in every),
            completeness=completeness(arrivals, plan.span, data),
            version=source.version,
            engine=reader.engine if reader else "duckdb",
        )

    def explain(
        self,
        plan: Plan,
        source: Source,
        arrivals: Arrivals,
        engine: Engine = "duckdb",
    ) -> Explanation:
        files = source.files_for(plan.level.name, plan.read)
        earlier = [source.files_for(level.name, span) for level, span in plan.opening.items()]
        statement = sql.aggregate(plan, list(files.paths))
        statement.parameters.pop("files", None)
        return Explanation(
            stream=plan.stream,
            metric=plan.metric,
            tenant=plan.tenant,
            level=plan.level.name,
            interval=plan.interval,
            span=plan.span,
            read=plan.read,
            cells=len(plan.grid.cells) if plan.grid else None,
            edges=plan.edges,
            fill=plan.fill,
            format=plan.format,
            files=sum(len(each.paths) for each in (files, *earlier)),
            rows=sum(each.rows for each in (files, *earlier)),
            version=source.version,
            sql=statement.text,
            parameters=statement.parameters,
            opening={level.name: span for level, span in plan.opening.items()},
            completeness=completeness(arrivals, plan.span),
            engine=engine,
        )

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of its own on the shared connection; the engine's errors become ours."""
        import duckdb

        try:
            with self._lock:
                if self._connection is None:
                    self._connection = duckdb.connect(":memory:", config=self._settings)
                    self._connection.execute("SET parquet_metadata_cache = true")
                cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()
        except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
            raise QueryError(
                "a count of the answer does not fit 64 bits",
                hint="ask for a shorter span or fewer groups at once",
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise QueryError(
                f"the query needs more than {self._memory} of memory",
                hint="ask for a shorter span, a coarser interval or fewer groups",
            ) from error
        except duckdb.Error as error:
            raise StorageError(
                f"the rollups can not be read: {str(error).splitlines()[0]}",
                hint="try again; if it stays, run `tidemill verify`",
            ) from error


def literal_path(path: str) -> str:
    """The path with its glob characters made literal: the engine would expand them."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


class DuckReader:
    """Folds rows in process."""

    engine: Final = "duckdb"

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

    def hits(self, plan: Plan, paths: Sequence[str]) -> pa.Table:
        return _table(self._cursor, sql.aggregate(plan, _literal(paths)))

    def bins(self, plan: Plan, files: Files) -> pa.Table:
        """Lists are merged faster by those who need them, as long as they are not too many to hold."""
        merged = files.rows > MAX_LISTS
        return _table(self._cursor, sql.bins(plan, _literal(files.paths), merged=merged))

    def opening(self, plan: Plan, paths: Mapping[Level, Sequence[str]]) -> pa.Table:
        literal = {level: _literal(each) for level, each in paths.items()}
        return _table(self._cursor, sql.opening(plan, literal))

    def extent(self, plan: Plan, paths: Sequence[str]) -> tuple[int | None, int | None]:
        statement = sql.data_span(plan, _literal(paths))
        found = self._cursor.execute(statement.text, statement.parameters).fetchone()
        return found or (None, None)


def _literal(paths: Sequence[str]) -> list[str]:
    return [literal_path(path) for path in paths]


def _table(cursor: duckdb.DuckDBPyConnection, statement: sql.Statement) -> pa.Table:
    return cursor.execute(statement.text, statement.parameters).to_arrow_table()


def _data(reads: Reader, plan: Plan, hits: pa.Table, paths: Sequence[str]) -> Interval | None:
    """From the first to the end of the last bucket there is, read apart only where it must be."""
    if plan.where is None and plan.interval == plan.level.width:
        import pyarrow.compute as pc

        extremes = pc.min_max(hits.column("cell")).as_py()
        first, last = extremes["min"], extremes["max"]
    else:
        first, last = reads.extent(plan, paths)
    return None if first is None or last is None else Interval(first, last + plan.level.width)


def _cells_to_fill(plan: Plan, data: Interval | None) -> range | None:
    """The cells that every group must have a row for; None: only those that have data."""
    if plan.interval is None:
        return None
    if plan.fill != "drop":
        if plan.grid:
            return plan.grid.cells
        return outward(data, plan.interval).windows(plan.interval) if data else None
    hidden = plan.grid.hidden if plan.grid else ()
    return range(hidden[0], hidden[-1] + 1, max(hidden[-1] - hidden[0], 1)) if hidden else None


def _gaps(
    cursor: duckdb.DuckDBPyConnection,
    plan: Plan,
    hits: pa.Table,
    opening: pa.Table | None,
    cells: range | None,
) -> pa.Table | None:
    """The cells and groups that must have a row and have none; of totals, the groups that just stood."""
    keys = sql.group_columns(plan)
    if cells is None and not (plan.interval is None and opening is not None and keys):
        return None
    if cells is not None and not cells:
        return None
    groups = 1
    if keys:
        known = [hits.select(keys), *([opening.select(keys)] if opening is not None else [])]
        groups = sum(table.group_by(keys).aggregate([]).num_rows for table in known)
    if cells is not None and len(cells) * groups > MAX_FILLED:
        raise QueryError(
            f"filling {len(cells)} buckets for {groups} groups makes more than {MAX_FILLED} rows",
            hint="use FILL drop, a longer INTERVAL, a shorter span or fewer groups",
        )
    cursor.register(_HITS, hits)
    if opening is not None:
        cursor.register(_STOOD, opening)
    return _table(cursor, sql.missing(plan, _HITS, _STOOD if opening is not None else None, cells))
