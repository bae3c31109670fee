"""Finishes or undoes landings that a crash interrupted, when a warehouse is opened.

Bytes with their final name are never deleted unless the ledger has the same slice elsewhere; temporary files,
which were never acknowledged, are. Live landings of other processes are left alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.formats.stored_slice import content_size
from tidemill.ingest.landing_log import LandingLog
from tidemill.ingest.landing_notes import LandingNote, notes_of
from tidemill.model.errors import StorageError
from tidemill.model.slices import NewSlice, SliceEntry
from tidemill.storage import layout
from tidemill.storage.bucket_path import local_copy, on_disk
from tidemill.storage.files import make_folder, storage_errors, sync_folder
from tidemill.storage.state.protocol import Ledger

log = logging.getLogger(__name__)

_TEMPORARY: Final = re.compile(r"\.([0-9a-f]{16})-\d+\.tmp")
_FINAL: Final = re.compile(r"([0-9a-f]{64})\.[a-z.]+")


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was found and repaired."""

    entered: tuple[SliceEntry, ...]  # whole slices of a dead process, now in the ledger
    removed: tuple[str, ...]  # temporaries, and copies of slices that the ledger has elsewhere
    # Slices that are not in the ledger: never acknowledged, kept under slices/_orphans.
    set_aside: tuple[str, ...]


def has_landings(warehouse: Path) -> bool:
    """Whether slices have landed: if there is no state, it is lost, and a new, empty one must not be made.
    The log may be lost as well."""
    log_files = (layout.slice_log, layout.slice_log_copy)
    return any(path(warehouse, layout.LANDINGS).exists() for path in log_files) or any(
        _FINAL.fullmatch(path.name) for path in layout.slices(warehouse).glob("*/*/*")
    )


def unnoted_slices(warehouse: Path) -> Iterator[Path]:
    """Slices with their final name, without those of landings in progress or interrupted by a crash."""
    files = list(_files(warehouse))
    with notes_of(warehouse) as notes:
        named = {new.path for note in notes for new in note.slices}
    for path in files:
        is_slice = _FINAL.fullmatch(path.name) and not layout.is_orphan(path)
        if is_slice and path.relative_to(warehouse).as_posix() not in named:
            yield path


def adopt(
    warehouse: Path,
    state: Ledger,
    *,
    thorough: bool = False,
    fault: Callable[[str, StorageError], None] | None = None,
) -> Adopted:
    """Finish or undo what dead processes left. Cheap: it checks only folders in which one is known to have
    worked. `thorough` checks every slice file: a power cut may leave some without a note. An error with the
    folder of one stream is passed to `fault`, and the others continue; without it, it is raised.
    """
    landings = LandingLog(warehouse)
    if not layout.slices(warehouse).is_dir():
        return Adopted((), (), ())
    landings.settle(state)
    entered: list[SliceEntry] = []
    removed: list[str] = []
    set_aside: list[str] = []
    files = list(_files(warehouse)) if thorough else []  # before the notes: see _sweep
    with storage_errors("clean up after a crash", warehouse), notes_of(warehouse) as notes:
        for note in notes:
            if note.alive:
                continue
            try:
                with storage_errors("clean up after a crash", note.path):
                    entered += _enter(landings, state, _orphans(warehouse, state, note), note)
                    removed += _clear(warehouse, state, note)
            except StorageError as error:
                if fault is None or note.folder is None:
                    raise
                fault(note.folder.parent.name, error)  # slices/<stream>/<day>
        if thorough:
            with landings.settled(state):
                swept, kept = _sweep(warehouse, state, files, [note for note in notes if note.alive])
            removed += swept
            set_aside += kept
    return Adopted(tuple(entered), tuple(removed), tuple(set_aside))


def adopt_for(warehouse: Path, state: Ledger, streams: Collection[str]) -> Adopted:
    """Call `adopt` for these streams. Errors with the folders of other streams are only logged."""

    def fault(stream: str, error: StorageError) -> None:
        if stream in streams:
            raise error
        log.warning("left as it is: %s", error, extra={"stream": stream})

    return adopt(warehouse, state, fault=fault)


def _enter(
    landings: LandingLog, state: Ledger, orphans: list[NewSlice], note: LandingNote
) -> list[SliceEntry]:
    if not orphans or note.folder is None:
        return []
    sync_folder(note.folder)  # their process may have died before it did
    return landings.commit(state, orphans)


def _orphans(warehouse: Path, state: Ledger, note: LandingNote) -> list[NewSlice]:
    """Yield slices that have their final name, and so all their bytes, but no entry in the ledger."""
    return [
        new for new in note.slices if state.slice(new.id) is None and _size(warehouse / new.path) == new.size
    ]


def _clear(warehouse: Path, state: Ledger, note: LandingNote) -> list[str]:
    removed: list[str] = []
    for path in sorted(on_disk(note.folder).glob(f".{note.token}-*.tmp")) if note.folder else ():
        removed.append(_remove(warehouse, path))
    for new in note.slices:
        if _is_copy(warehouse, state, new.id, warehouse / new.path):
            removed.append(_remove(warehouse, warehouse / new.path))
    note.path.unlink(missing_ok=True)
    return removed


def _sweep(
    warehouse: Path, state: Ledger, files: Iterable[Path], alive: Iterable[LandingNote]
) -> tuple[list[str], list[str]]:
    """Check files that were listed before the notes were read: a live landing notes a slice before it names
    it, so a listed file without a note is either in the ledger by now or belongs to no landing here. Landings
    on other machines find out when they want to enter it: the caller must hold the lock of the log.
    """
    tokens = {note.token for note in alive}
    named = {new.path for note in alive for new in note.slices}
    removed: list[str] = []
    set_aside: list[str] = []
    for path in files:
        temporary, final = _TEMPORARY.fullmatch(path.name), _FINAL.fullmatch(path.name)
        if temporary and temporary.group(1) not in tokens:
            removed.append(_remove(warehouse, path))
        elif final and path.relative_to(warehouse).as_posix() not in named:
            if _is_copy(warehouse, state, final.group(1), path):
                removed.append(_remove(warehouse, path))
            elif state.slice(final.group(1)) is None and not layout.is_orphan(path):
                set_aside.append(_set_aside(warehouse, path))
    return removed, set_aside


def _files(warehouse: Path) -> Iterator[Path]:
    yield from sorted(layout.slices(warehouse).glob("*/*/*"))


def _is_copy(warehouse: Path, state: Ledger, id_: str, path: Path) -> bool:
    """Return whether the ledger has this slice in another file that exists."""
    entry = state.slice(id_)
    if entry is None:
        return False
    home = warehouse / entry.slice.path
    return home != path and path.exists() and _size(home) == entry.slice.size


def _set_aside(warehouse: Path, path: Path) -> str:
    folder = layout.orphans(warehouse, path.parent.parent.name)
    make_folder(folder, top=warehouse)
    path.replace(folder / path.name)
    return (folder / path.name).relative_to(warehouse).as_posix()


def _remove(warehouse: Path, path: Path) -> str:
    path.unlink(missing_ok=True)
    return path.relative_to(warehouse).as_posix()


def _size(path: Path) -> int | None:
    try:
        return content_size(local_copy(path))
    except FileNotFoundError:
        return None
