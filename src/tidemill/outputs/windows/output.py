"""Streaming windows as an output of a stream: results that change with the watermark, late rows and
datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tidemill.config import Stream
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.damage import FileKind
from tidemill.model.streaming import WindowSpec
from tidemill.model.time import Interval
from tidemill.outputs.contract import Difference, Need, RawFacts, RoundStart, Simple, Stage, Verified
from tidemill.outputs.windows.checkpoints import fingerprint_of, read_checkpoint
from tidemill.outputs.windows.refresh import WindowRefresh
from tidemill.outputs.windows.streaming_windows import StreamingWindows
from tidemill.storage import layout
from tidemill.storage.checksums import check_file
from tidemill.storage.file_scrub import FileCheck, ScrubTally, StoredFile, check_files


@dataclass(frozen=True, slots=True)
class Results:
    """What was done for each window of a stream."""

    windows: Sequence[WindowRefresh]

    @property
    def idle(self) -> bool:
        return all(one.idle for one in self.windows)


class WindowResults(Simple):
    """The streaming windows of one stream."""

    name = "windows"
    stage = Stage.BUILT  # a window that closes when it is complete waits for datasets

    def __init__(self, warehouse: Warehouse, stream: Stream, flow: StreamingWindows) -> None:
        self._warehouse = warehouse
        self._stream = stream
        self._flow = flow

    def refresh(self, start: RoundStart) -> Results:
        return Results(self._flow.refresh(self._stream.name, start.now))

    def verify(self, raw: RawFacts, now: int) -> Verified:
        compared, differences = 0, []
        for found in self._flow.verify(self._stream.name):
            if isinstance(found, int):
                compared += found
            else:
                window = found.position.split(" ", 1)[0]
                command = f"tidemill rebuild {self._stream.name} --results {window}"
                differences.append(Difference("result", found.position, found.what, command))
        is_sealed = self._warehouse.expiries.seal(self._stream.name) is not None
        sealed = self._flow.sealed(self._stream.name) if is_sealed else 0
        return Verified(compared, sealed, differences)

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """Check the files of open windows."""
        yield from check_files(self._carried(), tally, after)

    def _carried(self) -> Iterator[StoredFile]:
        root, stream = self._warehouse.root, self._stream.name
        for spec in self._stream.window_specs:
            folder = layout.open_rows(layout.results(root, stream, spec.name))
            for name in self._names_carried(spec):
                yield StoredFile(
                    root, folder / name, FileKind.OPEN_WINDOWS, stream, check_file,
                    partial(self._is_carried, spec, name),
                )  # fmt: skip

    def _is_carried(self, spec: WindowSpec, name: str) -> bool:
        return name in self._names_carried(spec)

    def _names_carried(self, spec: WindowSpec) -> Sequence[str]:
        checkpoint = self._warehouse.state.checkpoints(self._stream.name).get(spec.name)
        found = read_checkpoint(checkpoint, fingerprint_of(spec, self._stream))
        return found.carried if found is not None else ()

    def recover(self, now: int) -> int:
        return self._flow.recall(self._stream.name, now)

    def rebuild(self, span: Interval | None, now: int) -> Results:
        """Make damaged results again; others stay as they are."""
        specs = self._stream.window_specs
        return Results([self._flow.repair(self._stream.name, spec.name, now) for spec in specs])

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        """Results of windows that begin before raw does."""
        root, name = self._warehouse.root, self._stream.name
        found: dict[str, str] = {}
        for spec in self._stream.window_specs:
            table = layout.results(root, name, spec.name)
            is_whole = table.relative_to(root).as_posix() in files
            inside = layout.in_table(table, root, files)
            parts = None if is_whole else [path for path in inside if path.endswith(".parquet")]
            for loss in self._flow.lost_with(name, spec.name, parts) if is_whole or parts else ():
                found[loss.file] = f"results of {spec.name} in {loss.span}: raw is gone for them"
        return found

    def lose(self, files: Collection[str], now: int) -> None:
        """Remove parts whose files are missing from the table; what they held is published again."""
        root, name = self._warehouse.root, self._stream.name
        for spec in self._stream.window_specs:
            table = layout.results(root, name, spec.name)
            if table.relative_to(root).as_posix() in files or layout.in_table(table, root, files):
                self._flow.lose(name, spec.name, now)

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        for window, start, why in self._flow.needed(self._stream.name, version):
            yield Need(start, f"window {window}, {why}")
