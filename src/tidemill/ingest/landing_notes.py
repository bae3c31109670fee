"""Notes about landings in progress, which distinguish what a dead process left from live work.

A note is a small file under `slices/.inflight/` that its process keeps locked while it lands; it names the
folder of the temporary files and, before a slice gets its final name, has all facts about it. Notes are not
synced: after kill -9 they are complete; after a power cut they may be gone, but then the slices they would
name were never acknowledged, and a thorough sweep finds those.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemill.ingest.landing_log import as_fields, from_fields
from tidemill.model.slices import NewSlice
from tidemill.storage import layout
from tidemill.storage.files import make_folder, storage_errors


class LandingGroup:
    """One group of slices being landed into one folder."""

    def __init__(self, descriptor: int, token: str) -> None:
        self._descriptor = descriptor
        self.token = token

    def temporary(self, folder: Path, number: int) -> Path:
        return folder / f".{self.token}-{number}.tmp"

    def note(self, new: NewSlice) -> None:
        """Record which slice is about to get its final name."""
        os.write(self._descriptor, json.dumps(as_fields(new)).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class LandingNote:
    """The note of a landing that was interrupted."""

    path: Path
    token: str
    folder: Path | None
    slices: tuple[NewSlice, ...]
    alive: bool


@contextmanager
def landing_group(warehouse: Path, folder: Path) -> Iterator[LandingGroup]:
    """Land into `folder` inside it. The note is removed on success, and stays otherwise."""
    notes = layout.landing_notes(warehouse)
    make_folder(notes, top=warehouse)
    with storage_errors("note the landing", notes):
        path, descriptor = _new_note(notes)
    try:
        with storage_errors("note the landing", path):
            header = {"folder": folder.relative_to(warehouse).as_posix()}
            os.write(descriptor, json.dumps(header).encode() + b"\n")
        yield LandingGroup(descriptor, path.stem)
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _new_note(notes: Path) -> tuple[Path, int]:
    while True:
        path = notes / f"{secrets.token_hex(8)}{layout.NOTE_SUFFIX}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # a sweep removed it before it was locked


def is_landing(warehouse: Path) -> bool:
    """Whether a landing is in progress, or was when its process died: it may have an earlier arrival than
    what is already in the ledger."""
    return any(layout.landing_notes(warehouse).glob(f"*{layout.NOTE_SUFFIX}"))


@contextmanager
def notes_of(warehouse: Path) -> Iterator[list[LandingNote]]:
    """Yield all notes. Dead ones stay locked inside the block, so that two sweeps do not do the same work."""
    descriptors: list[int] = []
    found: list[LandingNote] = []
    try:
        for path in sorted(layout.landing_notes(warehouse).glob(f"*{layout.NOTE_SUFFIX}")):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # it has just landed
            descriptors.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alive = False
            except BlockingIOError:
                alive = True
            found.append(_read(warehouse, path, alive))
        yield found
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _read(warehouse: Path, path: Path, alive: bool) -> LandingNote:
    folder: Path | None = None
    slices: list[NewSlice] = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        try:
            fields = json.loads(line)
            if "folder" in fields:
                folder = warehouse / str(fields["folder"])
            else:
                slices.append(from_fields(fields))
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # half a line: its slice has no final name yet
    return LandingNote(path, path.stem, folder, tuple(slices), alive)
