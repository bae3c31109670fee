"""Opens views at one snapshot: their files, the rows that a tenant may see, and what is missing.

It reads the logs of tables and the state; files are opened when the engine scans them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds

from tidemill.ingest.expiry_log import DATASETS, QUARANTINE, RAW
from tidemill.model.completeness import (
    NOTHING_HELPS,
    PUT_BACK,
    ROUND,
    Missing,
    Pending,
    damaged,
    not_built,
    unfit,
)
from tidemill.model.errors import StorageError
from tidemill.model.levels import LEVELS
from tidemill.model.names import ROLLUPS, UNFIT
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_instant
from tidemill.model.windows import Phase, Window
from tidemill.query.plain_sql import views
from tidemill.query.plain_sql.file_scan import INSTANT, FileScan, ScannedFile, equals, parts_scan
from tidemill.query.plain_sql.views import OpenView, View
from tidemill.query.service import available
from tidemill.raw import tables
from tidemill.raw.quarantine_tenants import unnamed_lines
from tidemill.storage import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidemill.config import Stream
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.storage.tables.snapshot import Part, Range, Snapshot

# Imports inside functions keep start-up short: a view needs the output that it shows, and not the others.
_TENANT: Final = "tenant"
_RAW_BOUNDS: Final = (_TENANT, "event_time")  # columns without nulls, whose statistics exclude parts
_ROLLUP_BOUNDS: Final = (_TENANT, "bucket")
_RESULT_BOUNDS: Final = (_TENANT, "start")
_QUARANTINE_BOUNDS: Final = ("slice", "arrival")
_NULL: Final = "the column is null there"
_LEFT_OUT: Final = "measures leave it out"
_START, _END, _REVISION = "window_start", "window_end", "revision"


def open_view(warehouse: Warehouse, view: View, tenant: str | None) -> OpenView:
    """A view as it is now, with the rows of one tenant (None: all)."""
    stream = warehouse.project.stream(view.stream)
    match view.schema:
        case "raw":
            return _raw(warehouse, view, stream, tenant)
        case "rollups":
            return _rollups(warehouse, view, stream, tenant)
        case "datasets":
            return _datasets(warehouse, view, stream, tenant)
        case "windows":
            return _results(warehouse, view, stream, tenant)
        case "quarantine":
            return _quarantine(warehouse, view, stream, tenant)


def _raw(warehouse: Warehouse, view: View, stream: Stream, tenant: str | None) -> OpenView:
    found = warehouse.readers.described("raw", stream.name)
    if found is not None:
        found = warehouse.without_lost("raw", stream.name, found[0]), found[1]
    schema = _declared_schema(stream) if found is None else _with_declared(*found, stream)
    rows = _scan(None if found is None else found[0], schema, _RAW_BOUNDS, tenant)
    gone = [
        *_expired(warehouse, stream.name, RAW, "raw"),
        *(damaged(one.span, RAW, PUT_BACK) for one in warehouse.lost("raw", stream.name)),
        *_not_made(found, stream, tenant),
        *_unfit_columns(found, stream, tenant),
    ]
    columns = views.plain_columns(name for name in schema.names if name != tables.DAY_COLUMN)
    return OpenView(view, rows, columns, missing=gone)


def _declared_schema(stream: Stream) -> pa.Schema:
    """Of the table that the first events make."""
    from tidemill.formats.declared_columns import raw_columns

    return pa.schema([*tables.RAW, *raw_columns(stream).fields])


def _with_declared(snapshot: Snapshot, schema: pa.Schema, stream: Stream) -> pa.Schema:
    """The columns of the table, and those that are declared and that the next round adds to it. One that a
    part has in another type has none until that part is made again."""
    from tidemill.formats.declared_columns import raw_columns

    declared = raw_columns(stream)
    there = {name.lower() for name in schema.names}
    new = [field for field in declared.fields if field.name.lower() not in there]
    hidden = tables.retyped(snapshot, schema, declared) if new else set()
    return pa.schema([*schema, *(field for field in new if field.name not in hidden)])


def _not_made(
    found: tuple[Snapshot, pa.Schema] | None, stream: Stream, tenant: str | None
) -> Iterator[Missing]:
    """Parts with columns of an earlier declaration: what they lack is null, though the payload has it."""
    from tidemill.formats.declared_columns import raw_columns

    stale = (
        [] if found is None else tables.stale_among(found[0], _parts(found[0], tenant), raw_columns(stream))
    )
    if stale:
        rows = sum(part.rows for part in stale)
        yield Missing(
            Interval(_bound(stale, "mins", MIN_INSTANT), _bound(stale, "maxs", MAX_INSTANT - 1) + 1),
            "not_built",
            f"columns of {rows:,} rows in {len(stale):,} parts are those of an earlier declaration: what "
            "is new is null there, and what has another type is left out",
            f"`tidemill rebuild {stream.name} --columns` makes them now, rounds make them little by little",
        )


def _unfit_columns(
    found: tuple[Snapshot, pa.Schema] | None, stream: Stream, tenant: str | None
) -> Iterator[Missing]:
    """Columns that are null where an event has a value that the declared type cannot hold."""
    from tidemill.formats.declared_columns import raw_columns

    if found is None:
        return
    for name, parts in tables.unfit_among(found[0], _parts(found[0], tenant), raw_columns(stream)).items():
        span = Interval(_bound(parts, "mins", MIN_INSTANT), _bound(parts, "maxs", MAX_INSTANT - 1) + 1)
        yield unfit(span, None, name, stream.fields[name].described, effect=_NULL)


def _unfit_rollups(snapshot: Snapshot | None, stream: Stream, tenant: str | None) -> Iterator[Missing]:
    """Measures that leave out values which their types cannot hold, as rows beside the metrics count."""
    parts = (
        [] if snapshot is None else [p for p in _parts(snapshot, tenant) if p.may_hold("metric", UNFIT, None)]
    )
    if snapshot is None or not parts:
        return
    import pyarrow.compute as pc

    schema = pa.schema([("metric", pa.string()), (_TENANT, pa.string()), ("bucket", INSTANT)])
    only = ds.field("metric") >= UNFIT
    only = only if tenant is None else only & equals(_TENANT, tenant)
    rows = parts_scan(snapshot, parts, schema, (), only).scanner().to_table()
    for name in stream.fields:
        own = rows.filter(pc.ends_with(rows.column("metric"), f" {name}"))
        if own.num_rows:
            first, last = pc.min_max(own.column("bucket").cast(pa.int64())).as_py().values()
            yield unfit(
                Interval(first, last + 1), None, name, stream.fields[name].described, effect=_LEFT_OUT
            )


def _bound(parts: Sequence[Part], side: str, otherwise: int) -> int:
    """The first or last instant of the events of some parts."""
    ends = [getattr(part, side).get("event_time") for part in parts]
    known = [end for end in ends if isinstance(end, int)]
    if len(known) < len(ends):
        return otherwise
    return min(known) if side == "mins" else max(known)


def _rollups(warehouse: Warehouse, view: View, stream: Stream, tenant: str | None) -> OpenView:
    from tidemill.outputs.rollups.spec import spec_for

    spec = spec_for(stream)
    rows = _scan(warehouse.snapshot("rollups", stream.name), spec.schema, _ROLLUP_BOUNDS, tenant)
    missing = [
        one
        for level in LEVELS
        for one in _expired(warehouse, stream.name, ROLLUPS + level.name, f"{level.name} rollups")
    ]
    for what, losses in warehouse.expiries.losses(stream.name).items():
        if what.startswith(ROLLUPS):
            level = what.removeprefix(ROLLUPS)
            missing += [damaged(one.span, f"{level} rollups", NOTHING_HELPS) for one in losses]
    for metric, eras in available(warehouse, stream.name).outdated.items():
        last = max(eras, key=lambda era: era.before)
        missing.append(not_built(Interval(MIN_INSTANT, last.before), last, metric))
    missing += _unfit_rollups(warehouse.snapshot("rollups", stream.name), stream, tenant)
    return OpenView(view, rows, views.rollup_columns(spec), views.of_metrics(spec), missing)


def _results(warehouse: Warehouse, view: View, stream: Stream, tenant: str | None) -> OpenView:
    from tidemill.outputs.windows.reader import (
        missing_results,
        results_behind,
        results_snapshot,
        spec_named,
    )
    from tidemill.outputs.windows.results import group_columns, results_schema

    spec = spec_named(stream, view.window)
    schema = results_schema(spec, stream)
    # What is behind is read before the results are: those that a round adds meanwhile are reported as behind.
    behind = results_behind(warehouse.state, stream, spec, warehouse.snapshot("raw", stream.name))
    snapshot = results_snapshot(warehouse.root, stream, spec, warehouse.state.checkpoints(stream.name))
    rows = _scan(snapshot, schema, _RESULT_BOUNDS, tenant)
    columns = views.result_columns(schema.names, is_history=view.is_history)
    newest = "" if view.is_history else views.of_current(group_columns(spec))
    missing = missing_results(
        warehouse.expiries, stream, spec, warehouse.state.checkpoints(stream.name), tenant=tenant
    )
    return OpenView(view, rows, columns, newest, missing, behind)


def _quarantine(warehouse: Warehouse, view: View, stream: Stream, tenant: str | None) -> OpenView:
    """If a stream belongs to one tenant, so do its records that name none."""
    snapshot = warehouse.snapshot("quarantine", stream.name)
    only = None
    if tenant is not None and stream.tenant.value != tenant:
        only = _rows_of_tenant(warehouse, snapshot, tenant)
    rows = _scan(snapshot, tables.QUARANTINE, _QUARANTINE_BOUNDS, None, only)
    gone = [
        *_expired(warehouse, stream.name, QUARANTINE, "quarantine"),
        *(damaged(one.span, QUARANTINE, PUT_BACK) for one in warehouse.lost("quarantine", stream.name)),
    ]
    return OpenView(view, rows, views.quarantine_columns(tables.QUARANTINE.names), missing=gone)


def _rows_of_tenant(warehouse: Warehouse, snapshot: Snapshot | None, tenant: str) -> ds.Expression:
    """A tenant's records in quarantine: those that name it, and those that name none and came with its
    token."""
    only = equals(_TENANT, tenant)
    if snapshot is None:
        return only
    unnamed = parts_scan(snapshot, snapshot.parts, tables.QUARANTINE, (), ds.field(_TENANT).is_null())
    for name in unnamed.scanner(columns=["slice"]).to_table().column("slice").unique().to_pylist():
        entry = warehouse.state.slice(name)
        lines = unnamed_lines(entry.slice.metadata if entry is not None else None, tenant)
        if lines:
            sent = ds.field("line").isin(pa.array(sorted(lines), pa.int64()))
            only |= ds.field(_TENANT).is_null() & equals("slice", name) & sent
    return only


def _datasets(warehouse: Warehouse, view: View, stream: Stream, tenant: str | None) -> OpenView:
    from tidemill.outputs.datasets.dataset import columns_declared, columns_of_file, dataset_schema

    declared = dataset_schema(stream)
    name = columns_declared(stream)
    windows = [
        window
        for window in warehouse.state.windows(stream.name)
        if window.key.span == stream.aggregation_span
    ]
    built = [window for window in windows if window.file is not None]
    fits = [
        window
        for window in built
        if name == (window.columns or columns_of_file(warehouse.root, str(window.file)))
    ]
    taken = {column.lower() for column in declared.names}
    start, end, revision = (views.free_name(one, taken) for one in (_START, _END, _REVISION))
    schema = pa.schema([(start, INSTANT), (end, INSTANT), (revision, pa.int64()), *declared])
    lost = _lost_datasets(warehouse, stream.name, fits)
    files = [
        ScannedFile(
            str(warehouse.root / str(window.file)),
            {start: window.key.start, end: window.key.end, revision: window.revision},
            {"event_time": (window.key.start, window.key.end - 1)},
            _check(warehouse, window),
        )
        for window in fits
        if not layout.is_empty_dataset(str(window.file)) and window not in lost
    ]
    rows = FileScan(files, schema, ds.IpcFileFormat(), None if tenant is None else equals(_TENANT, tenant))
    return OpenView(
        view,
        rows,
        views.plain_columns(schema.names),
        missing=[
            *_expired(warehouse, stream.name, DATASETS, "datasets"),
            *(damaged(window.key.interval, "the dataset", PUT_BACK) for window in lost),
            *_other_columns(built, fits),
            *_unfit_datasets(warehouse, stream, [window for window in fits if window not in lost]),
        ],
        pending=list(_waiting(windows)),
    )


def _unfit_datasets(warehouse: Warehouse, stream: Stream, windows: Sequence[Window]) -> Iterator[Missing]:
    """Columns of datasets that are null where an event has a value that the declared type cannot hold. The
    files say so; they are looked at if raw shows that there may be some, or no longer has all events."""
    from tidemill.formats.declared_columns import raw_columns
    from tidemill.outputs.datasets.dataset import misfits_of_file

    raw = warehouse.snapshot("raw", stream.name)
    is_whole = warehouse.expiries.horizons(stream.name).get(RAW) is None
    if raw is None or (is_whole and not tables.unfit_among(raw, raw.parts, raw_columns(stream))):
        return
    found: dict[str, list[tuple[Window, int]]] = {}
    for window in windows:
        if not layout.is_empty_dataset(str(window.file)):
            for name, count in misfits_of_file(warehouse.root, str(window.file)).items():
                found.setdefault(name, []).append((window, count))
    for name, counted in found.items():
        span = Interval(min(w.key.start for w, _ in counted), max(w.key.end for w, _ in counted))
        kind = stream.fields[name].described if name in stream.fields else "as it was"
        yield unfit(span, None, name, kind, effect=_NULL)


def _lost_datasets(warehouse: Warehouse, stream: str, windows: Sequence[Window]) -> list[Window]:
    """Datasets whose files are damaged, cannot be made again, and were not restored."""
    from tidemill.outputs.datasets.catalog import check_bytes

    lost = []
    files = {one.file for one in warehouse.expiries.losses(stream).get(DATASETS, ())}
    for window in windows if files else ():
        if window.file in files:
            try:
                check_bytes(warehouse.root, window)
            except StorageError:
                lost.append(window)
    return lost


def _check(warehouse: Warehouse, window: Window) -> Callable[[], None]:
    from tidemill.outputs.datasets.catalog import check_bytes

    return lambda: check_bytes(warehouse.root, window)


def _other_columns(built: Sequence[Window], fits: Sequence[Window]) -> Iterator[Missing]:
    """Datasets of another declaration have other columns or types: they are left out."""
    left_out = [window for window in built if window not in fits]
    if left_out:
        yield Missing(
            Interval(min(w.key.start for w in left_out), max(w.key.end for w in left_out)),
            "not_built",
            f"{len(left_out):,} datasets there have other columns than are declared now",
            f"The next rounds build them again: `{ROUND}`",
        )


def _waiting(windows: Sequence[Window]) -> Iterator[Pending]:
    """Windows whose rows are not in a current dataset."""
    behind = [window for window in windows if window.phase is not Phase.BUILT]
    if behind:
        count = len(behind)
        failed = sum(window.phase is Phase.FAILED for window in behind)
        also = f", {failed:,} of them after too many failed tries" if failed else ""
        yield Pending(
            what="windows",
            count=count,
            detail=f"{count:,} window{'s' * (count != 1)} of the datasets "
            f"{'is' if count == 1 else 'are'} not built as {'it' if count == 1 else 'they'} should be{also}",
            remedy=f"`tidemill windows {behind[0].key.stream}` lists why each waits",
            start=min(window.key.start for window in behind),
        )


def _scan(
    snapshot: Snapshot | None,
    schema: pa.Schema,
    bounded: Sequence[str],
    tenant: str | None,
    only: ds.Expression | None = None,
) -> FileScan | pa.Table:
    if snapshot is None:
        return schema.empty_table()
    if tenant is not None:
        only = equals(_TENANT, tenant)
    return parts_scan(snapshot, _parts(snapshot, tenant), schema, bounded, only)


def _parts(snapshot: Snapshot, tenant: str | None) -> Sequence[Part]:
    """Parts that can hold a row of the tenant."""
    ranges: dict[str, Range] = {} if tenant is None else {_TENANT: (tenant, tenant)}
    return snapshot.select(ranges=ranges)


def _expired(warehouse: Warehouse, stream: str, what: str, name: str) -> list[Missing]:
    before = warehouse.expiries.horizons(stream).get(what)
    if before is None:
        return []
    return [
        Missing(
            Interval(MIN_INSTANT, before),
            "expired",
            f"{name} of everything before {format_instant(before)} expired",
            "Nothing of that time is kept; a longer retention keeps what comes",
        )
    ]
