"""Lands the slices of request/response feeds: each entry that a raw manifest lists as complete, once.

The ledger alone says what has landed; what a process remembers only saves work. Nothing is ever written to
the feed.
"""

from __future__ import annotations

import glob
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.formats.stored_slice import file_digest
from tidemill.ingest import arguments
from tidemill.ingest.arguments import check_bounds
from tidemill.ingest.file_patterns import expand
from tidemill.ingest.landing import Landed, LandedMany, Offered, Refused
from tidemill.ingest.manifests import (
    FILE_NAME,
    MAX_BYTES,
    RawManifest,
    RawSlice,
    RawStatus,
    is_from_manifest,
    metadata_of,
    read_manifest,
)
from tidemill.ingest.responses import trouble_with_response
from tidemill.model.errors import InputError, Retry
from tidemill.model.slices import Format, SliceStatus, slice_id
from tidemill.model.time import Interval

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse

log = logging.getLogger(__name__)

UNREADABLE: Final = "unreadable"  # status under which unreadable manifests are counted
AT_ONCE: Final = 4096  # slices that a round lands from one manifest; then what has landed is accepted
_PAGE: Final = 1000  # entries of the ledger that are read at once
_REPORTED: Final = 20  # mistakes of one manifest that are logged, each once
_STAYS: Final = "a sealed slice stays as it is: retract it, which reopens its hash, or use another hash"

FileVersion = tuple[int, int, int]  # of a file: changed when, bytes, inode
_NEVER: Final[FileVersion] = (0, 0, 0)  # the version of no file, so that it is read again


@dataclass(frozen=True, slots=True)
class Sourced:
    """The outcome for the slices of manifests."""

    done: LandedMany
    sealed: int = 0  # that had been landed before
    waiting: Mapping[str, int] = field(default_factory=dict)  # the others, by status


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The ledger's record of a hash."""

    id: str
    declared: Interval | None
    size: int
    arrival: int
    retracted: bool = False


@dataclass(frozen=True, slots=True)
class _KnownManifest:
    """A manifest as it was last read."""

    version: FileVersion
    left: Mapping[Path, FileVersion | None]  # responses that could not be landed, as they were then
    reported: frozenset[str]  # what was logged about it


@dataclass(slots=True)
class _SortedSlices:
    """The slices of a manifest, by what is to be done with them."""

    refused: list[Refused]
    offered: list[Offered] = field(default_factory=list)  # to land
    empty: list[RawSlice] = field(default_factory=list)  # to land without rows
    left: dict[Path, FileVersion | None] = field(default_factory=dict)  # responses to look at again
    waiting: Counter[str] = field(default_factory=Counter)  # by status
    sealed: int = 0  # landed before


class ResponseError(InputError):
    """A response is incomplete; nothing of it is landed."""

    code = "bad_response"


class Sources:
    """The manifests that a project or a caller names."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._sealed: dict[str, dict[str, _Sealed]] = {}  # by stream and hash
        self._read_up_to: dict[str, tuple[int, int]] = {}  # by stream: landings, and the last offset
        self._manifests: dict[tuple[str, Path], _KnownManifest] = {}
        self._unchanged: dict[Path, FileVersion] = {}  # responses whose bytes are those that were sealed
        self._retractions = 0  # that the ledger had when it was read
        self._counted: dict[Path, tuple[FileVersion, Mapping[str, int]]] = {}

    def watch(self, stream: Stream, now: int) -> None:
        """Land entries that have become complete. An error of a known is logged once and stops nothing."""
        if self._warehouse.state.retractions() != self._retractions:
            self._manifests.clear()  # a hash may have been reopened
        for path in self._manifest_files(stream):
            known = self._manifests.get((stream.name, path))
            if known is not None and known.version == _version(path) and not _has_changed(known.left):
                continue
            self._check(stream, path, now, known.reported if known is not None else frozenset())

    def land(
        self,
        stream: str,
        names: Sequence[str | Path],
        progress: Callable[[], None] | None = None,
    ) -> Sourced:
        """Land complete entries of these manifests (files, folders that hold them, globs)."""
        declared, now = self._warehouse.project.stream(stream), self._warehouse.clock()
        landed: list[Landed] = []
        refused: list[Refused] = []
        sealed, waiting = 0, Counter[str]()
        for name in names:
            paths, wrong = expand([str(_file(Path(name)))])
            refused += (Refused(error.where, error) for error in wrong)
            for path in paths:
                try:
                    found, _, _ = self._land_complete(declared, path, now, progress=progress)
                except InputError as error:
                    refused.append(Refused(str(path), error))
                    continue
                landed += found.done.landed
                refused += found.done.refused
                sealed += found.sealed
                waiting.update(found.waiting)
        return Sourced(LandedMany(tuple(landed), tuple(refused)), sealed, dict(waiting))

    def counts(self, stream: Stream) -> Mapping[str, int]:
        """Count the slices of a stream's manifests by status, landed or not."""
        total = Counter[str]()
        for path in self._manifest_files(stream):
            version = _version(path)
            known = self._counted.get(path)
            if known is None or known[0] != version or version is None:
                try:
                    manifest, read = _read(path)
                    known = read, manifest.counts
                except InputError:
                    known = version or _NEVER, {UNREADABLE: 1}
                self._counted[path] = known
            total.update(known[1])
        order = (*RawStatus, UNREADABLE)
        return {str(status): total[status] for status in order if total[status]}

    def _manifest_files(self, stream: Stream) -> list[Path]:
        """Return the manifests that exist, each once."""
        root = self._warehouse.project.root
        found: dict[Path, None] = {}
        for pattern in stream.manifests.files:
            for match in sorted(glob.glob(pattern, root_dir=root, recursive=True)):  # noqa: PTH207 - patterns may be absolute
                path = _file(root / match)
                if path.is_file():
                    found[path] = None
        return list(found)

    def _check(self, stream: Stream, path: Path, now: int, reported: frozenset[str]) -> None:
        try:
            found, version, left = self._land_complete(stream, path, now, most=AT_ONCE)
        except InputError as error:
            refused: Sequence[Refused] = (Refused(str(path), error),)
            version, left = _version(path) or _NEVER, {}
        else:
            refused = found.done.refused
            if found.done.landed:
                many, where = len(found.done.landed), {"stream": stream.name, "manifest": str(path)}
                log.info("landed %d complete slices", many, extra=where)
        mistakes = {str(one.error): one for one in refused}
        new = [one for text, one in mistakes.items() if text not in reported]
        for one in new[:_REPORTED]:
            log.warning("%s", one.error, extra={"stream": stream.name})
        if len(new) > _REPORTED:
            log.warning("%s: and %d more", path, len(new) - _REPORTED, extra={"stream": stream.name})
        key = stream.name, path
        if any(one.error.retry is Retry.LATER for one in refused):
            self._manifests.pop(key, None)  # a storage error: the next round tries again
        else:
            self._manifests[key] = _KnownManifest(version, left, frozenset(mistakes))

    def _land_complete(
        self,
        stream: Stream,
        path: Path,
        now: int,
        *,
        most: int | None = None,
        progress: Callable[[], None] | None = None,
    ) -> tuple[Sourced, FileVersion, Mapping[Path, FileVersion | None]]:
        """Land what is complete, the `most` oldest; returns the manifest as it was read, and the responses
        that were left."""
        now = self._warehouse.arrival(now)
        manifest, version = _read(path)
        known = self._sealed_hashes(stream.name)
        sorting = self._sort(stream, manifest, known, path.absolute().parent)
        left, waiting = sorting.left, sorting.waiting
        oldest_first = sorted(sorting.offered, key=lambda one: (one.declared.start, one.name))
        if most is not None and len(oldest_first) > most:
            version = _NEVER
        done = self._warehouse.landing.land_offered(
            stream.name,
            oldest_first[:most],
            arrival=now,
            format=arguments.format_of(stream, None),
            source=manifest.dataset.name,
            progress=(lambda _result: progress()) if progress else None,
        )
        for failed in done.refused:
            waiting[RawStatus.OK] += 1
            left[Path(failed.name)] = _version(Path(failed.name))
        nothing: list[Landed] = []
        for one in sorting.empty:
            try:
                nothing.append(self._land_nothing(stream, manifest, one, now))
            except InputError as error:  # the same was retracted
                sorting.refused.append(Refused(one.hash, error))
        both = LandedMany((*done.landed, *nothing), (*sorting.refused, *done.refused))
        return Sourced(both, sorting.sealed, dict(waiting)), version, left

    def _sort(
        self, stream: Stream, manifest: RawManifest, known: Mapping[str, _Sealed], folder: Path
    ) -> _SortedSlices:
        """What is to be done with each slice of a manifest; nothing lands yet."""
        found = _SortedSlices([Refused(error.where, error) for error in manifest.wrong])
        for one in manifest.slices:
            before = known.get(one.hash)
            if before is not None and self._is_reopened(stream.name, one, before, folder):
                before = None
            try:
                if before is not None:
                    found.sealed += 1
                    if before.retracted:
                        found.left[folder / one.response] = _version(folder / one.response)
                    if one.status is RawStatus.OK:
                        self._check_unchanged(stream.name, one, before, folder)
                elif one.status is RawStatus.OK:
                    found.offered.append(_offer(stream, manifest, one, folder))
                elif one.status is RawStatus.EMPTY and one.declared and stream.aggregation_span is not None:
                    check_bounds(stream, one.declared)
                    found.empty.append(one)
                else:
                    found.waiting[one.status] += 1
            except InputError as error:
                found.refused.append(Refused(one.hash, error))
                if before is None:
                    status = RawStatus.FAILED if isinstance(error, ResponseError) else RawStatus.OK
                    found.waiting[status] += 1
                    found.left[folder / one.response] = _version(folder / one.response)
        return found

    def _land_nothing(self, stream: Stream, manifest: RawManifest, one: RawSlice, now: int) -> Landed:
        """Land a slice without rows for a span that the feed marks as empty."""
        return self._warehouse.landing.land_bytes(
            stream.name,
            b"",
            arrival=now,
            format=Format.NDJSON,
            declared=one.declared,
            source=manifest.dataset.name,
            name=one.hash,
            metadata=metadata_of(manifest.dataset, one.hash),
        )

    def _is_reopened(self, stream: str, one: RawSlice, before: _Sealed, folder: Path) -> bool:
        """Whether a hash may be landed again: it was empty and no longer is, or was retracted and has
        changed."""
        if one.status is not RawStatus.OK:
            return False
        if not before.retracted:
            return before.size == 0
        try:
            now = slice_id(stream, one.declared, file_digest(_inside(one, folder)))
        except (OSError, InputError):
            return False
        return now != before.id

    def _sealed_hashes(self, stream: str) -> Mapping[str, _Sealed]:
        """The hashes in the ledger, also those landed by other processes; only what is new is read, and
        everything after a retraction."""
        state = self._warehouse.state
        if self._retractions != (retractions := state.retractions()):
            self._sealed.clear()
            self._read_up_to.clear()
            self._retractions = retractions
        known = self._sealed.setdefault(stream, {})
        landings, (count, last) = state.landings(), self._read_up_to.get(stream, (-1, 0))
        if landings == count:
            return known
        before: int | None = None
        news = []
        while True:
            page = state.slices(stream, newest=True, limit=_PAGE, before=before)
            fresh = [entry for entry in page if entry.seq > last]
            news += fresh
            if len(fresh) < _PAGE:
                break
            before = fresh[-1].seq
        for entry in reversed(news):
            new = entry.slice
            if is_from_manifest(new.name, new.metadata):
                gone = entry.status is SliceStatus.RETRACTED
                older = known.get(new.name)
                if older is None or older.retracted or older.size == 0:
                    known[new.name] = _Sealed(new.id, new.declared, new.size, new.arrival, gone)
        self._read_up_to[stream] = landings, news[0].seq if news else last
        return known

    def _check_unchanged(self, stream: str, one: RawSlice, sealed: _Sealed, folder: Path) -> None:
        """InputError if a manifest contradicts what was landed for a hash. A response that is missing does
        not matter: the slice has its bytes."""
        if one.declared != sealed.declared:
            raise InputError(
                f"hash {one.hash} covered {sealed.declared} when it was sealed, and now {one.declared}",
                where=one.where,
                hint=_STAYS,
            )
        path = folder / one.response
        version = _version(path)
        if version is None or self._unchanged.get(path) == version:
            return
        written, size, _ = version
        if size != sealed.size or written // 1000 >= sealed.arrival:  # otherwise it was not written to since
            try:
                now = slice_id(stream, sealed.declared, file_digest(_inside(one, folder)))
            except OSError:
                return
            if now != sealed.id:
                raise InputError(
                    f"hash {one.hash} has other bytes than when it was sealed as {sealed.id[:12]}",
                    where=one.where,
                    hint=_STAYS,
                )
        self._unchanged[path] = version


def _offer(stream: Stream, manifest: RawManifest, one: RawSlice, folder: Path) -> Offered:
    assert one.declared is not None, one
    check_bounds(stream, one.declared)
    path = _inside(one, folder)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputError(
            f"the response of {one.hash} {what}: {one.response}",
            where=one.where,
            hint="write the whole response first, then set its status to ok",
        )
    if not path.stat().st_size:
        raise InputError(
            f"the response of {one.hash} has no bytes: {one.response}",
            where=one.where,
            hint="set the status empty if there was nothing, and failed if it was lost",
        )
    trouble = trouble_with_response(path, stream)
    if trouble is not None:
        raise ResponseError(
            f"the response of {one.hash} {trouble}",
            where=one.where,
            hint="nothing of it was used: fetch it again; it is read when its bytes change",
        )
    return Offered(path, one.hash, one.declared, metadata_of(manifest.dataset, one.hash))


def _inside(one: RawSlice, folder: Path) -> Path:
    """Return the real path of the response; a link that leads out of the folder is refused."""
    path = (folder / one.response).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(
            f"the response of {one.hash} leads out of the folder: {one.response}",
            where=one.where,
            hint="keep responses in the folder of their manifest, and no links to elsewhere",
        )
    return path


def _file(path: Path) -> Path:
    """Return the manifest file; a folder stands for the manifest in it."""
    return path / FILE_NAME if path.is_dir() else path


def _read(path: Path) -> tuple[RawManifest, FileVersion]:
    """Read a manifest, and the file's state before it: a later write is seen next time."""
    try:
        with path.open("rb") as file:
            version = _version_of(os.fstat(file.fileno()))
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", where=str(path), hint="name a manifest.json"
        ) from error
    return read_manifest(text, str(path), path.absolute().parent), version


def _version(path: Path) -> FileVersion | None:
    try:
        return _version_of(path.stat())
    except OSError:
        return None


def _version_of(found: os.stat_result) -> FileVersion:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _has_changed(left: Mapping[Path, FileVersion | None]) -> bool:
    return any(_version(path) != version for path, version in left.items())
