"""The state history of a stream: what came before, for metrics for which that decides what an event adds.

Keeps the observations of objects and the admitted keys as a pure function of raw in ledger order, so that
both can be made again. It records in the state which tiles a batch touched; it builds no tile.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.formats.key_runs import crowded_tier, key_ranges
from tidemill.formats.read_plan import ReadPlan
from tidemill.model.errors import DamageError
from tidemill.model.failpoints import failpoint
from tidemill.model.levels import BASE, TileKey
from tidemill.model.names import EXPIRED_PART, PACKED_PART, REST_PART, TOMBSTONE_PART
from tidemill.model.slices import set_hash
from tidemill.outputs.rollups.admitted_keys import AdmittedKeys
from tidemill.outputs.rollups.cell_files import PARTIAL
from tidemill.outputs.rollups.cells import Cells
from tidemill.outputs.rollups.history_kernel import (
    ChangesUnit,
    EnterUnit,
    HistoryUnit,
    NoteUnit,
    Recounted,
    RecountUnit,
    changes,
    count_states,
    enter,
    keys_left,
    left_by,
    note_raw,
    recount,
)
from tidemill.outputs.rollups.observation_runs import (
    FAN_IN,
    MadeFor,
    MergeObservations,
    ObservationLog,
    ObservationSet,
    Touched,
    drop_log,
    merge_observations,
    write_observations,
)
from tidemill.outputs.rollups.observations import SEEN, joined
from tidemill.outputs.rollups.planning import Horizons, file_bytes, raw_parts
from tidemill.outputs.rollups.spec import Metric, RollupSpec
from tidemill.raw.footers import packed_footer
from tidemill.raw.recovered_batches import held_facts
from tidemill.storage import layout
from tidemill.storage.bucket_path import size_of
from tidemill.storage.checksums import is_whole, read_arrow
from tidemill.storage.files import make_folder
from tidemill.storage.leases import check_commit
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)

PARALLEL_BYTES: Final = 16 << 20  # more bytes of observations than this are processed by all cores
HISTORY_BYTES: Final = 64 << 20  # bytes of raw whose tiles one task processes
ROWS_AT_ONCE: Final = 4_000_000  # rows of raw that are processed together


@dataclass(frozen=True, slots=True)
class Recount:
    """What follows from raw alone: files of 5s cells of state metrics, the admitted keys, which slices
    touched which tiles."""

    cells: Sequence[str]
    admitted_keys: AdmittedKeys | None
    touched: Touched


def _gone(name: str) -> DamageError:
    return DamageError("the file is missing or damaged, and raw of some of it has expired", where=name)


def tiles_held(path: str) -> Iterator[tuple[int, frozenset[str]]]:
    """A kernel: for the 5s tiles in which a part of raw has rows, the slices of the rows."""
    for facts in held_facts(path):
        yield from facts.tiles.items()


class StateHistory:
    """The state history of one stream. Not thread-safe, and for one process at a time."""

    def __init__(
        self,
        warehouse: Path,
        spec: RollupSpec,
        plan: ReadPlan,
        engine: Engine,
        state: State,
        raw: Table,
        horizons: Callable[[], Horizons] = Horizons,
    ) -> None:
        """`plan` is the `metric_plan` of the stream."""
        self.folder: Final = layout.state_history(warehouse, spec.stream)
        self.spec: Final = spec
        self._warehouse = warehouse
        self._plan = plan
        self._engine = engine
        self._state = state
        self._raw = raw
        self._horizons = horizons
        self._seen: int | None = None  # the version of raw that it is in line with
        self._log: ObservationLog | None = None
        self._admitted_keys = AdmittedKeys.of(spec)
        self._may_begin_again = False
        self._shared: dict[str, Mapping[str, Sequence[str]]] = {}  # packed parts: batch -> its slices in them

    @property
    def needed(self) -> bool:
        return self.spec.in_order

    @property
    def followed(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.spec.metrics if metric.following is not None)

    @property
    def admitted_keys(self) -> AdmittedKeys | None:
        """The admitted keys; None if no metric has a limit. Current after `catch_up`."""
        if self.needed:
            self._observed()  # reads them the first time
        return self._admitted_keys if self._admitted_keys.metrics else None

    @property
    def touched(self) -> Touched:
        """Everything that was ever recorded in the state, for the batches that exist."""
        return _united(each.touched for each in self._observed().sets.values())

    # -- in line with raw

    def catch_up(self) -> None:
        """Bring it in line with raw, as far as the state knows its batches. Costs a look at the version of
        raw and at the length of the log if nothing happened."""
        if not self.needed:
            return
        if self._log is not None and not self._log.is_newest():  # another process has worked on the stream
            self._log, self._seen, self._admitted_keys = None, None, AdmittedKeys.of(self.spec)
        if self._raw.refresh() == self._seen:
            return
        observed = self._observed()
        in_raw = self._batches()
        covered = {batch: offset for each in observed.sets.values() for batch, offset in each.batches.items()}
        if observed.lacking:
            self._take_up_lacking(
                observed, {batch: covered[batch] for batch in in_raw if batch in covered}, in_raw
            )
        # Raw may lose batches by retention: their observations stay. Undone batches are unknown to the
        # ledger.
        gone = {
            batch
            for batch in covered.keys() - in_raw.keys()
            if not self._state.has_batch(self.spec.stream, batch)
        }
        if (gone or in_raw.keys() - covered.keys()) and not self._repair(observed, in_raw, covered, gone):
            return  # accept must record some batches of raw first
        self._seen = self._raw.version

    def count_all_states(self) -> None:
        """Bring it in line with raw and record everything in the state again, for `recover`."""
        if not self.needed:
            return
        observed = self._observed()
        positions = self._offsets()
        covered = {batch: offset for each in observed.sets.values() for batch, offset in each.batches.items()}
        if any(positions.get(batch, offset) != offset for batch, offset in covered.items()):
            log.warning("the ledger has another order", extra={"stream": self.spec.stream})
            observed.enter(None, list(observed.sets))
            observed.sweep()
            self._admitted_keys = AdmittedKeys.of(self.spec)
        self._seen = None
        self.catch_up()
        if touched := self.touched:
            self._state.touch_tiles(self.spec.stream, touched)

    def begins_again(self, *, had_log: bool) -> bool:
        """Whether a file is missing or damaged, and raw no longer has all that it held: then the history
        begins again, and lacks what came before. DamageError until the file was set aside. For `recover`:
        its state does not know whether there was a log."""
        if not self.needed or not self._has_expired:
            return False
        path = layout.state_history_log(self.folder)
        try:
            known = ObservationLog(self.folder, _made_for(self.spec), keep=True)
        except DamageError:
            lost = [path]
        else:
            lost = self._broken(known) if known.sets else [path] if had_log and not path.exists() else []
        for name in map(layout.relative_name, lost):
            if not layout.was_set_aside(self._warehouse, name):
                raise _gone(name)
        return bool(lost)

    @contextmanager
    def beginning_again(self) -> Iterator[None]:
        """Inside it, what is lost and no longer in raw is left out: the caller sees to it that answers say
        what they lack."""
        self._may_begin_again = True
        try:
            yield
        finally:
            self._may_begin_again = False

    def add(self, batch: str, slices: Mapping[str, int], folder: Path) -> Touched | None:
        """Add the batch that was just committed, from what its tap wrote to `folder` (see `note`).

        `slices` are its slices with their ledger offsets. Writes to `folder`, beside the cells of other
        metrics, what the batch changes in those of state metrics. Records in the state, and returns, which
        tiles it touched besides its own. None: it was read from raw, so tiles must be made from raw too.
        """
        if not self.needed:
            return {}
        observed = self._observed()
        offset = (min(slices.values(), default=0), max(slices.values(), default=0))
        if self._seen != self._raw.refresh() - 1 or offset[0] <= _last_offset(observed):
            self.catch_up()
            return None
        touched = self._enter(observed, {batch: offset}, slices, folder, folder)
        self._seen = self._raw.version
        return touched

    def tidy(self) -> int:
        """Merge sets of observation files of similar size; how many were removed."""
        if not self.needed:
            return 0
        observed = self._observed()
        sizes = {
            name: sum(size_of(self.folder / file) for file in each.names)
            for name, each in observed.sets.items()
        }
        old = [observed.sets[name] for name in crowded_tier(sizes, FAN_IN)]
        if not old:
            return 0
        batches = {batch: offset for each in old for batch, offset in each.batches.items()}
        touched = _united(each.touched for each in old)
        self._replace(observed, old, ObservationSet(f"m{set_hash(batches)[:24]}", batches, {}, touched))
        observed.sweep()
        return len(old)

    # -- for tiles

    def state_cells_for(self, tiles: Sequence[int], folder: Path) -> list[str]:
        """Files with all state cells of the 5s tiles that begin at `tiles`."""
        if not self.followed or not tiles:
            return []
        raw, starts = self._raw.snapshot(), sorted(tiles)
        size = file_bytes(raw_parts(raw, starts))
        count = max(2 * self._engine.parallelism, size // HISTORY_BYTES) if size > PARALLEL_BYTES else 1
        observation_files = {metric.name: self._observation_files(metric) for metric in self.followed}
        groups = [[starts[i] for i in group] for group in spread([1] * len(starts), count)]
        units = [
            HistoryUnit(
                spec=self.spec,
                plan=self._plan,
                tiles=group,
                raw=raw_parts(raw, group),
                observation_files=observation_files,
                admitted_keys=self.admitted_keys,
                out=str(folder / f"states-{group[0]}{PARTIAL}"),
            )
            for group in groups
        ]
        return self._engine.run(count_states, units, "states of tiles", size)

    def changed_cells(self, grown: Mapping[frozenset[str], Sequence[int]], folder: Path) -> list[str]:
        """Files with what slices changed in the state cells of 5s tiles, by the ids of the slices. All slices
        are in the state history."""
        if not self.followed or not grown:
            return []
        seqs = {entry.id: entry.seq for entry in self._state.slices(self.spec.stream)}
        units = [
            ChangesUnit(
                metric=metric,
                keys=keys,
                tiles=sorted(tiles),
                offsets=sorted(seqs[name] for name in names),
                observation_files=files,
                admitted_keys=self.admitted_keys,
                out=str(folder / f"changes-{number}-{i}~{metric.name}{PARTIAL}"),
            )
            for metric in self.followed
            for files in [self._observation_files(metric)]
            for number, (names, tiles) in enumerate(grown.items())
            for i, keys in enumerate(key_ranges(self._ranges(file_bytes(files))))
        ]
        size = file_bytes({path for unit in units for path in unit.observation_files})
        return self._engine.run(changes, units, "states of late events", size)

    def recount(self, raw: Sequence[str], seqs: Mapping[str, int], folder: Path) -> Recount:
        """Compute everything again from raw parts alone (`seqs`: slice -> ledger offset); in `folder`."""
        size = self._note(raw, folder)
        admitted_keys = AdmittedKeys.of(self.spec).grown(self._keys(folder, seqs))
        known = admitted_keys if admitted_keys.metrics else None
        count = self._ranges(size) * -(-size // (1 << 30))
        units = [
            RecountUnit(
                metric=metric,
                keys=keys,
                seen=left_by(folder, metric.name, SEEN),
                seqs=seqs,
                admitted_keys=known,
                folder=str(folder),
                name=f"recount-{metric.name}-{i}",
            )
            for metric in self.followed
            for i, keys in enumerate(key_ranges(max(1, count)))
        ]
        found: list[Recounted] = self._engine.run(recount, units, "states from raw", size)
        ids = {seq: name for name, seq in seqs.items()}
        touched = _named((pair for each in found for pair in each.touched), ids)
        return Recount([each.cells for each in found], known, touched)

    # -- within

    def _observed(self) -> ObservationLog:
        """The log, whose files are checked once: missing or damaged ones count as never made."""
        if self._log is None:
            self._log = self._open_log()
            broken = {
                each.name
                for each in self._log.sets.values()
                if not all(is_whole(self.folder / name) for name in each.names)
            }
            admitted_keys = self._read_admitted(self._log.lacking) if self._log.sets else self._admitted_keys
            if admitted_keys is None:
                broken = set(self._log.sets)
            else:
                self._admitted_keys = admitted_keys
            if broken:
                self._must_be_in_raw(self._broken(self._log))
                log.warning(
                    "%d sets of observations are gone", len(broken), extra={"stream": self.spec.stream}
                )
                self._log.enter(None, broken)
            self._log.sweep()
            self._remove_admitted(
                _last_offset(self._log) + 1
            )  # a process may have died before the log recorded keys
        return self._log

    def _open_log(self) -> ObservationLog:
        try:
            return ObservationLog(self.folder, _made_for(self.spec), self._state, keep=self._has_expired)
        except DamageError as error:
            self._must_be_in_raw([layout.state_history_log(self.folder)])
            log.warning("all observations are made again from raw: %s", error)
        drop_log(self.folder, self._state)
        return ObservationLog(self.folder, _made_for(self.spec), self._state)

    def _broken(self, observed: ObservationLog) -> list[Path]:
        """Observation files and files of admitted keys that are missing or damaged."""
        files = [self.folder / name for each in observed.sets.values() for name in each.names]
        files += [layout.admitted_keys(self.folder, metric) for metric in AdmittedKeys.of(self.spec).metrics]
        return [path for path in files if not is_whole(path)]

    def _must_be_in_raw(self, lost: Sequence[Path]) -> None:
        """What is lost is made again from raw. If some of raw has expired, that would give another history:
        DamageError, unless that was recorded."""
        if lost and self._has_expired and not self._may_begin_again:
            raise _gone(layout.relative_name(lost[0]))

    @property
    def _has_expired(self) -> bool:
        """Whether some of raw has expired: not all observations can be made again from it."""
        names = (Path(path).name.partition("-")[0] for path in self._raw.snapshot().paths())
        return EXPIRED_PART in names

    def _batches(self) -> dict[str, list[str]]:
        """Batches of raw with parts whose names begin with theirs; packed parts name their batches, and
        stand-ins belong to none."""
        found: dict[str, list[str]] = {}
        shared: dict[str, Mapping[str, Sequence[str]]] = {}
        for path in self._raw.snapshot().paths():
            prefix = Path(path).name.partition("-")[0]
            if prefix in (PACKED_PART, REST_PART):
                shared[path] = self._shared.get(path) or packed_footer(path).batches
                for batch in shared[path]:
                    found.setdefault(batch, []).append(path)
            elif prefix not in (TOMBSTONE_PART, EXPIRED_PART):
                found.setdefault(prefix, []).append(path)
        self._shared = shared
        return found

    def _repair(
        self,
        observed: ObservationLog,
        in_raw: Mapping[str, Sequence[str]],
        covered: Mapping[str, tuple[int, int]],
        gone: Collection[str],
    ) -> bool:
        """Forget everything from the first offset that is not in line with raw, and read it again; whether
        all of it could be read."""
        seqs = {entry.id: entry.seq for entry in self._state.slices(self.spec.stream)}
        known = {batch: offset for batch, offset in self._offsets().items() if batch in in_raw}
        positions: dict[str, tuple[int, int]] = {**known, **covered}
        wrong = {*gone, *(in_raw.keys() - covered.keys())} & positions.keys()
        if wrong:
            start = min(positions[batch][0] for batch in wrong)
            while astride := [low for low, high in positions.values() if low < start <= high]:
                start = min(astride)
            # First: while the log shows what is wrong, this is repeated.
            self._remove_admitted(start)
            self._leave_tiles(observed, start, seqs)
            for each in list(observed.sets.values()):
                if any(high >= start for _, high in each.batches.values()):
                    self._cut(observed, each, start, seqs)
            observed.sweep()
            again = {batch: positions[batch] for batch in in_raw if positions.get(batch, (0, -1))[1] >= start}
            self._take_up(again, in_raw, seqs, observed)
        return in_raw.keys() <= positions.keys()

    def _leave_tiles(self, observed: ObservationLog, start: int, seqs: Mapping[str, int]) -> None:
        """Remove slices from a ledger offset on from the tiles that they touched and have no rows in: beside
        other slices than before they may touch other tiles. Those that they still touch get them again."""
        horizons, left = self._horizons(), dict[int, frozenset[str]]()
        for tile, names in _united(each.touched for each in observed.sets.values()).items():
            later = frozenset(name for name in names if seqs.get(name, -1) >= start)
            if later and not horizons.sealed(TileKey(BASE.name, tile)):
                left[tile] = later
        paths = raw_parts(self._raw.snapshot(), list(left))
        for tile, holding in self._engine.run(tiles_held, paths, "slices of tiles", file_bytes(paths)):
            if tile in left:
                left[tile] -= holding
        if left := {tile: names for tile, names in left.items() if names}:
            self._state.leave_tiles(self.spec.stream, left)

    def _offsets(self) -> dict[str, tuple[int, int]]:
        """Batches of the ledger with the first and last offset of their slices."""
        found: dict[str, tuple[int, int]] = {}
        for entry in self._state.slices(self.spec.stream):
            if entry.batch is not None:
                low, high = found.get(entry.batch, (entry.seq, entry.seq))
                found[entry.batch] = (min(low, entry.seq), max(high, entry.seq))
        return found

    def _cut(
        self, observed: ObservationLog, old: ObservationSet, start: int, seqs: Mapping[str, int]
    ) -> None:
        """Keep of a set what slices before a ledger offset added. Not by making it again: its raw may have
        expired."""
        kept = {batch: offset for batch, offset in old.batches.items() if offset[1] < start}
        context = {"stream": self.spec.stream}
        log.info("observations of %d batches are read again", len(old.batches) - len(kept), extra=context)
        if not kept:
            observed.enter(None, [old.name])
            return
        touched = {
            tile: left
            for tile, names in old.touched.items()
            if (left := frozenset(name for name in names if seqs.get(name, start) < start))
        }
        self._replace(observed, [old], ObservationSet(f"c{set_hash(kept)[:24]}", kept, {}, touched), start)

    def _replace(
        self,
        observed: ObservationLog,
        old: Sequence[ObservationSet],
        new: ObservationSet,
        before: int | None = None,
    ) -> None:
        """Write the files of `old` as those of `new`: all, or only what came before a ledger offset."""
        size = file_bytes(str(self.folder / name) for each in old for name in each.names)
        units = [
            MergeObservations(metric, files, low, high, str(self._target(new.name, i, metric)), before)
            for metric in self.followed
            if (files := [str(self.folder / f) for each in old for f in each.files.get(metric.name, ())])
            for i, (low, high) in enumerate(key_ranges(self._ranges(size)))
        ]
        self._engine.run(merge_observations, units, "merge trails", size)
        named: dict[str, list[str]] = {}
        for unit in units:
            named.setdefault(unit.metric.name, []).append(Path(unit.target).name)
        failpoint("state_history.after_merge")
        observed.enter(replace(new, files=named), [each.name for each in old])

    def _target(self, name: str, number: int, metric: Metric) -> Path:
        return self.folder / f"{name}-{number}~{metric.name}{layout.OBSERVATIONS_SUFFIX}"

    def _take_up_lacking(
        self,
        observed: ObservationLog,
        batches: Mapping[str, tuple[int, int]],
        in_raw: Mapping[str, Sequence[str]],
    ) -> None:
        """Read new and redeclared metrics from what is left of raw. The observations of other metrics stay:
        raw no longer has all of them."""
        seqs = {entry.id: entry.seq for entry in self._state.slices(self.spec.stream)}
        self._take_up(batches, in_raw, seqs, observed, observed.lacking)
        self._write_admitted(self._admitted_keys, first=True)
        observed.complete()
        observed.sweep()

    def _take_up(
        self,
        missing: Mapping[str, tuple[int, int]],
        in_raw: Mapping[str, Sequence[str]],
        seqs: Mapping[str, int],
        observed: ObservationLog,
        only: frozenset[str] | None = None,
    ) -> None:
        rows = {str(self._raw.root / part.path): part.rows for part in self._raw.snapshot().parts}
        order = sorted(missing, key=lambda batch: missing[batch])
        while order:
            many = 0
            taken: list[str] = []
            while order and (not taken or many < ROWS_AT_ONCE):
                many += sum(rows[path] for path in in_raw[order[0]])
                taken.append(order.pop(0))
            # Batches whose offsets overlap are processed together: the ledger orders slices.
            while order and missing[order[0]][0] < max(missing[batch][1] for batch in taken):
                taken.append(order.pop(0))
            name = f"state_history-{set_hash(taken)[:24]}"
            folder = self._raw.staging(name)
            paths = list(dict.fromkeys(path for batch in taken for path in in_raw[batch] if rows[path]))
            context = {"stream": self.spec.stream}
            log.info("taking %d batches up from raw", len(taken), extra=context)
            self._note(paths, folder, taken)
            self._enter(observed, {batch: missing[batch] for batch in taken}, seqs, folder, None, only)
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

    def _note(self, raw: Sequence[str], folder: Path, batches: Sequence[str] | None = None) -> int:
        """What `note` would have written for the events of raw parts (those of `batches`, if a part has
        others too); how many bytes of raw were read."""
        sizes = [max(1, size_of(path)) for path in raw]
        only: dict[str, frozenset[str]] = {}
        for path in raw if batches is not None else ():
            if path in self._shared:
                held = self._shared[path]
                only[path] = frozenset(name for batch in batches or () for name in held.get(batch, ()))
        units = [
            NoteUnit(self.spec, self._plan, [raw[i] for i in group], str(folder), f"raw-{number}", only)
            for number, group in enumerate(spread(sizes, 4 * self._engine.parallelism))
        ]
        self._engine.run(note_raw, units, "observations", sum(sizes))
        return sum(sizes)

    def _keys(
        self, folder: Path, seqs: Mapping[str, int], only: frozenset[str] | None = None
    ) -> dict[str, pa.Table]:
        limited = [metric for metric in self.spec.metrics if metric.limit is not None]
        found = {
            metric.name: keys_left(metric, folder, seqs)
            for metric in limited
            if only is None or metric.name in only
        }
        return {name: keys for name, keys in found.items() if keys is not None}

    def _enter(
        self,
        observed: ObservationLog,
        batches: Mapping[str, tuple[int, int]],
        seqs: Mapping[str, int],
        folder: Path,
        cells: Path | None,
        only: frozenset[str] | None = None,
    ) -> Touched:
        """Enter what was noted of some batches, of all metrics or `only` of some.

        Observation files first, then the state, then the admitted keys, then the log, which makes them
        current: whatever a crash leaves is made again, and recording it again has the same effect."""
        make_folder(self.folder, top=self._warehouse)
        admitted_keys = self._admitted_keys.grown(self._keys(folder, seqs, only))
        name = set_hash([*batches, *(only or ())])[:24]
        followed = [metric for metric in self.followed if only is None or metric.name in only]
        seen = {metric.name: left_by(folder, metric.name, SEEN) for metric in followed}
        size = file_bytes(path for paths in seen.values() for path in paths)
        units = [
            EnterUnit(
                metric=metric,
                keys=keys,
                seen=seen[metric.name],
                seqs=seqs,
                observation_files=self._observation_files(metric),
                admitted_keys=admitted_keys if metric.limit is not None else None,
                target=str(self._target(name, i, metric)),
                cells=None if cells is None else str(cells / f"states-{i}~{metric.name}{PARTIAL}"),
            )
            for metric in followed
            if seen[metric.name]
            for i, keys in enumerate(key_ranges(self._ranges(size)))
        ]
        entered = self._engine.run(enter, units, "trails", size)
        ids = {seq: slice_id for slice_id, seq in seqs.items()}
        touched = _named((pair for each in entered for pair in each.touched), ids)
        failpoint("state_history.after_trails")
        if touched:
            self._state.touch_tiles(self.spec.stream, touched)
        failpoint("state_history.after_state")
        check_commit(self.folder)
        self._write_admitted(admitted_keys, first=not observed.sets)
        files: dict[str, list[str]] = {}
        for each in entered:
            if each.observation_file is not None:
                files.setdefault(each.metric, []).append(Path(each.observation_file).name)
        observed.enter(ObservationSet(name, dict(batches), files, touched))
        failpoint("state_history.after_log")
        return touched

    def _observation_files(self, metric: Metric) -> list[str]:
        sets = self._observed().sets.values()
        return [str(self.folder / name) for each in sets for name in each.files.get(metric.name, ())]

    def _ranges(self, size: int) -> int:
        return self._engine.parallelism if size > PARALLEL_BYTES else 1

    def _write_admitted(self, admitted_keys: AdmittedKeys, *, first: bool) -> None:
        for metric in admitted_keys.metrics:
            if first or admitted_keys.keys(metric) is not self._admitted_keys.keys(metric):
                write_observations(layout.admitted_keys(self.folder, metric), admitted_keys.keys(metric))
        self._admitted_keys = admitted_keys

    def _remove_admitted(self, start: int) -> None:
        """Remove keys that were admitted from this ledger offset on, also on disk."""
        kept = self._admitted_keys.before(start)
        for metric in kept.metrics:
            if kept.keys(metric).num_rows < self._admitted_keys.keys(metric).num_rows:
                write_observations(layout.admitted_keys(self.folder, metric), kept.keys(metric))
        self._admitted_keys = kept

    def _read_admitted(self, lacking: Collection[str]) -> AdmittedKeys | None:
        """The admitted keys as last written, without those of metrics that are `lacking`; None if a file is
        missing."""
        empty = AdmittedKeys.of(self.spec)
        paths = {
            metric: layout.admitted_keys(self.folder, metric)
            for metric in empty.metrics
            if metric not in lacking
        }
        if not all(is_whole(path) for path in paths.values()):
            return None
        return AdmittedKeys(empty.metrics, {metric: joined([read_arrow(p)]) for metric, p in paths.items()})


@dataclass(frozen=True, slots=True)
class Recollection:
    """The contents of a state history, for readers."""

    observation_files: Mapping[
        str, Sequence[str]
    ]  # files by metric; they may be merged into others at any time
    admitted_keys: AdmittedKeys

    def admitted(self, cells: Cells) -> Cells:
        return self.admitted_keys.admit(cells)

    def renamed(self, metric: str, observations: pa.Table) -> pa.Table:
        return self.admitted_keys.renamed(metric, observations)


def recollect(warehouse: Path, spec: RollupSpec) -> Recollection | None:
    """What is kept for all metrics of a stream as declared now; None if nothing is. Raises FileNotFoundError
    if a file is being merged into another."""
    folder = layout.state_history(warehouse, spec.stream)
    known = ObservationLog(folder, _made_for(spec))
    if not known.exists:
        return None
    observation_files: dict[str, list[str]] = {}
    for each in known.sets.values():
        for metric, names in each.files.items():
            observation_files.setdefault(metric, []).extend(str(folder / name) for name in names)
    limited = AdmittedKeys.of(spec).metrics
    admitted = {metric: joined([read_arrow(layout.admitted_keys(folder, metric))]) for metric in limited}
    return Recollection(observation_files, AdmittedKeys(limited, admitted))


def _last_offset(observed: ObservationLog) -> int:
    """The last ledger offset that the log covers; -1: none."""
    return max((high for each in observed.sets.values() for _, high in each.batches.values()), default=-1)


def _made_for(spec: RollupSpec) -> MadeFor:
    """What the state history depends on in the configuration."""
    metrics = {m.name: repr(m) for m in spec.metrics if m.following is not None or m.limit is not None}
    cores = {m.name: m.core or _hash(metrics[m.name]) for m in spec.metrics if m.name in metrics}
    return MadeFor(cores, _hash("\n".join(metrics.values())))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _named(touched: Iterable[tuple[int, int]], ids: Mapping[int, str]) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {}
    for start, seq in touched:
        found.setdefault(start, set()).add(ids[seq])
    return {start: frozenset(found[start]) for start in sorted(found)}


def _united(many: Iterable[Touched]) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    for touched in many:
        for start, names in touched.items():
            found[start] = found.get(start, frozenset()) | names
    return {start: found[start] for start in sorted(found)}
