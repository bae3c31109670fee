"""The streaming windows of all streams, and the watermarks that move them.

It decides when to look, never what a window holds: that follows from raw, the watermark and the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tidemill.config import Project, Stream
from tidemill.engine import Engine
from tidemill.ingest.expiries import DATASETS, RAW, ExpiryLog
from tidemill.ingest.retractions import is_deciding_again
from tidemill.ingest.warehouse import Progress
from tidemill.outputs.windows.decoded import RowGroups
from tidemill.outputs.windows.looks import Look, WindowWork
from tidemill.outputs.windows.offsets import SliceOffsets
from tidemill.outputs.windows.reader import spec_named
from tidemill.outputs.windows.refresh import Refresher, WindowRefresh
from tidemill.outputs.windows.results import ResultsFooter
from tidemill.outputs.windows.verify import ResultDifference
from tidemill.raw.watermark import watermark_of
from tidemill.storage import layout
from tidemill.storage.state.faults import Guard
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.table import Table
from tidemill.storage.tables.tidy import tidy


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
        """Bring the results of a stream up to its watermark; with `flush` open windows come out, too."""
        look = self._look(stream, now, flush=flush)
        if look is None:
            return []
        planned = []
        for refresher in self._of(stream):
            self._progress(stream, f"window {refresher.spec.name}", 0.0)
            planned.append((refresher, refresher.plan(look)))
        # Computed side by side; committed one after another, and nothing else is at work then.
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
        """`refresh` these streams; what is wrong with one does not keep the others waiting."""
        done: dict[str, list[WindowRefresh]] = {}
        for name in names:
            found = guard.attempt(name, "windows", partial(self.refresh, name, now, flush=flush))
            if found is not None:
                done[name] = found
        return done

    def repair(self, stream: str, window: str, now: int) -> WindowRefresh:
        """Make results that are damaged again from raw; those that are not stay as they are."""
        look = self._look(stream, now, flush=False)
        spec_named(self._project.stream(stream), window)
        for refresher in self._of(stream):
            if refresher.spec.name == window and look is not None:
                refresher.repair(now, read=True)
                return refresher.refresh(look)
        return WindowRefresh(window)

    def lose(self, stream: str, window: str, now: int) -> None:
        """Results that are damaged leave the table, and the next refresh computes everything again: what is
        missing then comes out again, and windows that are open are found again."""
        for refresher in self._of(stream):
            if refresher.spec.name == window and not refresher.repair(now, read=True):
                self._state.set_checkpoint(stream, window, None)

    def forget(self, stream: str) -> None:
        """Open everything of a stream again when it is needed next."""
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
                if footer.fingerprint == refresher.fingerprint:  # else they are made again
                    for batch in footer.batches:
                        batches.setdefault(batch, []).append(path)
            for batch, parts in sorted(batches.items()):
                events = refresher.events(parts, batch, now)
                self._state.set_checkpoint(stream, refresher.spec.name, None, events)
                found += 1
        return found

    def verify(self, stream: str) -> Iterator[ResultDifference | int]:
        """Compute all results again, from raw, and compare; the numbers are of results compared."""
        look = self._look(stream, 0, flush=False)
        if look is not None:
            for refresher in self._of(stream):
                yield from refresher.verify(look)

    def needed(self, stream: str, raw: int) -> Iterator[tuple[str, int, str]]:
        """Per window from which instant on it still needs raw, which is at this version, and why."""
        for refresher in self._of(stream):
            at, why = refresher.needed(raw)
            yield refresher.spec.name, at, why

    def sealed(self, stream: str) -> int:
        """How many results stand that are never computed again."""
        look = self._look(stream, 0, flush=False)
        return sum(refresher.sealed(look) for refresher in self._of(stream)) if look is not None else 0

    def _look(self, stream: str, now: int, *, flush: bool) -> Look | None:
        if stream not in self.declared or is_deciding_again(self._state, stream):
            return None
        raw = self._raw.get(stream) or Table.existing(layout.raw(self._project.warehouse, stream))
        if raw is None:
            return None
        self._raw[stream] = raw
        raw.refresh()
        watermark = watermark_of(self._project.stream(stream), self._state, now)
        gone = self._expiries.horizons(stream)
        return Look(raw, watermark, now, flush, gone.get(RAW), gone.get(DATASETS))

    def _of(self, stream: str) -> list[Refresher]:
        declared = self._project.stream(stream)
        positions = self._positions.setdefault(stream, SliceOffsets(self._state, stream))
        needed = (column for spec in declared.window_specs for column in spec.columns)
        shared = self._shared.setdefault(stream, RowGroups(needed))
        for spec in declared.window_specs:
            if (stream, spec.name) not in self._refreshers:
                self._refreshers[stream, spec.name] = Refresher(
                    self._project.warehouse, declared, spec, self._engine(), self._state, positions, shared
                )
        return [self._refreshers[stream, spec.name] for spec in declared.window_specs]
