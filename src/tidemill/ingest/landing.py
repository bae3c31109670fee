"""Landing a slice: temporary name, sync, final name, sync of the folder, log, ledger; then acknowledgement.

What is acknowledged is durable, and equal bytes and bounds are one slice however often they come; what a
gateway gathered is a slice of its own for each of its windows. A slice that was retracted is refused. The
bytes are always copied: a slice never shares a file with its sender, who may still write to it.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from tidemill.ingest.file_patterns import KINDS_HINT, STDIN, expand
from tidemill.ingest.landing_log import LandingLog
from tidemill.ingest.landing_notes import LandingGroup, landing_group
from tidemill.ingest.sniff import HEAD_BYTES, check_whole, sniff
from tidemill.model.errors import InputError, RetractedError, TidemillError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import Codec, Format, NewSlice, SliceEntry, SliceStatus, id_of, slice_id
from tidemill.model.time import Interval, format_instant
from tidemill.storage import layout
from tidemill.storage.files import make_folder, place, storage_errors, sync_folder
from tidemill.storage.state.protocol import Ledger

# Imports inside functions keep start-up short: only large groups of files load Numba.

_COPY: Final = 64 * 1024  # a larger buffer is mapped again for each file, and each of its pages is a fault
GROUP_FILES: Final = 256  # landed with one sync of the folder, the log and the ledger
GROUP_BYTES: Final = 1024 * 1024 * 1024
THREADS: Final = 8  # files of a group that are copied at once: some wait for the disk while others are hashed
SIDE_BY_SIDE: Final = 32 * 1024 * 1024  # bytes of a group that are worth hashing side by side …
LOADING: Final = 512 * 1024 * 1024  # … and for which it is worth loading the kernel
_RECENT: Final = 32  # entries of the ledger that include the last arrival


@dataclass(frozen=True, slots=True)
class Landed:
    """An acknowledged slice; `new` is False when its bytes and bounds had landed before."""

    entry: SliceEntry
    new: bool

    @property
    def retracted(self) -> bool:
        """It had landed before and was retracted, after it had been acknowledged: the landing is counted, and
        it stays retracted."""
        return self.entry.status is SliceStatus.RETRACTED


@dataclass(frozen=True, slots=True)
class Refused:
    """A file of several that could not be landed, and why."""

    name: str
    error: TidemillError


@dataclass(frozen=True, slots=True)
class LandedMany:
    """The files that landed and those that were refused, each in the order given."""

    landed: tuple[Landed, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True)
class Offered:
    """A file whose source declares its bounds and name."""

    path: Path
    name: str
    declared: Interval
    metadata: str


@dataclass(frozen=True, slots=True)
class ReplayPiece:
    """Records that leave quarantine together, as one slice."""

    content: bytes
    name: str
    metadata: str | None
    replays: str | None  # the slice that they were rejected from


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where slices come from: all that are landed at once share a stream and an arrival."""

    stream: str
    source: str
    arrival: int
    format: Format | None
    declared: Interval | None
    metadata: str | None = None
    replays: str | None = None
    acknowledged: bool = False  # it was acknowledged before: it is landed whatever its state

    @property
    def folder(self) -> str:
        return layout.slices_of_day(self.stream, self.arrival)


@dataclass(frozen=True, slots=True)
class _Item:
    """One file to land: its name for the ledger, its name for errors, and how to open it."""

    name: str
    shown: str
    open: Callable[[], AbstractContextManager[BinaryIO]]
    file: str = ""  # the file name that shows its format, if it differs from the sender's name
    size: int = 0  # in bytes, as far as it is known before it is read


_ToLand = tuple[_Origin, _Item]


@dataclass(frozen=True, slots=True)
class _Staged:
    """A checked, durable copy under a temporary name, and the slice it will become."""

    temporary: Path
    new: NewSlice
    digest: str | None  # sha256 of its bytes; None: it is found with those of others, and so is the id

    def named(self, folder: str, digest: str) -> _Staged:
        """With the id and the path of the slice."""
        new, id_ = self.new, id_of(self.new, digest)
        suffix = new.format.value if new.codec is Codec.NONE else f"{new.format.value}.{new.codec.value}"
        return _Staged(self.temporary, replace(new, id=id_, path=f"{folder}/{id_}.{suffix}"), digest)


class Landing:
    """Lands slices in one warehouse. Threads and processes can use it at the same time."""

    def __init__(self, warehouse: Path, state: Ledger) -> None:
        self._warehouse = warehouse
        self._state = state
        self._log = LandingLog(warehouse)

    def land_file(
        self,
        stream: str,
        source_path: Path,
        *,
        arrival: int,
        format: Format | None = None,
        declared: Interval | None = None,
        source: str = "file",
        name: str | None = None,
        metadata: str | None = None,
    ) -> Landed:
        """Land one file. InputError if it cannot be used: then nothing of it is left."""
        origin = _Origin(stream, source, arrival, format, declared, metadata)
        item = _item(source_path)
        return self._only(origin, replace(item, name=name) if name else item)

    def land_stream(
        self,
        stream: str,
        fileobj: BinaryIO,
        *,
        arrival: int,
        format: Format | None = None,
        declared: Interval | None = None,
        source: str = "stdin",
        name: str = "stdin",
        metadata: str | None = None,
        acknowledged: bool = False,
    ) -> Landed:
        """Land what can be read from `fileobj`, up to its end. What was `acknowledged` before is landed even
        if the slice was retracted since: then it stays retracted."""
        origin = _Origin(stream, source, arrival, format, declared, metadata, acknowledged=acknowledged)
        return self._only(origin, _Item(name, name, lambda: nullcontext(fileobj)))

    def land_bytes(
        self,
        stream: str,
        content: bytes,
        *,
        arrival: int,
        format: Format | None = None,
        declared: Interval | None = None,
        source: str = "api",
        name: str = "bytes",
        metadata: str | None = None,
    ) -> Landed:
        origin = _Origin(stream, source, arrival, format, declared, metadata)
        return self._only(origin, _Item(name, name, partial(io.BytesIO, content)))

    def land_replays(
        self, stream: str, pieces: Sequence[ReplayPiece], *, arrival: int, source: str
    ) -> list[Landed]:
        """Land rejected records as NDJSON, one slice for each piece; all of them or none."""
        origin = _Origin(stream, source, arrival, Format.NDJSON, None)
        landed, refused = self._land(
            [
                (
                    replace(origin, metadata=piece.metadata, replays=piece.replays),
                    _Item(piece.name, piece.name, partial(io.BytesIO, piece.content)),
                )
                for piece in pieces
            ]
        )
        if refused:
            raise refused[0].error
        return landed

    def land_many(
        self,
        stream: str,
        paths: Iterable[Path],
        *,
        arrival: int,
        format: Format | None = None,
        declared: Interval | None = None,
        source: str = "file",
        progress: Callable[[Landed | Refused], None] | None = None,
    ) -> LandedMany:
        """Land many files in the order given. They are acknowledged in groups that share the syncs of
        folder, log and ledger; a file that cannot be used does not keep the others out."""
        origin = _Origin(stream, source, arrival, format, declared)
        return self._land_all(((origin, _item(path)) for path in paths), progress)

    def land_offered(
        self,
        stream: str,
        offered: Iterable[Offered],
        *,
        arrival: int,
        format: Format | None = None,
        source: str = "file",
        progress: Callable[[Landed | Refused], None] | None = None,
    ) -> LandedMany:
        """Land files that each have bounds, a name and metadata of their own, as `land_many` does."""
        items = (
            (
                _Origin(stream, source, arrival, format, one.declared, one.metadata),
                replace(_item(one.path), name=one.name, file=one.path.name),
            )
            for one in offered
        )
        return self._land_all(items, progress)

    def land_named(
        self,
        stream: str,
        names: Sequence[str],
        *,
        arrival: int,
        format: Format | None = None,
        declared: Interval | None = None,
        source: str = "file",
        progress: Callable[[Landed | Refused], None] | None = None,
    ) -> LandedMany:
        """Land what paths, globs, folders and `-` name, as `land_many` does; a name without files is
        refused."""
        paths, wrong = expand(names)
        done = self.land_many(
            stream, paths, arrival=arrival, format=format, declared=declared, source=source, progress=progress
        )
        missing = (Refused(error.where, error) for error in wrong)
        return LandedMany(done.landed, (*missing, *done.refused))

    def _land_all(
        self, items: Iterable[_ToLand], progress: Callable[[Landed | Refused], None] | None
    ) -> LandedMany:
        landed: list[Landed] = []
        refused: list[Refused] = []
        for group in _groups(items):
            done, failed = self._land(group)
            landed += done
            refused += failed
            results: list[Landed | Refused] = [*done, *failed]
            if progress:
                for result in results:
                    progress(result)
        return LandedMany(tuple(landed), tuple(refused))

    def _only(self, origin: _Origin, item: _Item) -> Landed:
        landed, refused = self._land([(origin, item)])
        if refused:
            raise refused[0].error
        return landed[0]

    def _land(self, items: Sequence[_ToLand]) -> tuple[list[Landed], list[Refused]]:
        folder = self._warehouse / items[0][0].folder
        make_folder(folder, top=self._warehouse)
        staged: list[_Staged] = []
        with landing_group(self._warehouse, folder) as group:
            try:
                refused = self._stage_all(items, group, staged)
                landed = self._commit(folder, staged, group) if staged else []
            except BaseException:
                for rest in staged:
                    rest.temporary.unlink(missing_ok=True)
                raise
        return landed, refused

    def _stage_all(
        self, items: Sequence[_ToLand], group: LandingGroup, staged: list[_Staged]
    ) -> list[Refused]:
        """Append what can be landed to `staged`; the rest is refused."""
        folder = items[0][0].folder
        hashed = not _is_hashed_together([item.size for _, item in items])
        copies = _at_once(
            [
                partial(_stage_item, origin, group.temporary(self._warehouse / folder, number), item, hashed)
                for number, (origin, item) in enumerate(items)
            ]
        )
        refused: dict[int, Refused] = {}
        numbers: list[int] = []
        for number, copy in enumerate(copies):
            try:
                staged.append(copy())
                numbers.append(number)
            except TidemillError as error:
                refused[number] = Refused(items[number][1].shown, error)
        staged[:] = _named(staged, folder)
        for number, each in zip(numbers, list(staged), strict=True):
            origin, item = items[number]
            try:
                if not origin.acknowledged:
                    self._check(each)
            except RetractedError as error:
                staged.remove(each)
                each.temporary.unlink()
                refused[number] = Refused(item.shown, error)
        return [refused[number] for number in sorted(refused)]

    def _commit(self, folder: Path, staged: Sequence[_Staged], group: LandingGroup) -> list[Landed]:
        news: list[NewSlice] = []
        with_offsets: dict[str, NewSlice] = {}
        placed: list[tuple[Path, Path]] = []
        for item in staged:
            before = self._state.slice(item.new.id)
            known = with_offsets.get(item.new.id) or (before.slice if before is not None else None)
            with storage_errors("name the slice", folder):
                if before is not None and before.status is SliceStatus.FAILED:
                    self._restore(item.temporary, before.slice.path)
                elif known is None:
                    group.note(item.new)
                    placed.append((item.temporary, self._warehouse / item.new.path))
                    with_offsets[item.new.id] = item.new
                else:
                    item.temporary.unlink()
            news.append(item.new if known is None else replace(item.new, path=known.path))
        with storage_errors("name the slice", folder):
            place(placed)
        sync_folder(folder)
        failpoint("landing.after_rename")
        entries = self._log.commit(self._state, news)
        failpoint("landing.after_ledger")
        for entry in entries:
            own = with_offsets.get(entry.id)
            if own and own.path != entry.slice.path:  # another process landed it first, on another day
                (self._warehouse / own.path).unlink(missing_ok=True)
        return [Landed(entry, new=entry.landings == 1) for entry in entries]

    def arrival(self, now: int) -> int:
        """Return the arrival of what is landed `now`: just after the last one if the clock was set back."""
        return next_arrival(self.last_arrival(), now)

    def last_arrival(self) -> int:
        """Return the latest arrival in the ledger; windows of gateways may land slightly out of order."""
        last = self._state.last_arrival(_RECENT)
        return -(1 << 62) if last is None else last

    def refuse_retracted(self, stream: str, declared: Interval | None, content: bytes) -> None:
        """RetractedError if a file with these bytes and bounds is a slice that was retracted; for callers
        that acknowledge it before it lands."""
        self._refuse(slice_id(stream, declared, hashlib.sha256(content).hexdigest()), "")

    def _check(self, staged: _Staged) -> None:
        self._refuse(staged.new.id, staged.new.name)

    def _refuse(self, id_: str, name: str) -> None:
        entry = self._state.slice(id_)
        if entry is not None and entry.status is SliceStatus.RETRACTED:
            when = f" at {format_instant(entry.retracted_at)}" if entry.retracted_at is not None else ""
            why = f" ({entry.retract_reason})" if entry.retract_reason else ""
            raise RetractedError(
                f"these bytes are slice {id_[:12]}, which was retracted{when}{why}: they do not count",
                where=name,
                hint="sending the same again does not undo a retraction; to count these records, send them "
                "as another slice: with other bounds, or other bytes (one more empty line is enough)",
            )

    def _restore(self, temporary: Path, path: str) -> None:
        """The bytes of a failed slice may be lost where they should be: put these there."""
        offset = self._warehouse / path
        make_folder(offset.parent, top=self._warehouse)
        temporary.replace(offset)
        sync_folder(offset.parent)


def next_arrival(last: int, now: int) -> int:
    """Return the arrival of a slice that lands `now`. If the clock was set back, it is just after the
    `last` one: arrivals never go back."""
    return now if now >= last else last + 1


def _at_once(copies: Sequence[Callable[[], _Staged]]) -> Sequence[Callable[[], _Staged]]:
    """Return the result of each call. Copying, hashing and syncing run in parallel threads; a single call
    runs without a thread, which would take longer than copying a small file."""
    if len(copies) == 1:
        return copies
    with ThreadPoolExecutor(min(len(copies), THREADS)) as pool:
        return [pool.submit(copy).result for copy in copies]


def _is_hashed_together(sizes: Sequence[int]) -> bool:
    """Whether it is faster to hash files of these sizes side by side, once they are copied."""
    total = sum(sizes)
    if total < SIDE_BY_SIDE or (total < LOADING and "numba" not in sys.modules):
        return False
    from tidemill.engine.session import default_cores
    from tidemill.formats.sha256_lanes import is_faster

    return is_faster(sizes, default_cores())


def _named(staged: Sequence[_Staged], folder: str) -> list[_Staged]:
    """With the ids of all, by digests of the copies where they were not hashed while they were copied."""
    late = [each for each in staged if each.digest is None]
    digests = iter(_digests(late)) if late else iter(())
    return [each.named(folder, each.digest or next(digests)) for each in staged]


def _digests(staged: Sequence[_Staged]) -> list[str]:
    from tidemill.engine.session import default_cores
    from tidemill.formats.sha256_lanes import sha256_of

    with storage_errors("read the slice back", staged[0].temporary.parent), ExitStack() as files:
        opened = [files.enter_context(each.temporary.open("rb", buffering=0)) for each in staged]
        return sha256_of(opened, [each.new.size for each in staged], default_cores())


def _stage_item(origin: _Origin, temporary: Path, item: _Item, hashed: bool) -> _Staged:
    with item.open() as content:
        return _stage(origin, temporary, content, item.name, item.file or item.name, hashed=hashed)


def _stage(
    origin: _Origin, temporary: Path, content: BinaryIO, name: str, file_name: str, *, hashed: bool
) -> _Staged:
    """Copy, hash (if `hashed`), check and sync. On any error the temporary file is removed."""
    try:
        head, size, digest = _copy(content, temporary, name, hashed=hashed)
        format_, codec = _checked(origin, temporary, head, file_name)
        failpoint("landing.after_temp")
        with storage_errors("make the slice durable", temporary), temporary.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    new = NewSlice(
        id="",
        stream=origin.stream,
        source=origin.source,
        name=name,
        format=format_,
        codec=codec,
        path="",
        size=size,
        arrival=origin.arrival,
        declared=origin.declared,
        metadata=origin.metadata,
        replays=origin.replays,
    )
    return _Staged(temporary, new, digest)


def _copy(content: BinaryIO, temporary: Path, name: str, *, hashed: bool) -> tuple[bytes, int, str | None]:
    """Return the head and the size of what was copied, and its sha256 if it was hashed."""
    head, size, digest = b"", 0, hashlib.sha256() if hashed else None
    with storage_errors("write the slice", temporary), temporary.open("xb", buffering=0) as file:
        while piece := _read(content, name):
            if digest is not None:
                digest.update(piece)
            if len(head) < HEAD_BYTES:
                head += piece[: HEAD_BYTES - len(head)]
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
            size += len(piece)
    return head, size, None if digest is None else digest.hexdigest()


def _checked(origin: _Origin, temporary: Path, head: bytes, name: str) -> tuple[Format, Codec]:
    format_, codec = sniff(head, name, origin.format)
    if not check_whole(temporary, format_, codec, name) and origin.declared is None:
        raise InputError(
            "is empty",
            where=name,
            hint="if nothing happened in the time that it covers, declare that with --start and --end",
        )
    return format_, codec


def _read(content: BinaryIO, name: str) -> bytes:
    try:
        return content.read(_COPY)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", where=name, hint="check the disk it is on"
        ) from error


def _item(path: Path) -> _Item:
    if path == STDIN:
        return _Item("stdin", "stdin", lambda: nullcontext(sys.stdin.buffer))
    size = 0
    with suppress(OSError):  # reported when the file is opened
        size = path.stat().st_size
    return _Item(path.name, str(path), partial(_open, path), size=size)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path), hint=KINDS_HINT) from None
    except IsADirectoryError:
        raise InputError("is a folder", where=str(path), hint="name the files in it") from None
    except OSError as error:
        raise InputError(
            f"cannot be opened: {error.strerror or error}", where=str(path), hint="check its permissions"
        ) from error


def _groups(items: Iterable[_ToLand]) -> Iterable[list[_ToLand]]:
    group: list[_ToLand] = []
    size = 0
    for one in items:
        group.append(one)
        size += one[1].size
        if len(group) >= GROUP_FILES or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
