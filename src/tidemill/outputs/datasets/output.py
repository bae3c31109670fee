"""Datasets as an output of a stream: windows are evaluated here; builders take them from the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tidemill.config import Stream
from tidemill.ingest.expiry_log import DATASETS
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.expiry import ExpiryStep
from tidemill.model.failpoints import failpoint
from tidemill.model.time import DAY, MIN_INSTANT, Interval
from tidemill.model.windows import Phase, Window
from tidemill.outputs.contract import Difference, Need, RawFacts, RoundStart, Simple, Verified
from tidemill.outputs.datasets.catalog import drop_datasets
from tidemill.outputs.datasets.coordinator import Coordinated
from tidemill.outputs.datasets.damage import dataset_files, repair_command
from tidemill.outputs.datasets.dataset import revisions
from tidemill.outputs.datasets.dataset_builders import DatasetBuilders
from tidemill.outputs.datasets.reader import WindowReader
from tidemill.outputs.datasets.rules import rules_of
from tidemill.outputs.datasets.verify import verify_datasets, verify_sets
from tidemill.raw.watermark import watermark_of
from tidemill.storage import layout
from tidemill.storage.bucket_path import on_disk
from tidemill.storage.file_scrub import FileCheck, ScrubTally, check_files

_UNFINISHED: Final = (Phase.QUEUED, Phase.BUILDING, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What the evaluation of a stream's windows did, and how many datasets are deleted or damaged."""

    windows: Coordinated
    damaged: int = 0

    @property
    def idle(self) -> bool:
        return self.windows.idle


class Datasets(Simple):
    """The datasets of one stream."""

    name = "datasets"

    def __init__(
        self,
        warehouse: Warehouse,
        stream: Stream,
        dataset_builders: DatasetBuilders,
        window_reader: WindowReader,
    ) -> None:
        self._warehouse = warehouse
        self._stream = stream
        self._dataset_builders = dataset_builders
        self._window_reader = window_reader

    def refresh(self, start: RoundStart) -> Evaluated:
        done = self._dataset_builders.coordinate(self._stream, start.now, start.newest)
        return Evaluated(
            done, self._dataset_builders.damage.check_next(self._stream.name, busy=not done.idle)
        )

    def verify(self, raw: RawFacts, now: int) -> Verified:
        """Check the evaluations first, then each dataset against one built again outside the warehouse."""
        warehouse, stream = self._warehouse, self._stream
        rules = rules_of(stream, warehouse.expiries.horizons(stream.name))
        assert rules is not None, stream.name
        rules = replace(rules, watermark=watermark_of(stream, warehouse.state, now))
        found = [
            Difference("window", position, what)
            for position, what in verify_sets(warehouse.state, rules, stream.name, raw.entries, now)
        ]
        windows = [w for w in warehouse.state.windows(stream.name) if w.key.span == stream.aggregation_span]
        with TemporaryDirectory(prefix=".verify-", dir=on_disk(warehouse.root)) as scratch:
            compared, differences = verify_datasets(
                warehouse.engine,
                stream,
                warehouse.root,
                windows,
                raw.entries,
                raw.snapshot,
                Path(scratch),
                rules.raw_from,
            )
        wrong = {position for position, _ in differences}
        named = ((str(window.key.interval), window.key) for window in (windows if wrong else ()))
        commands = {position: repair_command(key) for position, key in named if position in wrong}
        found += [
            Difference("dataset", position, what, commands.get(position, ""))
            for position, what in differences
        ]
        return Verified(compared, self._sealed(), found)

    def _sealed(self) -> int:
        """Datasets whose raw has expired."""
        sealed = self._warehouse.expiries.seal(self._stream.name)
        if sealed is None:
            return 0
        span = Interval(MIN_INSTANT - DAY, sealed)
        windows = self._warehouse.state.windows(self._stream.name, None, span)
        return sum(window.file is not None for window in windows)

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """Check the datasets, and the log of those without rows."""
        files = dataset_files(self._warehouse.root, self._stream.name, self._warehouse.state)
        yield from check_files(files, tally, after)

    def recover(self, now: int) -> int:
        return self._dataset_builders.recall(self._stream, now)

    def rebuild(self, span: Interval | None, now: int) -> Evaluated:
        """Queue windows; the builders do the rest."""
        self._window_reader.rebuild(self._window_reader.plan_rebuild(self._stream.name, span))
        return Evaluated(self._dataset_builders.coordinate(self._stream, now))

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        """Datasets whose raw is gone; and revisions that were replaced, which nothing builds again."""
        lost = self._in(files)
        sealed = self._warehouse.expiries.seal(self._stream.name)
        gone = {
            str(window.file): f"the dataset of {window.key.interval}: raw is gone for it"
            for window in lost
            if sealed is not None and window.key.start < sealed
        }
        newest = {str(window.file) for window in lost}
        return gone | {
            file: "what the dataset of its window was, until a newer revision replaced it"
            for file in files
            if file not in newest and self._is_dataset(file)
        }

    def _is_dataset(self, file: str) -> bool:
        """Whether a file is a dataset of its own, of any revision."""
        folder = f"{layout.datasets(self._stream.name)}/"
        return file.startswith(folder) and layout.dataset_revision(Path(file).name) is not None

    def lose(self, files: Collection[str], now: int) -> None:
        """Queue the windows again, also those that failed because they could not be built; a new revision
        replaces the lost one."""
        keys = {window.key for window in self._in(files)}
        if keys:
            steps = self._window_reader.plan_rebuild(self._stream.name)
            self._window_reader.rebuild([step for step in steps if step.key in keys])
        self._window_reader.retry(self._stream.name)

    def _in(self, files: Collection[str]) -> list[Window]:
        """The windows whose newest datasets are in these files. If the log of datasets without rows is lost,
        all of those are."""
        windows = self._warehouse.state.windows(self._stream.name)
        root = self._warehouse.root
        folder = layout.empty_datasets(root, self._stream.name).relative_to(root).as_posix()
        if any(file.startswith(f"{folder}/") for file in files):
            return [w for w in windows if w.file and (w.file in files or layout.is_empty_dataset(w.file))]
        return [window for window in windows if window.file in files]

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        """Windows that are yet to become datasets. None waits for its cutoff: raw is kept longer than
        that."""
        state, name = self._warehouse.state, self._stream.name
        if unassigned := state.unassigned_slices(name, 1):
            yield Need(MIN_INSTANT, f"slice {unassigned[0].id[:12]}, which is not entered in its windows yet")
        span = Interval(MIN_INSTANT - DAY, before)
        for phase in _UNFINISHED:
            for window in state.windows(name, phase, span, limit=1):
                yield Need(window.key.start, f"the window {window.key.interval}, which is {phase.value}")

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        keep = self._stream.retention.datasets
        if keep is None:
            return
        windows = self._windows(now - keep)
        files = sum(len(revisions(self._warehouse.root, window.key)) for window in windows)
        rows, size = sum(window.rows or 0 for window in windows), sum(window.bytes or 0 for window in windows)
        yield ExpiryStep(self._stream.name, DATASETS, keep, now - keep, files, rows, size, len(windows))

    def _windows(self, before: int) -> list[Window]:
        """Windows that end at or before an instant."""
        assert self._stream.aggregation_span is not None, self._stream.name
        span = Interval(MIN_INSTANT - DAY, before - self._stream.aggregation_span + 1)
        return self._warehouse.state.windows(self._stream.name, None, span)

    def expire(self, step: ExpiryStep, now: int) -> None:
        """Delete files first: the state lists them until they are gone."""
        keys = [window.key for window in self._windows(step.before)]
        drop_datasets(self._warehouse.root, self._stream.name, keys)
        failpoint("expire.after_files")
        self._warehouse.state.forget_windows(self._stream.name, step.before)
