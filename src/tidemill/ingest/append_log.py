"""A file of durable lines that is only appended to, by any number of processes, one at a time.

A line whose append returned is never lost: only an unreadable tail that the state does not know, which is
what a crash leaves of an append, is cut off. Lines are chained (`storage.log_chain`): one that was changed,
removed or moved raises DamageError. The owner of the file defines what a line means.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

from tidemill.model.errors import DamageError, StorageError
from tidemill.storage import layout, state_owner
from tidemill.storage.bucket_path import BucketPath, look_again
from tidemill.storage.files import append, atomic_write, make_folder, storage_errors
from tidemill.storage.log_chain import EMPTY_LOG, ChainReader, LogHead, chained_all, follows, head_at
from tidemill.storage.state.protocol import Logs

log = logging.getLogger(__name__)

_WINDOW: Final = 256 * 1024
_LONG_LINE: Final = 16 * 1024

Line = TypeVar("Line")


@dataclass(frozen=True, slots=True)
class Tail(Generic[Line]):
    """The last line of a log; `head` is None if it has no checksum, or there is no line at all."""

    line: Line | None
    head: LogHead | None
    at: int | None = None  # where it ends; None: at the end of the file


@dataclass(frozen=True, slots=True)
class _End(Generic[Line]):
    """The last readable line, where it ends, and where the file ends."""

    tail: Tail[Line]
    at: int
    size: int
    text: bytes = b""
    before: bytes | None = None  # the line before it

    @property
    def is_changed(self) -> bool:
        """Return whether the line is not the one that was written after the line before it."""
        if self.tail.head is None:
            return False
        if self.before is None:
            return self.tail.head.lines == 1 and not follows(EMPTY_LOG, self.text)
        head = head_at(self.before)  # None: the line covers everything that an earlier version wrote
        return head is not None and not follows(head, self.text)


@dataclass(frozen=True, slots=True)
class SalvagedLines:
    """The outcome for a log that lost lines."""

    kept: int
    lost: int  # lines that are lost everywhere, as far as known


@dataclass(frozen=True, slots=True)
class _Lines:
    texts: list[bytes]  # those that are as they were written
    lines: int  # that there were
    is_whole: bool


class LineFile(Generic[Line]):
    """Lines as `parse` reads them; it gives None for what is not a line. Every method opens the file again.
    `known` is the head of the log in the state, read before: the log may be ahead of it, and is damaged if it
    is behind."""

    def __init__(self, warehouse: Path, name: str, parse: Callable[[bytes], Line | None]) -> None:
        self._warehouse = warehouse
        self._folder = layout.slices(warehouse)
        self.name: Final = name
        self.path: Final = layout.slice_log(warehouse, name)
        self._other: Final = layout.slice_log_copy(warehouse, name)
        self._lock: Final = layout.slice_log_lock(warehouse, name)
        self._parse = parse

    @contextmanager
    def locked(self, state: Logs | None = None) -> Iterator[None]:
        """Lock the log for this process; against all machines, if they share a state on a server.
        LeaseLostError if the warehouse has another state by now: then nothing may be acknowledged."""
        make_folder(self._folder, top=self._warehouse)
        with (
            nullcontext() if state is None else state.hold(self.name),
            storage_errors("lock", self._folder),
            self._lock.open("ab") as file,
        ):
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a crash
            look_again(self.path)
            if state is None:
                yield
                return
            state_owner.confirm(self._warehouse)
            yield
            state_owner.confirm(self._warehouse)  # else a new state has this line, too

    # -- reading

    def all(self, known: LogHead | None = None) -> Iterator[Line]:
        """Yield lines from the first. An unreadable tail is skipped, unless the state knows of it."""
        for line, _ in self._follow(known):
            yield line

    def texts(self) -> list[bytes]:
        """Return the lines as they are in the file."""
        return [text for _, text in self._follow(None)]

    def _follow(self, known: LogHead | None) -> Iterator[tuple[Line, bytes]]:
        chain = ChainReader()
        self._catch_up(known)
        if self.path.exists():
            with storage_errors("read", self.path), self.path.open("rb") as file:
                for text in file:
                    line = self._parse(text)
                    if line is None or not chain.read(text):
                        self._must_be_torn(chain, file, is_line=line is not None)
                        break
                    if known is not None and chain.head.lines == known.lines and chain.head != known:
                        raise self.damage("it is not the log that the state knows")
                    yield line, text
        if known is not None and chain.head.lines < known.lines:
            raise self.damage(self._behind(chain.head, known))

    def exists(self, state: Logs) -> bool:
        """Whether anything was ever written to it."""
        return self.path.exists() or state.log_head(self.name) is not None

    def lines_in_state(self, state: Logs) -> list[Line] | None:
        """The lines as the state has them, for readers while the file is damaged; None: the state does not
        have all of them."""
        head, texts = state.log_head(self.name), state.log_lines(self.name)
        if head is None or len(texts) != head.lines:
            return None
        return [line for text in texts if (line := self._parse(text))]

    def must_be_new(self, state: Logs) -> None:
        """Raise DamageError if a missing file was ever written to."""
        known = state.log_head(self.name)
        self._catch_up(known)
        if known is not None and not self.path.exists():
            raise self.damage(self._behind(EMPTY_LOG, known))

    def head(self) -> LogHead | None:
        """Return the head of the log, read from its first line; None if no line has a checksum."""
        chain = ChainReader()
        for text in self.texts():
            chain.read(text)
        return chain.head if chain.is_chained else None

    def damage(self, what: str) -> DamageError:
        return DamageError(what, where=self.path.relative_to(self._warehouse).as_posix())

    def _catch_up(self, known: LogHead | None) -> None:
        """For a log in a bucket: bring the local copy up to date if it is behind the state, since another
        process may have appended."""
        if known is not None and isinstance(self.path, BucketPath):
            head = _last_head(self.path)
            if head is None or head.lines < known.lines:
                look_again(self.path)

    def _must_be_torn(self, chain: ChainReader, rest: BinaryIO, *, is_line: bool) -> None:
        """Check that an unreadable line is the last thing in the file, left by a crash."""
        if is_line or any(self._parse(text) for text in rest):
            raise self.damage(f"line {chain.head.lines + 1} is not the one that was written there")

    def _behind(self, head: LogHead, known: LogHead) -> str:
        if not self.path.exists():
            return f"the log is missing, and {known.lines} lines were written to it"
        return f"it has {head.lines} lines, and {known.lines} were written to it"

    # -- writing, in the lock

    def append(self, bodies: Sequence[bytes], tail: Tail[Line], act: str) -> LogHead:
        """Append lines (JSON objects as text) after this tail, and return the new head of the log.

        When it returns they are on disk; when it raises, none is.
        """
        content, head = chained_all(self._head_behind(tail), bodies)
        append(self.path, content, self._size() if tail.at is None else tail.at, act)
        self._copy(content, self._head_behind(tail))
        return head

    def _size(self) -> int:
        with storage_errors("read", self.path):
            try:
                return self.path.stat().st_size
            except FileNotFoundError:
                return 0

    def _copy(self, content: bytes, before: LogHead) -> None:
        """Append the same to the copy of the log, which is not synced: never ahead of the log, and behind it
        only after a power cut. One that does not end where the log did is rewritten."""
        if isinstance(self.path, BucketPath):
            return  # a bucket keeps its objects more than once
        try:
            make_folder(self._other.parent, top=self._warehouse)
            if _last_head(self._other) == before:
                with self._other.open("ab") as file:
                    file.write(content)
            else:
                atomic_write(self._other, self.path.read_bytes())
        except (OSError, StorageError) as error:
            log.warning("the copy of %s is behind: %s", self.name, error)

    def _head_behind(self, tail: Tail[Line]) -> LogHead:
        if tail.head is not None:
            return tail.head
        if tail.line is None:
            return EMPTY_LOG
        chain = ChainReader()  # earlier versions wrote all that is there
        for text in self.texts():
            chain.read(text)
        return chain.head

    def replace(self, bodies: Sequence[bytes]) -> LogHead:
        """Rewrite the log and return its head. The state must have forgotten the old one."""
        content, head = chained_all(EMPTY_LOG, bodies)
        self._put_back(content)
        return head

    def _put_back(self, content: bytes) -> None:
        make_folder(self._folder, top=self._warehouse)
        atomic_write(self.path, content)
        if not isinstance(self.path, BucketPath):
            make_folder(self._other.parent, top=self._warehouse)
            atomic_write(self._other, content)

    def restore_from_copy(self) -> SalvagedLines | None:
        """Restore the log as far as possible from itself and its copy, if there is no state. None: nothing is
        missing, as far as the two show. Lines that neither has intact are left out, and the rest is chained
        again."""
        with self.locked():
            own, other = self._salvage(self.path), self._salvage(self._other)
            if own.is_whole and (other.lines <= own.lines or not other.is_whole):
                return None
            if other.is_whole and other.lines >= own.lines:
                self._put_back(b"".join(other.texts))
                return SalvagedLines(other.lines, 0)
            best = max(own, other, key=lambda one: (len(one.texts), one is own))
            self.replace([_body(text, number) for number, text in enumerate(best.texts, 1)])
            return SalvagedLines(len(best.texts), max(own.lines, other.lines) - len(best.texts))

    def check_copy(self) -> None:
        """DamageError if the copy of the log is not what was written to it."""
        if not self._salvage(self._other).is_whole:
            where = self._other.relative_to(self._warehouse).as_posix()
            raise DamageError("a line is not the one that was written there", where=where)

    def rewrite_copy(self) -> None:
        """Rewrite the copy from the log."""
        if isinstance(self.path, BucketPath):
            return
        with self.locked(), storage_errors("copy the log", self.path):
            make_folder(self._other.parent, top=self._warehouse)
            atomic_write(self._other, self.path.read_bytes() if self.path.exists() else b"")

    def _salvage(self, path: Path) -> _Lines:
        """The lines of a file that were not changed, as far as their neighbours show."""
        try:
            texts = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return _Lines([], 0, is_whole=True)
        if texts and not texts[-1].endswith(b"\n"):
            texts.pop()
        good: list[bytes] = []
        chain, is_whole = ChainReader(), True
        for number, text in enumerate(texts):
            is_line = self._parse(text) is not None
            is_whole = is_whole and is_line and chain.read(text)
            if is_whole or (is_line and self._is_next(texts[number - 1] if number else None, text)):
                good.append(text)
        heads = [head.lines for text in texts if (head := head_at(text)) is not None]
        return _Lines(good, max([len(texts), *heads]), is_whole=is_whole)

    @staticmethod
    def _is_next(before: bytes | None, text: bytes) -> bool:
        """Whether a line was not changed, as far as the line before it shows."""
        head = EMPTY_LOG if before is None else head_at(before)
        return head is None or head_at(text) is None or follows(head, text)

    def record(self, state: Logs) -> None:
        """Record the log in the state: its head, and a copy of new lines. The caller must hold the lock."""
        known = state.log_head(self.name)
        texts = self.texts() if known is None else self._since(known)
        head = head_at(texts[-1]) if texts else None
        if head is not None:
            state.record_log(self.name, head, texts)

    def restore(self, state: Logs) -> bool:
        """Rewrite the log from the state's copy; returns False if the copy is incomplete. The caller must
        hold the lock.

        Valid lines after the copy are kept.
        """
        head, texts = state.log_head(self.name), state.log_lines(self.name)
        if head is None or len(texts) != head.lines:
            return False
        if self.path.exists():
            with storage_errors("read", self.path), self.path.open("rb") as file:
                for text in file:
                    if follows(head, text):
                        texts.append(text)
                        head = head_at(text) or head
        self._put_back(b"".join(texts))
        return True

    def take(self, state: Logs) -> None:
        """`record`, for a state that `recover` made."""
        with self.locked(state):
            self.record(state)

    def repair(self, state: Logs) -> bool:
        """If the log is damaged, rewrite it from the copy in the state; returns whether it was damaged.

        Raises DamageError when the state does not have all lines.
        """
        with self.locked(state):
            damaged = self.is_damaged(state)
            if damaged and not self.restore(state):
                raise self.damage("it is damaged, and the state has no copy of all its lines")
        return damaged

    def is_damaged(self, state: Logs) -> bool:
        """Return whether any line is missing or changed."""
        try:
            for _ in self._follow(state.log_head(self.name)):
                pass
        except DamageError as error:
            log.warning("a log is damaged: %s", error)
            return True
        return False

    def tail(self, known: LogHead | None = None) -> Tail[Line]:
        """Return the last line. What a crash left after it is cut off."""
        self._catch_up(known)
        found = self._find_end()
        if known is not None:
            self._compare_with(found, known)
        if found.at < found.size:
            with storage_errors("repair", self.path), self.path.open("r+b") as file:
                os.ftruncate(file.fileno(), found.at)
                os.fsync(file.fileno())
        return found.tail

    def _find_end(self) -> _End[Line]:
        if not self.path.exists():
            return _End(Tail(None, None, 0), 0, 0)
        with storage_errors("read", self.path), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            window = _WINDOW
            while True:
                start = max(0, size - window)
                file.seek(start)
                pieces = file.read(size - start).split(b"\n")
                end = size - len(pieces[-1])  # after the last line end
                for number in reversed(range(len(pieces) - 1)):
                    piece, before = pieces[number], pieces[number - 1] if number else None
                    if (line := self._parse(piece)) and (before is not None or start == 0):
                        return _End(Tail(line, head_at(piece), end), end, size, piece, before)
                    end -= len(piece) + 1
                if start == 0:
                    return _End(Tail(None, None, 0), 0, size)
                window *= 4

    def _compare_with(self, found: _End[Line], known: LogHead) -> None:
        head = found.tail.head or EMPTY_LOG
        if found.is_changed:
            raise self.damage(f"line {head.lines} is not the one that was written there")
        if head == known:
            return  # the usual case
        if head.lines < known.lines:
            raise self.damage(self._behind(head, known))
        if head.lines == known.lines:
            raise self.damage("it is not the log that the state knows")
        for text in self._since(known):  # a crash came before these were recorded in the state
            if not follows(known, text):
                raise self.damage(f"line {known.lines + 1} does not follow what the state knows of the log")
            known = head_at(text) or known

    def is_another(self, known: LogHead) -> bool:
        """Whether the log has more lines than the state knows, and the last of them are intact: then the
        state is from an old copy, and must not overwrite the log."""
        found = self._find_end()
        return (found.tail.head or EMPTY_LOG).lines > known.lines and not found.is_changed

    def _since(self, known: LogHead) -> list[bytes]:
        """Return the lines that the state does not know yet, of a file with a valid tail."""
        head = self._find_end().tail.head or EMPTY_LOG
        return self._last(head.lines - known.lines)

    def last(self, count: int) -> list[Line]:
        """Return the last `count` lines of a file with a valid tail."""
        lines = [line for text in self._last(count) if (line := self._parse(text))]
        assert len(lines) == count, (len(lines), count)
        return lines

    def _last(self, count: int) -> list[bytes]:
        if count <= 0:
            return []
        size = self._find_end().at
        with storage_errors("read", self.path), self.path.open("rb") as file:
            window = _WINDOW
            while True:
                start = max(0, size - window)
                file.seek(start)
                pieces = file.read(size - start).splitlines(keepends=True)[0 if start == 0 else 1 :]
                if len(pieces) >= count or start == 0:
                    return pieces[-count:]
                window *= 4


def _last_head(path: Path) -> LogHead | None:
    """The head of the file as it is; None if its last line is not intact, or has no checksum."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONG_LINE))
            text = file.read()
    except FileNotFoundError:
        return EMPTY_LOG
    if not text:
        return EMPTY_LOG
    return head_at(text[:-1].rpartition(b"\n")[2]) if text.endswith(b"\n") else None


def _body(text: bytes, number: int) -> bytes:
    """A line without its checksum, numbered: some lines contain their number."""
    fields = json.loads(text)
    fields.pop("chain", None)
    fields |= {name: number for name in ("n", "group") if name in fields}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


class CopiedLog(Generic[Line]):
    """A log whose lines the state has a copy of."""

    def __init__(self, file: LineFile[Line], state: Logs) -> None:
        self.file: Final = file
        self._state = state

    def lines(self) -> Iterator[Line]:
        """All lines, in order. DamageError if one is missing or changed."""
        yield from self.file.all(self._state.log_head(self.file.name))

    def locked(self) -> AbstractContextManager[None]:
        return self.file.locked(self._state)

    def append(self, bodies: Sequence[bytes], act: str) -> None:
        """Append lines (JSON objects as text), also to the copy. The caller must hold the lock."""
        tail = self.file.tail(self._state.log_head(self.file.name))
        self.file.append(bodies, tail, act)
        self.file.record(self._state)

    def record(self) -> None:
        """Record the log in the state, after `recover` made a new one."""
        self.file.take(self._state)

    def repair(self) -> bool:
        """If the log is damaged, rewrite it from the copy in the state; whether it was."""
        return self.file.repair(self._state)
