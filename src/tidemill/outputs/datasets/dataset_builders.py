"""Coordinators, builders and exports of a project, wired to its tables.

It takes no lock of its own: coordination happens inside a round, and leases separate builders.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.config import Project, Stream
from tidemill.ingest.expiry_log import DATASETS, ExpiryLog
from tidemill.ingest.retraction_log import RetractionLog
from tidemill.model.errors import BusyError, ConfigError, as_tidemill_error
from tidemill.model.slices import SliceEntry, SliceStatus, contribution_of
from tidemill.model.windows import Dataset, Member, OutboxEvent, WindowKey
from tidemill.outputs.datasets.announce import available, dataset_metadata
from tidemill.outputs.datasets.builder import BuildContext, Builders, BuildOutcome
from tidemill.outputs.datasets.catalog import drop_datasets, find_datasets, open_dataset
from tidemill.outputs.datasets.coordinator import Coordinated, Coordinator
from tidemill.outputs.datasets.damage import DamageWatch
from tidemill.outputs.datasets.dataset import clean_temporaries, columns_of_file, with_checksum
from tidemill.outputs.datasets.export import export_datasets, export_name
from tidemill.outputs.datasets.rules import rules_of, seal_of
from tidemill.raw.expiry import windows_expired
from tidemill.raw.watermark import watermark_of
from tidemill.storage import layout
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.snapshot import Snapshot
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.engine import Engine
    from tidemill.outputs.datasets.reader import WindowReader

log = logging.getLogger(__name__)

AT_ONCE: Final = 512  # windows that a builder beside the daemon builds before it checks the queue again


class DatasetBuilders:
    """Coordinators and builders of a project."""

    def __init__(
        self,
        project: Project,
        state: State,
        engine: Callable[[], Engine],
        progress: Callable[[str, str, float], None],
    ) -> None:
        self._expiries = ExpiryLog(project.warehouse, state)
        self._project = project
        self._state = state
        self._engine = engine
        self._progress = progress
        self._declared = {n: s for n, s in project.streams.items() if s.aggregation_span is not None}
        self.damage = DamageWatch(project.warehouse, state)
        self._raw: dict[str, Table] = {}
        self._guard = threading.Lock()  # guards the tables: builders take snapshots in threads

    def coordinate(self, stream: Stream, now: int, seen: int | None = None) -> Coordinated:
        """Bring the queue up to date with the ledger; `seen` is its newest offset when the round began."""
        return self._coordinator(stream, now).coordinate(now, seen)

    def _coordinator(self, stream: Stream, now: int | None = None) -> Coordinator:
        rules = rules_of(stream, self._expiries.horizons(stream.name))
        assert rules is not None, stream.name
        if rules.by_watermark and now is not None:
            rules = replace(rules, watermark=watermark_of(stream, self._state, now))
        raw = partial(self._snapshot, stream.name)
        columns = partial(columns_of_file, self._project.warehouse)
        expired = cache(partial(self._windows_expired, stream.name, rules.span))
        return Coordinator(stream, rules, self._state, raw, columns, expired)

    def _windows_expired(self, stream: str, span: int) -> Mapping[str, set[int]]:
        raw = self._snapshot(stream)
        return {} if raw is None else windows_expired(raw, span)

    def forget(self, stream: str) -> None:
        """Close raw of a stream; it is opened again when it is needed."""
        with self._guard:
            self._raw.pop(stream, None)

    def recall(self, stream: Stream, now: int) -> int:
        """Enter the windows and the datasets of the warehouse into an empty state; how many datasets. Their
        events are published again under the same ids."""
        self._coordinator(stream).assign()
        datasets = [
            dataset
            for dataset in find_datasets(self._project.warehouse, stream.name)
            if dataset.key.span == stream.aggregation_span and not self._expired(dataset)
        ]
        datasets.sort(key=lambda dataset: (dataset.key.end, dataset.revision))
        newest = {dataset.key: dataset for dataset in datasets}
        current = [self._recalled(stream, dataset) for dataset in newest.values()]
        self._state.observe(current, list(self._events(stream, datasets, now)))
        self.coordinate(stream, now)
        return len(newest)

    def _expired(self, dataset: Dataset) -> bool:
        """Whether a process died while deleting the dataset; then it is deleted now."""
        horizon = self._expiries.horizons(dataset.key.stream).get(DATASETS)
        if horizon is None or dataset.key.end > horizon:
            return False
        drop_datasets(self._project.warehouse, dataset.key.stream, [dataset.key])
        return True

    def _recalled(self, stream: Stream, dataset: Dataset) -> Dataset:
        return with_checksum(self._project.warehouse, self._with_seal(stream, dataset))

    def _with_seal(self, stream: Stream, dataset: Dataset) -> Dataset:
        """The dataset with the ledger offset of its seal. The file only records that its window is sealed;
        the offset follows from its slices, including those that wait to be decided again. If one of them was
        retracted, there is no seal."""
        rules = rules_of(stream)
        if dataset.sealed is None or rules is None:
            return dataset
        found = (self._state.slice(contribution_of(name)[0]) for name in dataset.slices)
        entries = [entry for entry in found if entry is not None]
        if not entries or any(entry.status is SliceStatus.RETRACTED for entry in entries):
            return replace(dataset, sealed=None)
        used = [Member(e.id, e.seq, e.name, e.slice.arrival, e.bounds) for e in entries]
        return replace(dataset, sealed=seal_of(dataset.key.interval, used, rules))

    def _events(self, stream: Stream, datasets: Sequence[Dataset], now: int) -> Iterator[OutboxEvent]:
        known: dict[str, SliceEntry | None] = {}
        before: dict[WindowKey, int] = {}
        for dataset in datasets:
            ids = [contribution_of(name)[0] for name in dataset.slices]
            known.update({each: self._state.slice(each) for each in ids if each not in known})
            entries = [entry for each in ids if (entry := known[each]) is not None]
            about = dataset_metadata(stream, [entry.slice.metadata for entry in entries])
            rejected = sum(entry.counts.rejected for entry in entries)
            supersedes = before.get(dataset.key)
            yield available(dataset.key, dataset, supersedes, "recover", now, about, rejected, None)
            before[dataset.key] = dataset.revision

    def build(
        self,
        clock: Callable[[], int],
        limit: int | None,
        stop: threading.Event | None = None,
        streams: Collection[str] | None = None,
        hurry: threading.Event | None = None,
    ) -> Sequence[BuildOutcome]:
        """Build what is queued, for these streams (None: all); a few windows of each once `hurry` is set."""
        if not self._declared:
            return ()
        for name in self._declared:
            clean_temporaries(self._project.warehouse, name)
        total, done = max(1, self._state.queue_length()), 0

        def report(outcome: BuildOutcome) -> None:
            nonlocal done
            done += 1
            self._progress(outcome.key.stream, "windows", min(1.0, done / total))

        return self._builders(None, streams).build(clock, limit, stop, report, hurry)

    def work(
        self,
        clock: Callable[[], int],
        stop: threading.Event,
        interval: float,
        on_build: Callable[[Sequence[BuildOutcome]], None],
        concurrency: int | None,
        *,
        once: bool,
    ) -> None:
        """Build what is queued until `stop` is set or, with `once`, nothing can be taken."""
        builders = self._builders(concurrency)
        while not stop.is_set():
            try:
                done = builders.build(clock, AT_ONCE, stop)
            except ConfigError:
                raise
            except Exception as error:
                log.warning("%s; trying again", as_tidemill_error(error))
                if once:
                    raise
                stop.wait(interval)
                continue
            if done:
                on_build(done)
            elif once:
                return
            else:
                stop.wait(interval)

    def _builders(self, concurrency: int | None, chosen: Collection[str] | None = None) -> Builders:
        settings, warehouse = self._project.builder, self._project.warehouse
        held = RetractionLog(warehouse).all_unfinished(self._state)
        wanted = self._declared if chosen is None else {*chosen} & self._declared.keys()
        streams = {
            name: stream for name, stream in self._declared.items() if name in wanted and name not in held
        }
        dataset_builders = BuildContext(
            warehouse, streams, settings, self._engine(), self._state, self._snapshot
        )
        return Builders(dataset_builders, concurrency)

    def _snapshot(self, stream: str) -> Snapshot | None:
        """The current snapshot of raw."""
        with self._guard:
            table = self._raw.get(stream) or Table.existing(layout.raw(self._project.warehouse, stream))
            if table is None:
                return None
            self._raw[stream] = table
            table.refresh()
            snapshot = table.snapshot()
        if RetractionLog(self._project.warehouse).unfinished(self._state, stream) is not None:
            raise BusyError(
                f"a slice of {stream} is being retracted",
                hint="it takes a moment; after a crash the next `tidemill run` finishes it",
            )
        return snapshot


def export(
    root: Path,
    window_reader: WindowReader,
    stream: str,
    windows: Sequence[int],
    to: str,
    target: Path,
    revision: int | None,
) -> list[Path]:
    """Write the datasets of windows as `to`: all to one file, or each to a file of its own in a folder."""
    chosen = [window_reader.dataset(stream, at, revision) for at in windows]
    if not target.is_dir():
        return [export_datasets([open_dataset(root, one) for one in chosen], target, to).target]
    return [
        export_datasets([open_dataset(root, one)], target / f"{export_name(one)}.{to}", to).target
        for one in chosen
    ]
