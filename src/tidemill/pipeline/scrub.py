"""`scrub`: reads every file of a warehouse and compares it with its checksum; nothing is decoded or computed.

It takes no lock and may run beside a daemon. `Scrubbing` does it in the background, a little each round, and
continues after a restart. Damage is recorded in the state until it is repaired.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.formats.stored_slice import content_digest
from tidemill.ingest.slice_logs import NAMES, check_copy, check_log
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.slices import SliceEntry, id_of
from tidemill.model.time import SECOND
from tidemill.pipeline.scrub_progress import CHECKPOINT, ScrubPass, ScrubProgress, progress_of
from tidemill.pipeline.workers import Workers
from tidemill.raw.expiry import sealed_names
from tidemill.storage import layout
from tidemill.storage.bucket_path import local_copy, on_disk
from tidemill.storage.checksums import check_file
from tidemill.storage.file_scrub import FileCheck, ScrubTally, StoredFile, check_files
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite_read_only import check_state
from tidemill.storage.tables.scrub import RESULTS, scrub_tables
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.config.project import ScrubSettings

log = logging.getLogger(__name__)

LONGEST_STEP: Final = 10 * SECOND  # microseconds of reading at the declared pace that one round may catch up
SHORTEST_STEP: Final = SECOND  # rounds that come sooner leave it to the next one
SLICES_AT_ONCE: Final = 1000
# kinds whose damage is found and cleared elsewhere
_ELSEWHERE: Final = (FileKind.GATEWAY_LOG, FileKind.STATE)


@dataclass(frozen=True, slots=True)
class Section:
    """Files that are checked together, always in the same order."""

    name: str  # stream/kind
    check: Callable[[ScrubTally, str], Iterator[FileCheck]]  # the checks of files after a given name

    @property
    def kind(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What was read, and what was found."""

    tally: ScrubTally
    damages: Sequence[Damage]

    @property
    def ok(self) -> bool:
        return not self.damages


def scrub(
    warehouse: Warehouse,
    streams: Sequence[str] | None = None,
    tally: ScrubTally | None = None,
    skip: Collection[str] = (),
) -> Iterator[Damage]:
    """What is damaged in the files of these streams, or of all, and in the logs that they share; `skip` names
    kinds of sections to leave out."""
    tally = ScrubTally() if tally is None else tally
    with closing(Workers(warehouse)) as workers:
        for section in sections(workers, streams):
            for one in section.check(tally, "") if section.kind not in skip else ():
                if one.damage is not None:
                    yield one.damage


def scrub_all(warehouse: Warehouse, streams: Sequence[str] | None = None) -> Scrubbed:
    """Scrub everything at once. Damage is recorded; recorded damage that is not found again is cleared."""
    tally = ScrubTally()
    damages = list(scrub(warehouse, streams, tally))
    names = {*(streams if streams is not None else warehouse.project.streams), ""}
    record(warehouse.state, damages, names, warehouse.clock())
    return Scrubbed(tally, damages)


def record(state: State, found: Sequence[Damage], streams: set[str], now: int) -> None:
    """Record what was found in all files of these streams."""
    files = {one.file for one in found}
    whole = [
        known.damage.file
        for known in state.damages()
        if known.damage.stream in streams
        and known.damage.kind not in _ELSEWHERE
        and known.damage.file not in files
    ]
    if found:
        state.record_damages(found, now)
    if whole:
        state.clear_damages(whole)


# -- which files there are


def sections(workers: Workers, streams: Sequence[str] | None = None) -> Iterator[Section]:
    """Everything that is checked, in order."""
    yield Section("state", partial(_state, workers.warehouse))
    yield Section("logs", partial(_logs, workers.warehouse))
    for stream in workers.project.streams if streams is None else streams:
        for name, check in (("slices", _slices), ("gate", _accepted_ids), ("sealed", _expired_ids)):
            yield Section(f"{stream}/{name}", partial(check, workers.warehouse, stream))
        yield Section(f"{stream}/tables", partial(_tables, workers.warehouse, stream))
        for output in workers.outputs(stream):
            yield Section(f"{stream}/{output.name}", output.scrub)


def _state(warehouse: Warehouse, _tally: ScrubTally, after: str) -> Iterator[FileCheck]:
    """Check the state, if it is a file of the warehouse; a server has checksums of its own. The file has no
    checksum and its size changes all the time, so it is not counted."""
    if after or warehouse.project.state.url is not None:
        return

    def check(path: Path) -> bool:
        return check_state(on_disk(path))

    path = layout.state(warehouse.root)
    stored = StoredFile(warehouse.root, path, FileKind.STATE, "", check, lambda: True)
    yield from check_files([stored], ScrubTally())


def _logs(warehouse: Warehouse, tally: ScrubTally, after: str) -> Iterator[FileCheck]:
    root, state = warehouse.root, warehouse.state

    def check(path: Path) -> bool:
        return check_log(root, state, path.name)

    def is_current(path: Path) -> bool:
        """Check again: it may have been rewritten meanwhile."""
        try:
            check(path)
        except StorageError:
            return True
        return False

    def check_other(path: Path) -> bool:
        check_copy(root, path.name)
        return True

    paths = [layout.slice_log(root, name) for name in NAMES]
    files = [
        StoredFile(root, path, FileKind.SLICE_LOG, "", check, partial(is_current, path))
        for path in paths
        if path.exists() or state.log_head(path.name) is not None
    ]
    copies = [layout.slice_log_copy(root, name) for name in NAMES]
    files += [
        StoredFile(root, path, FileKind.SLICE_LOG, "", check_other, lambda: True)
        for path in copies
        if path.exists()
    ]
    return check_files(files, tally, after)


def _slices(warehouse: Warehouse, stream: str, tally: ScrubTally, after: str) -> Iterator[FileCheck]:
    """The name of a slice is the hash of its bytes. There can be very many: they are read page by page, the
    newest first."""
    root, state = warehouse.root, warehouse.state
    last = state.slice(Path(after).name.partition(".")[0]) if after else None
    before = None if last is None else last.seq
    while page := state.slices(stream, newest=True, limit=SLICES_AT_ONCE, before=before):
        for entry in page:
            check, path = partial(_check_slice, entry), root / entry.slice.path
            stored = StoredFile(root, path, FileKind.SLICE, stream, check, lambda: True)
            yield from check_files([stored], tally)
        before = page[-1].seq


def _check_slice(entry: SliceEntry, path: Path) -> bool:
    new = entry.slice
    if id_of(new, content_digest(local_copy(path))) != new.id:
        raise DamageError("its bytes are not those that landed", where=new.path)
    return True


def _accepted_ids(warehouse: Warehouse, stream: str, tally: ScrubTally, after: str) -> Iterator[FileCheck]:
    folder = layout.gate(warehouse.root, stream)

    def is_current(name: str) -> bool:
        return name in warehouse.state.runs(stream)

    files = (
        StoredFile(
            warehouse.root, folder / name, FileKind.ACCEPTED_IDS, stream, check_file,
            partial(is_current, name),
        )
        for name in warehouse.state.runs(stream)
    )  # fmt: skip
    return check_files(files, tally, after)


def _tables(warehouse: Warehouse, stream: str, tally: ScrubTally, after: str) -> Iterator[FileCheck]:
    """Check the tables. Results of windows that are no longer declared are not read, nor made again."""
    windows = warehouse.project.stream(stream).windows
    committed = {**warehouse.state.table_versions(stream), **_results_committed(warehouse, stream)}
    return scrub_tables(warehouse.root, stream, windows, committed, tally, after)


def _results_committed(warehouse: Warehouse, stream: str) -> dict[str, int]:
    """The versions of the tables of results that are known to have been committed."""
    declared = warehouse.project.stream(stream).windows
    texts = warehouse.state.checkpoints(stream)
    versions = {name: json.loads(text).get("version", 0) for name, text in texts.items() if name in declared}
    return {f"{RESULTS}{name}": version for name, version in versions.items()}


def _expired_ids(warehouse: Warehouse, stream: str, tally: ScrubTally, after: str) -> Iterator[FileCheck]:
    root = layout.raw(warehouse.root, stream)

    def names() -> set[str]:
        raw = Table.existing(root)
        return sealed_names(raw) if raw is not None else set()

    def is_current(name: str) -> bool:
        return name in names()

    try:
        found = names()
    except StorageError:  # of the table itself
        return
    folder = layout.sealed(warehouse.root, stream)
    files = (
        StoredFile(
            warehouse.root, folder / name, FileKind.EXPIRED_IDS, stream, check_file,
            partial(is_current, name),
        )
        for name in found
    )  # fmt: skip
    yield from check_files(files, tally, after)


# -- in the background


class Scrubbing:
    """The scrub of a daemon: each round it reads as much as the declared pace allows."""

    def __init__(self, workers: Workers, settings: ScrubSettings) -> None:
        self._workers = workers
        self._state = workers.state
        self._settings = settings
        self._tally = ScrubTally()
        self._checks: Iterator[tuple[str, FileCheck]] | None = None  # of the current pass

    def step(self, now: int) -> None:
        """Continue reading, if it is time to."""
        if not self._settings.enabled:
            return
        progress = progress_of(self._state)
        if progress.current is None:
            last = progress.last_full
            if last is not None and now - last.started < self._settings.every:
                return
            begun = now - SHORTEST_STEP
            progress = replace(progress, current=ScrubPass(now), section="", file="", found=(), paid=begun)
            self._checks = None
        elif now < progress.current.started:  # the clock was set back
            progress = replace(progress, paid=min(progress.paid, now - SHORTEST_STEP))
        paid = max(progress.paid, now - LONGEST_STEP)
        if now - paid >= SHORTEST_STEP:
            self._read(replace(progress, paid=paid), now)

    def _read(self, progress: ScrubProgress, now: int) -> None:
        """Read as much as the time since the last step allows, and at least one file: later rounds then read
        less."""
        assert progress.current is not None, progress
        pace = self._settings.bytes_per_second
        budget = pace * (now - progress.paid) // SECOND
        if self._checks is None:
            self._checks = self._from(progress.section, progress.file)
        before = replace(self._tally)
        read: list[tuple[str, FileCheck]] = []
        for one in self._checks:
            read.append(one)
            if self._tally.bytes - before.bytes >= budget:
                break
        else:
            self._checks = None
        found = self._record([check for _, check in read], now)
        current = replace(
            progress.current,
            files=progress.current.files + self._tally.files - before.files,
            bytes=progress.current.bytes + self._tally.bytes - before.bytes,
            unchecked=progress.current.unchecked + self._tally.unchecked - before.unchecked,
            damaged=progress.current.damaged + len(found),
        )
        files = (*progress.found, *(one.file for one in found))
        if self._checks is None:
            self._finish(files, current.started)
            done = ScrubProgress(last_full=replace(current, finished=now))
        else:
            section, last = read[-1]
            paid = progress.paid + (self._tally.bytes - before.bytes) * SECOND // pace
            done = ScrubProgress(progress.last_full, current, section, last.file, paid, files)
        self._state.set_checkpoint("", CHECKPOINT, done.text())

    def _from(self, section: str, file: str) -> Iterator[tuple[str, FileCheck]]:
        """The rest of a pass; if its section no longer exists, the pass starts again."""
        everything = list(sections(self._workers))
        names = [one.name for one in everything]
        first = names.index(section) if section in names else 0
        for number, one in enumerate(everything[first:]):
            for check in one.check(self._tally, file if number == 0 and one.name == section else ""):
                yield one.name, check

    def _record(self, read: Sequence[FileCheck], now: int) -> list[Damage]:
        """Record the damage of the files that were read, and clear the damage of intact ones."""
        found = [one.damage for one in read if one.damage is not None]
        for one in found:
            context = {"stream": one.stream, "file": one.file, "kind": one.kind.value}
            log.warning("a damaged file was found: %s: %s", one.file, one.reason, extra=context)
        if found:
            self._state.record_damages(found, now)
        known = {one.damage.file for one in self._state.damages()}
        whole = [one.file for one in read if one.damage is None and one.file in known]
        if whole:
            self._state.clear_damages(whole)
        return found

    def _finish(self, found: Sequence[str], started: int) -> None:
        """Clear damage that was recorded before the pass and not found by it: those files no longer exist."""
        gone = [
            one.damage.file
            for one in self._state.damages()
            if one.since < started and one.damage.kind not in _ELSEWHERE and one.damage.file not in found
        ]
        if gone:
            self._state.clear_damages(gone)
