"""Runs a plan in process: DuckDB over the file list, Arrow out. One connection lives as long as the runner,
so that metadata of files stay cached. Never starts a JVM."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Protocol

from tidemill.model.completeness import Arrivals, completeness
from tidemill.model.errors import QueryError, StorageError
from tidemill.model.levels import LEVELS
from tidemill.model.names import literal_path
from tidemill.model.time import Interval, joined
from tidemill.query import plan_sql
from tidemill.query.answer import Answer, Engine, Explanation
from tidemill.query.answer_table import AggregatedRows, shaped, values_of
from tidemill.query.cell_grid import overlapped
from tidemill.query.column_cache import KeptColumns
from tidemill.query.cover import ALL_TIME, RAW, outward
from tidemill.query.last_values import LastValues, values_before
from tidemill.query.plan import Plan, with_cells_of
from tidemill.query.read_plan import QueryReading, reading_of, without_raw
from tidemill.query.source import Files, RawRequest, RawRows, Scans, Source, scans_of
from tidemill.query.unfit import UnfitEvents, unfit_events
from tidemill.storage.tables.part_checksums import checked

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.

MAX_FILLED: Final = 1_000_000  # rows that filling gaps may make
MAX_LISTS: Final = 200_000  # rows of files whose bins are held at once
THREADS: Final = 2
MEMORY: Final = "1GB"
_HITS: Final = "hits"
_TOTALS: Final = "stood"


class PlanReader(Protocol):
    """An engine that folds rows as `tidemill.query.plan_sql` says."""

    @property
    def engine(self) -> Engine: ...
    def hits(self, plan: Plan, scans: Scans) -> pa.Table: ...
    def bins(self, plan: Plan, scans: Scans) -> pa.Table: ...
    def opening(self, plan: Plan, scans: Scans) -> pa.Table: ...
    def extent(self, plan: Plan, scans: Scans) -> tuple[int | None, int | None]: ...


class Runner:
    """An in-process engine. Thread-safe: each run has its own cursor."""

    def __init__(
        self, threads: int = THREADS, memory: str = MEMORY, columns: KeptColumns | None = None
    ) -> None:
        self._settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": threads,
            "memory_limit": memory,
            "temp_directory": "",  # a query that needs to spill is refused, not written to some folder
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
        }
        self._memory = memory
        self._columns = columns or KeptColumns()
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
        reader: PlanReader | None = None,
    ) -> Answer:
        """The answer. Rows are folded by `reader`, or else here; the rest is the same for all engines."""
        with self._cursor() as cursor:
            reads = reader or DuckReader(cursor, self._columns)
            plan = _with_cells(plan, source, reads)
            reading, raw = _read(plan, source)
            body, earlier = _scanned(reading, source, raw)
            hits = _with_changes(plan, reads.hits(plan, body))
            unfit = unfit_events(plan, source, body, reads.hits)
            reading = _then_unknown(reading, unfit)
            opening = reads.opening(plan, earlier) if reading.opening.pieces else None
            data = _data(reads, plan, hits, body)
            cells = _cells_to_fill(plan, data)
            bins = reads.bins(plan, body) if plan.percentile else None
            before = values_before(plan, hits, lambda earlier: _folded(earlier, source, reads))
            totals = [each for each in (opening, before.values) if each is not None]
            gaps = _gaps(cursor, plan, hits, totals, cells)
        self._columns.use()
        found = AggregatedRows(hits, gaps, opening, bins, before.values, reading.lost, reading.unknown, unfit)
        return Answer(
            table=shaped(found, plan),
            stream=plan.stream,
            metric=plan.metric,
            level=_level(plan, reading),
            interval=plan.interval,
            step=str(plan.step) if plan.step is not None else None,
            span=plan.span,
            rows_read=body.rows + earlier.rows + raw.events,
            files_read=body.files + earlier.files + raw.files,
            completeness=completeness(
                arrivals, plan.span, data, (*before.missing, *reading.missing, *unfit.missing)
            ),
            version=source.version,
            engine=reader.engine if reader else "duckdb",
            pieces=(*reading.opening.pieces, *reading.cover.pieces),
        )

    def explain(
        self,
        plan: Plan,
        source: Source,
        arrivals: Arrivals,
        engine: Engine = "duckdb",
    ) -> Explanation:
        """What `run` would do. Data are read only where the cells depend on them."""
        with self._cursor() as cursor:
            plan = _with_cells(plan, source, DuckReader(cursor))
        reading = reading_of(plan, source.available)
        body = Scans(scans_of(reading.cover, source))
        earlier = Scans(scans_of(reading.opening, source))
        statement = plan_sql.aggregate(plan, body)
        files = [name for name in statement.parameters if name.startswith("files_")]
        for name in files:
            del statement.parameters[name]
        return Explanation(
            stream=plan.stream,
            metric=plan.metric,
            tenant=plan.tenant,
            level=_level(plan, reading),
            interval=plan.interval,
            step=str(plan.step) if plan.step is not None else None,
            span=plan.span,
            pieces=reading.cover.pieces,
            cells=len(plan.grid.cells) if plan.grid else None,
            edges=plan.edges,
            fill=plan.fill,
            format=plan.format,
            files=body.files + earlier.files,
            rows=body.rows + earlier.rows,
            version=source.version,
            sql=statement.text,
            parameters=statement.parameters,
            opening=reading.opening.pieces,
            completeness=completeness(arrivals, plan.span, missing=reading.missing),
            engine=engine,
        )

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor on the shared connection; errors of the engine become ours."""
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
                f"the rollups cannot be read: {str(error).splitlines()[0]}",
                where=_file_in(str(error)),
                hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
            ) from error


def _file_in(message: str) -> str:
    """The file that DuckDB could not read; "" if it names none."""
    found = re.search(r"""["'](/[^"']+)["']""", message)
    return found[1] if found else ""


class DuckReader:
    """Folds rows in process. `columns`: a cache of parts; a reader without it loads less."""

    engine: Final = "duckdb"

    def __init__(self, cursor: duckdb.DuckDBPyConnection, columns: KeptColumns | None = None) -> None:
        self._cursor = cursor
        self._columns = columns

    def hits(self, plan: Plan, scans: Scans) -> pa.Table:
        if self._columns is not None and self._columns.is_used:
            from tidemill.query.arrow_fold import can_fold, folded

            found = folded(plan, scans, self._columns) if can_fold(plan, scans) else None
            if found is not None:
                return found
        return _table(self._cursor, plan_sql.aggregate(plan, self._ready(scans)))

    def bins(self, plan: Plan, scans: Scans) -> pa.Table:
        """As lists, which callers merge faster, if they are not too many to hold."""
        return _table(self._cursor, plan_sql.bins(plan, self._ready(scans), merged=scans.rows > MAX_LISTS))

    def opening(self, plan: Plan, scans: Scans) -> pa.Table:
        return _table(self._cursor, plan_sql.opening(plan, self._ready(scans)))

    def extent(self, plan: Plan, scans: Scans) -> tuple[int | None, int | None]:
        statement = plan_sql.data_span(plan, self._ready(scans))
        found = self._cursor.execute(statement.text, statement.parameters).fetchone()
        return found or (None, None)

    def _ready(self, scans: Scans) -> Scans:
        """With escaped paths, and the rows of raw registered."""
        if scans.raw is not None:
            self._cursor.register(plan_sql.RAW_VIEW, scans.raw)
        files = [
            Files([literal_path(path) for path in checked(scan.files.paths)], scan.files.rows)
            for scan in scans.levels
        ]
        levels = [replace(scan, files=each) for scan, each in zip(scans.levels, files, strict=True)]
        return Scans(tuple(levels), scans.raw)


def _table(cursor: duckdb.DuckDBPyConnection, statement: plan_sql.PlanStatement) -> pa.Table:
    return cursor.execute(statement.text, statement.parameters).to_arrow_table()


def _made_of_raw(plan: Plan, reading: QueryReading, source: Source) -> RawRows:
    """The rows of all pieces that no bucket fits."""
    spans = [*reading.opening.raw, *reading.cover.raw]
    if not spans:
        return RawRows(None)
    if source.raw is None:
        return RawRows(None, is_known=False)
    metrics = frozenset(rows.metric for rows in plan.rows)
    width = (plan.level or LEVELS[-1]).width  # cells without a width have spans of their own
    return source.raw.rows(RawRequest(metrics, plan.tenant, spans, plan.filter, plan.past, width))


def _scanned(reading: QueryReading, source: Source, raw: RawRows) -> tuple[Scans, Scans]:
    """What is read for the cells, and what for the states before them."""
    body, earlier = scans_of(reading.cover, source), scans_of(reading.opening, source)
    if raw.rows is None or not reading.opening.raw:
        return Scans(body, raw.rows), Scans(earlier)
    import pyarrow as pa
    import pyarrow.compute as pc

    opens = pc.less(raw.rows.column("bucket").cast(pa.int64()), reading.opening.raw[-1].end)
    return Scans(body, raw.rows.filter(pc.invert(opens))), Scans(earlier, raw.rows.filter(opens))


def _read(plan: Plan, source: Source) -> tuple[QueryReading, RawRows]:
    """What a plan reads, and the rows of its pieces of raw."""
    reading = reading_of(plan, source.available)
    raw = _made_of_raw(plan, reading, source)
    return (reading if raw.is_known else without_raw(reading)), raw


def _with_changes(plan: Plan, hits: pa.Table) -> pa.Table:
    """Without rows of objects where nothing changed: changes that cancel each other leave rows in some
    levels, and none in coarser ones. A total without groups has a row all the same."""
    import pyarrow.compute as pc

    if not plan.follows_objects or not plan_sql.key_columns(plan):
        return hits
    changed = [pc.not_equal(hits.column(f"p{i}"), 0) for i in range(len(plan.parts))]
    return hits.filter(reduce(pc.or_, changed))


def _then_unknown(reading: QueryReading, unfit: UnfitEvents) -> QueryReading:
    """Nothing is known of objects after an event whose object or state could not be read."""
    if unfit.since is None:
        return reading
    later = Interval(unfit.since, ALL_TIME.end)
    lost, unknown = (tuple(joined([*spans, later])) for spans in (reading.lost, reading.unknown))
    return replace(reading, lost=lost, unknown=unknown)


def _folded(plan: Plan, source: Source, reads: PlanReader) -> LastValues:
    """What a plan without states reads, before it is shaped."""
    reading, raw = _read(plan, source)
    scans, _ = _scanned(reading, source, raw)
    hits = reads.hits(plan, scans)
    bins = reads.bins(plan, scans) if plan.percentile else None
    values = values_of(AggregatedRows(hits, bins=bins), plan) if plan.is_bucketed else hits
    unfit = unfit_events(plan, source, scans, reads.hits)
    reading = _then_unknown(reading, unfit)
    lost = tuple(joined([*reading.lost, *unfit.spans]))
    return LastValues(hits, values, lost, (*reading.missing, *unfit.missing))


def _with_cells(plan: Plan, source: Source, reads: PlanReader) -> Plan:
    """With the cells of a calendar step that has no span: those that the data lie in, and at the ends perhaps
    a few more, since the buckets that are read here are wide."""
    if plan.step is None or plan.is_bucketed:
        return plan
    reading, raw = _read(plan, source)
    first, last = reads.extent(plan, Scans(scans_of(reading.cover, source), raw.rows))
    return with_cells_of(plan, Interval(first, last) if first is not None and last is not None else None)


def _level(plan: Plan, reading: QueryReading) -> str:
    if plan.filter is not None or plan.past is not None:
        return RAW
    return plan.level.name if plan.level is not None else reading.level


def _data(reads: PlanReader, plan: Plan, hits: pa.Table, scans: Scans) -> Interval | None:
    """From the first to the end of the last bucket; read separately only if necessary."""
    if plan.where is None:
        first, last = _ends(hits)
    else:
        first, last = reads.extent(plan, scans)
    if first is None or last is None:
        return None
    read = plan.read
    return Interval(first, last if read is None else min(last, read.end))


def _ends(hits: pa.Table) -> tuple[int | None, int | None]:
    """The first and the last instant of the rows found; None without any. By NumPy: to load
    `pyarrow.compute` would take longer than most queries."""
    firsts, untils = hits.column("first"), hits.column("until")
    if firsts.null_count == len(firsts):  # a total has one row, even of nothing
        return None, None
    assert not firsts.null_count + untils.null_count, "rows have a start and an end"
    return int(firsts.to_numpy().min()), int(untils.to_numpy().max())


def _cells_to_fill(plan: Plan, data: Interval | None) -> Sequence[int] | None:
    """The cells for which every group must have a row; None: only those with data."""
    if not plan.is_bucketed:
        return None
    if plan.fill == "drop":
        return (plan.grid.hidden or None) if plan.grid else None
    if plan.grid and plan.span is not None:
        return plan.grid.cells
    if plan.grid:
        return overlapped(plan.grid.cells, data) if data else None
    assert plan.interval is not None
    return outward(data, plan.interval).windows(plan.interval) if data else None


def _gaps(
    cursor: duckdb.DuckDBPyConnection,
    plan: Plan,
    hits: pa.Table,
    before: Sequence[pa.Table],
    cells: Sequence[int] | None,
) -> pa.Table | None:
    """The cells and groups that must have a row and have none; for totals, the groups without changes.
    `before`: what is known of the time before the span, by group."""
    import pyarrow as pa

    keys = plan_sql.group_columns(plan)
    if cells is None and not (not plan.is_bucketed and before and keys):
        return None
    if cells is not None and not cells:
        return None
    earlier = pa.concat_tables([table.select(keys) for table in before]) if before and keys else None
    groups = 1
    if keys:
        known = [hits.select(keys), *([earlier] if earlier is not None else [])]
        groups = pa.concat_tables(known).group_by(keys).aggregate([]).num_rows
    if cells is not None and len(cells) * groups > MAX_FILLED:
        raise QueryError(
            f"filling {len(cells)} buckets for {groups} groups makes more than {MAX_FILLED} rows",
            hint="use FILL drop, a longer INTERVAL, a shorter span or fewer groups",
        )
    cursor.register(_HITS, hits)
    if earlier is not None:
        cursor.register(_TOTALS, earlier)
    return _table(cursor, plan_sql.missing(plan, _HITS, _TOTALS if earlier is not None else None, cells))
