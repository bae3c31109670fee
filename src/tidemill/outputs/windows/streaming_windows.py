"""The streaming windows of all streams, and the watermarks that move them.

It decides when to compute; what a window contains follows from raw, the watermark and the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tidemill.config import Project, Stream
from tidemill.engine import Engine
from tidemill.ingest.expiry_log import DATASETS, RAW, ExpiryLog, Loss
from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.ingest.warehouse import Progress
from tidemill.model.errors import DamageError
from tidemill.outputs.windows.offsets import SliceOffsets
from tidemill.outputs.windows.planning import WindowInputs, WindowWork
from tidemill.outputs.windows.reader import spec_named
from tidemill.outputs.windows.refresh import Refresher, WindowRefresh
from tidemill.outputs.windows.results import ResultsFooter
from tidemill.outputs.windows.row_group_cache import RowGroups
from tidemill.outputs.windows.verify import ResultDifference
from tidemill.raw.watermark import watermark_of
from tidemill.storage import layout
from tidemill.storage.state.faults import Guard
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table, tidy


class StreamingWindows:
    """Streaming windows of one project."""

    def __init__(
        self,
        project: Project,
        state: State,
        engine: Callable[[], Engine],
        progress: Progress,
        expiries: ExpiryLog,
    ) -> None:
        self._project = project
        self._state = state
        self._engine = engine
        self._progress = progress
        self._expiries = expiries
        self._refreshers: dict[tuple[str, str], Refresher] = {}
        self._positions: dict[str, SliceOffsets] = {}
        self._shared: dict[str, RowGroups] = {}
        self._raw: dict[str, Table] = {}

    @property
    def declared(self) -> Mapping[str, Stream]:
        """Streams with streaming windows."""
        return {name: stream for name, stream in self._project.streams.items() if stream.windows}

    def refresh(self, stream: str, now: int, *, flush: bool = False) -> list[WindowRefresh]:
        """Bring the results of a stream up to its watermark; with `flush` open windows are published too."""
        inputs = self._inputs(stream, now, flush=flush)
        if inputs is None:
            return []
        planned = []
        for refresher in self._of(stream):
            self._progress(stream, f"window {refresher.spec.name}", 0.0)
            planned.append((refresher, refresher.plan(inputs)))
        # Computed in parallel, committed one after another.
        with ThreadPoolExecutor(self._engine().parallelism) as pool:
            computed = {
                refresher.spec.name: pool.submit(refresher.compute, work)
                for refresher, work in planned
                if isinstance(work, WindowWork)
            }
        done = []
        for refresher, work in planned:
            name = refresher.spec.name
            finished = (
                refresher.finish(work, computed[name].result()) if isinstance(work, WindowWork) else work
            )
            done.append(finished)
            self._progress(stream, f"window {name}", 1.0)
            tidy([refresher.table], self._project.engine.keep_replaced, now)
        return done

    def refresh_all(
        self, names: Iterable[str], now: int, guard: Guard, *, flush: bool = False
    ) -> dict[str, list[WindowRefresh]]:
        """`refresh` these streams; an error of one does not stop the others."""
        done: dict[str, list[WindowRefresh]] = {}
        for name in names:
            found = guard.attempt(name, "windows", partial(self.refresh, name, now, flush=flush))
            if found is not None:
                done[name] = found
        return done

    def repair(self, stream: str, window: str, now: int) -> WindowRefresh:
        """Make damaged results again from raw; others stay as they are."""
        inputs = self._inputs(stream, now, flush=False)
        spec_named(self._project.stream(stream), window)
        for refresher in self._of(stream):
            if refresher.spec.name == window and inputs is not None:
                refresher.repair(now, read=True)
                return refresher.refresh(inputs)
        return WindowRefresh(window)

    def lose(self, stream: str, window: str, now: int) -> None:
        """Remove damaged results from the table; the next refresh computes everything again and publishes
        what is missing."""
        for refresher in self._of(stream):
            if refresher.spec.name == window and not refresher.repair(now, read=True):
                if Table.existing(refresher.root) is None:
                    self._expiries.append(refresher.losses(None, now))
                self._state.set_checkpoint(stream, window, None)

    def lost_with(self, stream: str, window: str, parts: Collection[str] | None) -> list[Loss]:
        """What is lost for good with these parts of the results of a window (None: with all of them)."""
        for refresher in self._of(stream):
            if refresher.spec.name == window:
                known = _known_parts(refresher.root) if parts is not None else {}
                named = None if parts is None else [known[path] for path in parts if path in known]
                return refresher.losses(named, 0)
        return []

    def forget(self, stream: str) -> None:
        """Close everything of a stream; it is opened again when needed."""
        self._raw.pop(stream, None)
        self._shared.pop(stream, None)
        self._positions.pop(stream, None)
        for key in [key for key in self._refreshers if key[0] == stream]:
            del self._refreshers[key]

    def recall(self, stream: str, now: int) -> int:
        """After a recovery: announce again what the results tables of a stream hold; how many commits."""
        found = 0
        for refresher in self._of(stream):
            table = Table.existing(refresher.root)
            batches: dict[int, list[str]] = {}
            for path in table.snapshot().paths() if table is not None else ():
                footer = ResultsFooter.from_footer(read_footer(path))
                if footer.fingerprint == refresher.fingerprint:  # otherwise they are made again
                    for batch in footer.batches:
                        batches.setdefault(batch, []).append(path)
            for batch, parts in sorted(batches.items()):
                events = refresher.events(parts, batch, now)
                self._state.set_checkpoint(stream, refresher.spec.name, None, events)
                found += 1
        return found

    def verify(self, stream: str) -> Iterator[ResultDifference | int]:
        """Compute all results again from raw and compare; the numbers count compared results."""
        inputs = self._inputs(stream, 0, flush=False)
        if inputs is not None:
            for refresher in self._of(stream):
                yield from refresher.verify(inputs)

    def needed(self, stream: str, raw: int) -> Iterator[tuple[str, int, str]]:
        """For each window the instant from which it still needs raw, which is at this version, and why."""
        for refresher in self._of(stream):
            at, why = refresher.needed(raw)
            yield refresher.spec.name, at, why

    def sealed(self, stream: str) -> int:
        """How many results are never computed again."""
        inputs = self._inputs(stream, 0, flush=False)
        return sum(refresher.sealed(inputs) for refresher in self._of(stream)) if inputs is not None else 0

    def _inputs(self, stream: str, now: int, *, flush: bool) -> WindowInputs | None:
        if stream not in self.declared or is_deciding_again(self._state, stream):
            return None
        raw = self._raw.get(stream) or Table.existing(layout.raw(self._project.warehouse, stream))
        if raw is None:
            return None
        self._raw[stream] = raw
        raw.refresh()
        watermark = watermark_of(self._project.stream(stream), self._state, now)
        gone = self._expiries.horizons(stream)
        return WindowInputs(raw, watermark, now, flush, gone.get(RAW), gone.get(DATASETS))

    def _of(self, stream: str) -> list[Refresher]:
        declared = self._project.stream(stream)
        positions = self._positions.setdefault(stream, SliceOffsets(self._state, stream))
        needed = (column for spec in declared.window_specs for column in spec.columns)
        shared = self._shared.setdefault(stream, RowGroups(needed))
        for spec in declared.window_specs:
            if (stream, spec.name) not in self._refreshers:
                self._refreshers[stream, spec.name] = Refresher(
                    self._project.warehouse,
                    declared,
                    spec,
                    self._engine(),
                    self._state,
                    positions,
                    shared,
                    self._expiries,
                )
        return [self._refreshers[stream, spec.name] for spec in declared.window_specs]


def _known_parts(root: Path) -> Mapping[str, Part]:
    """Of a table, by path; none while its log is damaged, which is repaired first."""
    try:
        table = Table.existing(root)
    except DamageError:
        return {}
    return table.snapshot().by_path if table is not None else {}
