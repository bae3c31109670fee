"""The kernels of the state history: what is kept of events, what a batch adds, and state cells made from it.

Each reads and writes files and returns little; which files are current is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one
from tidemill.formats.key_runs import within
from tidemill.formats.read_plan import ReadPlan
from tidemill.model.levels import BASE
from tidemill.model.time import Interval
from tidemill.outputs.rollups.admitted_keys import KEYS_LEFT, AdmittedKeys, keys_of
from tidemill.outputs.rollups.cell_files import PARTIAL, write_partial
from tidemill.outputs.rollups.cells import of_tiles, within_tiles
from tidemill.outputs.rollups.events import read_events, read_tile_events
from tidemill.outputs.rollups.observation_runs import histories_of, object_spans, write_observations
from tidemill.outputs.rollups.observations import (
    SEEN,
    in_order,
    joined,
    observed,
    positioned,
    read_seen,
    write_seen,
)
from tidemill.outputs.rollups.spec import Metric, RollupSpec
from tidemill.outputs.rollups.transitions import signed_cells, state_cells, touched_by, union_of
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.checksums import read_arrow
from tidemill.storage.ipc import read_ipc, write_ipc

ALL_TIME: Final = Interval(-(1 << 62), 1 << 62)


def note(spec: RollupSpec, events: pa.Table, folder: Path, name: str) -> None:
    """Write what the state history needs of accepted events, while they are in memory: `{name}~{metric}.seen`
    and `{name}~{metric}.places`."""
    for metric in spec.metrics:
        if metric.limit is not None:
            keys = keys_of(metric, events)
            if keys.num_rows:
                write_ipc(folder / f"{name}~{metric.name}{KEYS_LEFT}", keys.combine_chunks())
        if metric.following is not None:
            observations = observed(metric, events)
            if observations.num_rows:
                write_seen(folder / f"{name}~{metric.name}{SEEN}", observations)


def left_by(folder: Path, metric: str, suffix: str) -> list[str]:
    """The files of that kind that `note` wrote for a metric."""
    return sorted(str(path) for path in folder.glob(f"*~{metric}{suffix}"))


@dataclass(frozen=True, slots=True)
class NoteUnit:
    """Raw parts for which `note` is repeated."""

    spec: RollupSpec
    plan: ReadPlan
    raw: Sequence[str]
    folder: str
    name: str
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of these parts, rows of these slices


def note_raw(unit: NoteUnit) -> Iterator[int]:
    read = ((path, unit.only.get(path)) for path in unit.raw)
    events = [table for path, only in read for table in read_events(unit.plan, [path], ALL_TIME, only)]
    for number, table in enumerate(events):
        note(unit.spec, table, warehouse_path(unit.folder), f"{unit.name}-{number}")
    yield sum(table.num_rows for table in events)


def keys_left(metric: Metric, folder: Path, seqs: Mapping[str, int]) -> pa.Table | None:
    """The keys that `note` wrote, with their ledger offsets."""
    tables = [positioned(read_ipc(path), seqs) for path in left_by(folder, metric.name, KEYS_LEFT)]
    return joined(tables) if tables else None


# -- what a batch adds


@dataclass(frozen=True, slots=True)
class EnterUnit:
    """New observations of one metric, of the objects in a range of keys."""

    metric: Metric
    keys: tuple[int, int]
    seen: Sequence[str]
    seqs: Mapping[str, int]
    observation_files: Sequence[str]  # what is known of the objects so far
    admitted_keys: AdmittedKeys | None
    target: str  # the file to write
    cells: str | None  # where to write what they change; None: nowhere


@dataclass(frozen=True, slots=True)
class Entered:
    metric: str
    observation_file: str | None  # None: nothing to keep
    touched: Sequence[tuple[int, int]]  # 5s tile, and the ledger offset of the slice that touched it


def enter(unit: EnterUnit) -> Iterator[Entered]:
    metric = unit.metric
    added = read_seen(metric, unit.seen, unit.seqs, unit.keys)
    if not added.num_rows:
        yield Entered(metric.name, None, [])
        return
    write_observations(warehouse_path(unit.target), added)
    before = histories_of(metric, unit.observation_files, object_spans(added), unit.keys)
    union, new = union_of(before, added)
    tiles, positions = touched_by(metric, union, new)
    if unit.cells is not None:
        cells = signed_cells(metric, _renamed(unit.admitted_keys, metric, union), new)
        write_partial(warehouse_path(unit.cells), {metric.name: cells})
    yield Entered(metric.name, unit.target, list(zip(tiles.tolist(), positions.tolist(), strict=True)))


def _renamed(admitted_keys: AdmittedKeys | None, metric: Metric, observations: pa.Table) -> pa.Table:
    return observations if admitted_keys is None else admitted_keys.renamed(metric.name, observations)


# -- all state cells of tiles


@dataclass(frozen=True, slots=True)
class HistoryUnit:
    """5s tiles for which all state cells are needed."""

    spec: RollupSpec
    plan: ReadPlan
    tiles: Sequence[int]  # their starts, ascending
    raw: Sequence[str]  # parts that may hold their events
    observation_files: Mapping[str, Sequence[str]]  # by metric
    admitted_keys: AdmittedKeys | None
    out: str


def count_states(unit: HistoryUnit) -> Iterator[str]:
    """Count states in tiles: which objects were seen is read from raw, their history from observations."""
    events = read_tile_events(unit.plan, unit.raw, dict.fromkeys(unit.tiles), BASE.tile)
    found = {}
    for metric in unit.spec.metrics:
        if metric.following is None:
            continue
        tables = [observed(metric, table) for table in events]
        tables = [table for table in tables if table.num_rows]
        if not tables:
            continue
        objects = object_spans(in_order(joined([table.drop_columns(["slice"]) for table in tables])))
        known = histories_of(metric, unit.observation_files.get(metric.name, ()), objects, (0, 1 << 64))
        time = one(known.column("time")).to_numpy()
        wanted = within_tiles(time, unit.tiles, BASE.tile)
        found[metric.name] = state_cells(metric, _renamed(unit.admitted_keys, metric, known), wanted)
    write_partial(warehouse_path(unit.out), found)
    yield unit.out


# -- what slices change in tiles that cannot be made again


@dataclass(frozen=True, slots=True)
class ChangesUnit:
    """What some slices changed in the state cells of 5s tiles, for one metric and the objects in a range of
    keys. Their observations are known by now, as are those of all other slices."""

    metric: Metric
    keys: tuple[int, int]
    tiles: Sequence[int]  # their starts, ascending
    offsets: Sequence[int]  # of the slices, in the ledger
    observation_files: Sequence[str]
    admitted_keys: AdmittedKeys | None
    out: str


def changes(unit: ChangesUnit) -> Iterator[str]:
    metric, offsets = unit.metric, pa.array(unit.offsets, pa.int64())
    runs = (within(read_arrow(path), *unit.keys) for path in unit.observation_files)
    added = [run.filter(pc.is_in(run.column("seq"), offsets)) for run in runs]
    added = [run.combine_chunks() for run in added if run.num_rows]
    if not added:
        return
    objects = object_spans(in_order(joined(added)))
    known = histories_of(metric, unit.observation_files, objects, unit.keys)
    new = pc.is_in(one(known.column("seq")), offsets).to_numpy(zero_copy_only=False)
    cells = {metric.name: signed_cells(metric, _renamed(unit.admitted_keys, metric, known), new)}
    write_partial(warehouse_path(unit.out), of_tiles(cells, unit.tiles, BASE.tile))
    yield unit.out


# -- everything, from raw alone


@dataclass(frozen=True, slots=True)
class RecountUnit:
    """All observations of one metric, of the objects in a range of keys."""

    metric: Metric
    keys: tuple[int, int]
    seen: Sequence[str]
    seqs: Mapping[str, int]
    admitted_keys: AdmittedKeys | None
    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class Recounted:
    cells: str  # a file of 5s cells
    touched: Sequence[tuple[int, int]]


def recount(unit: RecountUnit) -> Iterator[Recounted]:
    whole = read_seen(unit.metric, unit.seen, unit.seqs, unit.keys)
    tiles, positions = touched_by(unit.metric, whole, np.ones(whole.num_rows, np.bool_))
    cells = state_cells(unit.metric, _renamed(unit.admitted_keys, unit.metric, whole))
    path = warehouse_path(unit.folder) / f"{unit.name}{PARTIAL}"
    write_partial(path, {unit.metric.name: cells})
    yield Recounted(str(path), list(zip(tiles.tolist(), positions.tolist(), strict=True)))
