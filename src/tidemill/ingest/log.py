"""The landing log `slices/landings.ndjson`: one durable line for each landing, in the order of the ledger.

It is what makes the ledger rebuildable. The order of slices is decided once, when a slice enters the
ledger, and nothing in the slice itself can say it; so under one lock a landing is first appended here
and synced, then entered in the state. Hence the state never knows a landing that the log does not, and
reading the log again from its start gives the same sequence numbers and the same count of landings.
A slice's line is written after its file has its final name, so a line always has its bytes.

It costs one sync per landing (or per group of them). It never loses a line that was acknowledged: only
a tail that can not be read, which is what a crash leaves of an append, is cut off.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidemill.lake.sync import atomic_write, make_folder, storage_errors, sync_folder
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import Codec, Format, NewSlice, SliceEntry
from tidemill.model.time import Interval
from tidemill.state.protocol import State

NAME: Final = "landings.ndjson"
_WINDOW: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """Landing number `n`, appended together with all since number `group`."""

    n: int
    group: int
    slice: NewSlice


class LandingLog:
    """The log of one warehouse. Every method opens the file anew: any number of processes may use it."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._folder = warehouse / "slices"
        self._path = self._folder / NAME

    def commit(self, state: State, news: Sequence[NewSlice]) -> list[SliceEntry]:
        """Append to the log, then enter in the ledger, in the order given and with nobody in between."""
        with self._locked():
            last = self._settle(state)
            self._append(last + 1, news)
            failpoint("landing.after_log")
            return state.enter_all(news)

    def settle(self, state: State) -> None:
        """Bring the ledger up to the log after a crash between the two."""
        with self._locked():
            self._settle(state)

    def lines(self) -> Iterator[Line]:
        """All lines from the first; a tail that can not be read is left out."""
        if not self._path.exists():
            return
        with storage_errors("read", self._path), self._path.open("rb") as file:
            for number, text in enumerate(file, 1):
                line = _parse(text)
                if line is None:
                    if any(_parse(rest) for rest in file):
                        raise StorageError(
                            f"line {number} can not be read",
                            where=str(self._path),
                            hint="restore the file from a copy; slices landed after that line follow it",
                        )
                    return
                yield line

    def _settle(self, state: State) -> int:
        """The number of the last landing, once log and ledger agree on it."""
        tail = self._repaired_tail()
        logged, known = (tail.n if tail else 0), state.landings()
        if tail and known < logged:
            if known < tail.group - 1:
                raise StorageError(
                    f"the state knows {known} landings, the warehouse has {logged}",
                    where=str(self._path),
                    hint="run `tidemill recover`: it rebuilds the state from the warehouse",
                )
            state.enter_all([line.slice for line in self._last_lines(logged - known)])
        elif known > logged:
            self._rewrite(state)
        return max(known, logged)

    def _append(self, first: int, news: Sequence[NewSlice]) -> None:
        content = b"".join(_text(Line(first + i, first, new)) for i, new in enumerate(news))
        with storage_errors("record the landing", self._path):
            created = not self._path.exists()
            with self._path.open("ab") as file:
                before = file.tell()
                try:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
        if created:
            sync_folder(self._folder)

    def _repaired_tail(self) -> Line | None:
        """The last line; what a crash left behind it is cut off."""
        if not self._path.exists():
            return None
        with storage_errors("read", self._path), self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            window = _WINDOW
            while True:
                start = max(0, size - window)
                file.seek(start)
                pieces = file.read(size - start).split(b"\n")
                end = size - len(pieces[-1])  # after the last line end
                for piece in reversed(pieces[:-1]):
                    if line := _parse(piece):
                        _truncate(file.fileno(), end, size)
                        return line
                    end -= len(piece) + 1
                if start == 0:
                    _truncate(file.fileno(), 0, size)
                    return None
                window *= 4

    def _last_lines(self, count: int) -> list[Line]:
        with storage_errors("read", self._path), self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            window = _WINDOW
            while True:
                start = max(0, size - window)
                file.seek(start)
                pieces = file.read(size - start).splitlines()[0 if start == 0 else 1 :]
                if len(pieces) >= count or start == 0:
                    lines = [line for piece in pieces[-count:] if (line := _parse(piece))]
                    assert len(lines) == count, (len(lines), count)
                    return lines
                window *= 4

    def _rewrite(self, state: State) -> None:
        """Write the log anew from a state that knows more: the log was lost or taken from an old copy."""
        entries = state.slices()
        landed = [entry.slice for entry in entries]
        landed += [entry.slice for entry in entries for _ in range(entry.landings - 1)]
        atomic_write(self._path, b"".join(_text(Line(n, n, new)) for n, new in enumerate(landed, 1)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self._folder, top=self._warehouse)
        with (
            storage_errors("lock", self._folder),
            (self._folder / f".{NAME}.lock").open("ab") as file,
        ):
            fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed, also by a crash
            yield


def scan_slices(warehouse: Path) -> list[SliceEntry]:
    """The ledger as the log tells it, all slices pending: same sequence numbers, same landings."""
    entries: dict[str, SliceEntry] = {}
    for line in LandingLog(warehouse).lines():
        known = entries.get(line.slice.id)
        entries[line.slice.id] = (
            replace(known, landings=known.landings + 1)
            if known
            else SliceEntry(seq=len(entries) + 1, slice=line.slice)
        )
    return list(entries.values())


def as_fields(new: NewSlice) -> dict[str, object]:
    declared = [new.declared.start, new.declared.end] if new.declared else None
    return {
        "id": new.id,
        "stream": new.stream,
        "source": new.source,
        "name": new.name,
        "format": new.format.value,
        "codec": new.codec.value,
        "path": new.path,
        "size": new.size,
        "arrival": new.arrival,
        "declared": declared,
    }


def from_fields(fields: dict[str, object]) -> NewSlice:
    """The reverse of `as_fields`; ValueError, KeyError or TypeError when they are not that."""
    declared = fields["declared"]
    if declared is not None and not isinstance(declared, list):
        raise TypeError("declared is no pair")
    return NewSlice(
        id=str(fields["id"]),
        stream=str(fields["stream"]),
        source=str(fields["source"]),
        name=str(fields["name"]),
        format=Format(str(fields["format"])),
        codec=Codec(str(fields["codec"])),
        path=str(fields["path"]),
        size=int(str(fields["size"])),
        arrival=int(str(fields["arrival"])),
        declared=Interval(int(declared[0]), int(declared[1])) if declared else None,
    )


def _text(line: Line) -> bytes:
    fields = {"n": line.n, "group": line.group, **as_fields(line.slice)}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _parse(text: bytes) -> Line | None:
    try:
        fields = json.loads(text)
        return Line(int(fields["n"]), int(fields["group"]), from_fields(fields))
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _truncate(descriptor: int, end: int, size: int) -> None:
    if end < size:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
