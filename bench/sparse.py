"""The cases about sparse feeds: a thin year, an event an hour, and slices of a handful of events.

Each gives one result or more and prints nothing; no time counts before raw, all levels, bins and daily files
were found to be those that a DuckDB script wrote.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
from pyarrow import ipc

from bench import visits
from bench.check import digest_of
from bench.measure import Timing, run_peer
from bench.ours_sparse import BOUNDS, ON_SPARK, SparseStore
from bench.running import OUT, Bench, Result, best, faster, within
from bench.visits import Thin
from bench.work import START
from tidemill.model.time import DAY, HOUR

PEER = "sparse"
WARM_EVENTS = 5_000
YEAR_TARGET = 0.5
YEAR_FILES = 400
YEAR_BYTES = 2.0
HOURLY_SECONDS = 3.0
HOURLY_FILES = 60
HOURLY_VERIFY = 5.0
SLICES_FILES = 400
SLICES_VERIFY = 20.0
SLICES_TOGETHER = 500  # that one tick accepts
ONE_LATE = 0.3
CELLS = ("metric", "site", "kind", "bucket", "n", "fees", "least", "most")
BINS = ("site", "kind", "bucket", "bin", "n")
ROWS = ("visit_id", "ts", "site", "kind", "fee", "waited", "desk", "note")


def year(bench: Bench) -> list[Result]:
    """A thin year in twelve slices with daily windows, a month that comes late, and one event more."""
    slices = visits.year(bench.plan.thin_events)
    late = visits.late_month(max(1, bench.plan.thin_events // 12))
    now = slices[-1].arrival + 2 * DAY
    wholes: dict[str, list[Timing]] = {"ours": [], "peer": []}
    lates: dict[str, list[Timing]] = {"ours": [], "peer": []}
    for turn in range(bench.plan.repeats):
        bench.say(f"year, {turn + 1} of {bench.plan.repeats}")
        store, out = _store(bench, "year", daily=True), _empty("year-peer")
        for mode, some, kept in (("whole", slices, wholes), ("late", [late], lates)):
            kept["peer"].append(run_peer(PEER, _job(mode, some, daily=True), out))
            os.sync()
            took = store.load(some, now=max(now, some[-1].arrival))
            kept["ours"].append(Timing(took, took, 0))
            _agree(f"year, {mode}", store, out, daily=True)
        left = store.kept()
        one = _one_late(store, out, daily=True)
        store.close()
    put = sum(each.bytes for each in (*slices, late))
    note = f"{left.files} files, {left.bytes / 1e6:.0f} MB of {put / 1e6:.0f} MB input"
    return [
        faster("year vs duckdb", best(wholes["ours"]).work, best(wholes["peer"]), YEAR_TARGET, f"; {note}"),
        faster("year_late_month vs duckdb", best(lates["ours"]).work, best(lates["peer"]), None),
        within("year_files", left.files, None, YEAR_FILES, "files", "beside slices and datasets"),
        within("year_bytes", left.bytes / 1e6, put / 1e6, YEAR_BYTES, "MB", "the warehouse beside its input"),
        within("year_one_late", one, None, ONE_LATE, "s", "an event of long ago, its windows included"),
    ]


def hourly(bench: Bench) -> list[Result]:
    """An event an hour for six months."""
    slices = visits.hourly(bench.plan.hourly_events)
    ours: list[float] = []
    for turn in range(bench.plan.repeats):
        bench.say(f"hourly, {turn + 1} of {bench.plan.repeats}")
        store, out = _store(bench, "hourly", daily=False), _empty("hourly-peer")
        peer = run_peer(PEER, _job("whole", slices, daily=False), out)
        ours.append(store.load(slices))
        _agree("hourly", store, out, daily=False)
        left, checked = store.kept(), store.verify()
        one = _one_late(store, out, daily=False)
        store.close()
    note = f"DuckDB {peer.work:.2f} s; {left.bytes / 1e6:.1f} MB of {slices[0].bytes / 1e6:.1f} MB input"
    return [
        within("hourly", min(ours), None, HOURLY_SECONDS, "s", note),
        within("hourly_files", left.files, None, HOURLY_FILES, "files", "beside slices and datasets"),
        within("hourly_verify", checked, None, HOURLY_VERIFY, "s"),
        within("hourly_one_late", one, None, ONE_LATE, "s", "an event of long ago"),
    ]


def many_slices(bench: Bench) -> list[Result]:
    """Slices of five events, some hundred of them in a tick."""
    slices = visits.tiny_slices(bench.plan.thin_slices, 5)
    bench.say(f"{len(slices)} slices")
    store, out = _store(bench, "slices", daily=False), _empty("slices-peer")
    peer = run_peer(PEER, _job("whole", slices, daily=False), out)
    took = sum(
        store.load(slices[first : first + SLICES_TOGETHER])
        for first in range(0, len(slices), SLICES_TOGETHER)
    )
    _agree("many slices", store, out, daily=False)
    left, checked = store.kept(), store.verify()
    one = _one_late(store, out, daily=False)
    store.close()
    note = f"DuckDB {peer.work:.2f} s; {left.bytes / 1e6:.1f} MB"
    return [
        Result("many_slices", took, None, None, None, True, "s", "", note),
        within("many_slices_files", left.files, None, SLICES_FILES, "files", "beside slices and datasets"),
        within("many_slices_verify", checked, None, SLICES_VERIFY, "s"),
        within("many_slices_one_late", one, None, ONE_LATE, "s", "an event of long ago"),
    ]


def _store(bench: Bench, name: str, *, daily: bool) -> SparseStore:
    """A fresh warehouse; workers and compiled code are woken by a small one before it."""
    assert bench.ours is not None
    spark = bench.ours.session()
    if bench.plan.on_spark:
        for settings in (ON_SPARK, ""):
            warm = SparseStore(OUT / "sparse-warm", spark, daily=daily, settings=settings)
            warm.load(visits.year(WARM_EVENTS)[:2])
            warm.close()
    return SparseStore(OUT / name, spark, daily=daily)


def _empty(name: str) -> Path:
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _job(mode: str, slices: Sequence[Thin], *, daily: bool) -> str:
    files = [each.file for each in slices]
    return json.dumps({"mode": mode, "files": files, "bounds": BOUNDS, "daily": daily})


def _one_late(store: SparseStore, out: Path, *, daily: bool) -> float:
    """Seconds that an event of long ago takes, the second of two: the first one opens tables. Both are
    checked beside the script."""
    for number in range(2):
        late = visits.one_late(number, START + (number + 1) * HOUR, store.clock() + HOUR)
        run_peer(PEER, _job("late", [late], daily=daily), out)
        took = store.load([late])
        _agree("one late event", store, out, daily=daily)
    return took


# -- the same answers


def _agree(what: str, store: SparseStore, out: Path, *, daily: bool) -> None:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        pairs: list[tuple[str, str, str, Sequence[str]]] = []
        pairs.append(("raw", _our_raw(store), _their_raw(out), ("payload",)))
        for level, files in store.levels().items():
            pairs.append((f"counts at {level}", _our_counts(files), _their_counts(out, level), CELLS))
            pairs.append((f"bins at {level}", _our_bins(files), _their_bins(out, level), BINS))
        for name, ours, theirs, columns in pairs:
            _same(f"{what}: {name}", digest_of(db, ours, columns), digest_of(db, theirs, columns))
        if daily:
            _same_days(what, db, store, out)


def _same(what: str, ours: object, theirs: object) -> None:
    if ours != theirs:
        raise RuntimeError(f"{what} differ from what DuckDB has: {ours} is not {theirs}")


def _listed(files: Sequence[str]) -> str:
    return f"read_parquet({list(files)}, hive_partitioning = false)"


def _our_raw(store: SparseStore) -> str:
    return f"SELECT payload FROM {_listed(store.raw_files())}"


def _their_raw(out: Path) -> str:
    return f"SELECT line AS payload FROM '{out}/raw/*.parquet'"


def _our_counts(files: Sequence[str]) -> str:
    return (
        "SELECT metric, site, kind, epoch(bucket)::BIGINT AS bucket, count AS n,"
        f" fee__sum::DECIMAL(18,2) AS fees, fee__min AS least, fee__max AS most"
        f" FROM {_listed(files)} WHERE metric = 'visits'"
    )


def _their_counts(out: Path, level: str) -> str:
    return (
        "SELECT 'visits' AS metric, site, kind, bucket, n, fees::DECIMAL(18,2) AS fees, least, most"
        f" FROM '{out}/levels/c{level}.parquet'"
    )


def _our_bins(files: Sequence[str]) -> str:
    return (
        "SELECT site, kind, epoch(bucket)::BIGINT AS bucket, unnest(histogram__bins) AS bin,"
        f" unnest(histogram__counts) AS n FROM {_listed(files)} WHERE metric = 'waited'"
    )


def _their_bins(out: Path, level: str) -> str:
    return f"SELECT site, kind, bucket, bin, n FROM '{out}/levels/b{level}.parquet'"


def _same_days(what: str, db: duckdb.DuckDBPyConnection, store: SparseStore, out: Path) -> None:
    """Each daily dataset beside the file of its day. Of a day without visits there is no file, and a dataset
    without rows."""
    tables = []
    for start, path in store.datasets().items():
        with ipc.open_file(path) as reader:
            table = reader.read_all().replace_schema_metadata(None)
        tables.append(table.append_column("day", pa.repeat(start // DAY, table.num_rows)))
    db.register("datasets", pa.concat_tables(tables, promote_options="permissive"))
    columns = (*ROWS, "day")
    theirs = f"SELECT * FROM read_parquet('{out}/days/*/*.parquet', hive_partitioning = true)"
    _same(
        f"{what}: daily files",
        digest_of(db, "SELECT * FROM datasets", columns),
        digest_of(db, theirs, columns),
    )
