"""Paths of a warehouse whose files are objects of a bucket.

A warehouse in a bucket has a folder on the local disk. A path in it names one of three kinds of things:

- what belongs to this machine alone and is never in the bucket: locks, the logs of gateways, notes of
  landings, files that are being written, a state in a file, and staging unless `SHARED_STAGING` is set;
- logs, which are only appended to: in the bucket a log is a folder of objects that are written once, each
  named by the log's generation (how often it was rewritten) and the offset of its first byte; the local disk
  has a copy, brought up to date when the log is opened;
- everything else: an object with the same path, written once as a whole. The local disk has copies of what
  was read or written lately.

`BucketPath` is a `pathlib.Path` that knows this, so what works on a folder through its paths works on a
bucket. Code that opens files by other means calls `local_copy` first. Objects are never replaced by other
content, except for the few in `layout.REPLACED`, which are always read from the bucket.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat as modes
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PosixPath
from typing import IO, Any, Final

from tidemill.model.errors import ConflictError
from tidemill.model.names import BUCKET_FOLDER, SHARED_STAGING, bucket_address
from tidemill.model.time import MINUTE
from tidemill.storage import layout
from tidemill.storage.bucket import Bucket, BucketError, FoundObject, storage_options

_FRESH: Final = 10 * MINUTE  # a copy that was used so recently stays, however full the disk is
_deletes: Final[dict[str, Callable[[], None]]] = {}  # by local folder: raises if nothing may be deleted


@lru_cache(maxsize=64)
def _bucket(url: str) -> Bucket:
    return Bucket(url)


def guard_deletes(warehouse: Path, check: Callable[[], None]) -> None:
    """Call this before objects of a warehouse are deleted; it raises if they must not be."""
    _deletes[str(warehouse)] = check


class BucketPath(PosixPath):
    """A path in the local folder of a warehouse in a bucket."""

    # -- what it names

    def _split(self) -> tuple[str, str]:
        """The local folder of the warehouse, and the path in it."""
        text = str(self)
        at = text.index("/" + BUCKET_FOLDER) + 1
        end = text.find("/", at)
        return (text, "") if end < 0 else (text[:end], text[end + 1 :])

    @property
    def bucket(self) -> Bucket:
        url = bucket_address(self._split()[0].rpartition("/")[2])
        assert url is not None, self
        return _bucket(url)

    @property
    def key(self) -> str:
        """The key of its object, under the address of the warehouse."""
        return self._split()[1]

    def of_stream(self) -> tuple[str, str]:
        """The local folder of the warehouse, and the second name of the path in it: most folders of a
        warehouse have one for each stream."""
        warehouse, key = self._split()
        return warehouse, key.partition("/")[2].partition("/")[0]

    @property
    def is_local(self) -> bool:
        """Whether it belongs to this machine alone."""
        *folders, name = self.key.split("/")
        if name.startswith((".", layout.STATE_FILES)) or name.endswith((".tmp", ".lock")):
            return True
        # a file that was set aside has its old path, and is in the bucket
        set_aside = folders[:1] == ["_damaged"]
        local = layout.IN_NO_BUCKET if os.environ.get(SHARED_STAGING) else layout.OF_A_MACHINE
        return not set_aside and any(one.startswith(".") or one in local for one in (*folders, name))

    @property
    def is_log(self) -> bool:
        return self.name in layout.APPENDED and not self.is_local

    @property
    def plain(self) -> Path:
        """The same path as one of the local disk."""
        return Path(str(self))

    def as_uri(self) -> str:
        return super().as_uri() if self.is_local else f"{self.bucket.url}/{self.key}".rstrip("/")

    # -- looking

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        if self.is_local:
            return self.plain.exists()
        if self.is_log:
            return has_log(self)
        return self.bucket.find(self.key) is not None or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if self.is_local:
            return self.plain.is_file()
        return has_log(self) if self.is_log else self.bucket.find(self.key) is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if self.is_local:
            return self.plain.is_dir()
        return not self.key or self.bucket.has_any(self.key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.is_local:
            return self.plain.stat()
        if self.is_log:
            return current_log(self).stat()
        found = self.bucket.find(self.key)
        if found is not None:
            return _status(modes.S_IFREG | 0o644, found.size, found.modified, found.tag)
        if self.is_dir():
            return _status(modes.S_IFDIR | 0o755, 0, 0)
        raise FileNotFoundError(2, "there is no such object", self.as_uri())

    def iterdir(self) -> Generator[BucketPath, None, None]:
        if self.is_local:
            return (self / one.name for one in self.plain.iterdir())
        folders, files = self.bucket.children(self.key)
        names = {one.key.rpartition("/")[2] for one in files} | set(folders)
        if not names and self.key and not self.plain.is_dir():
            raise FileNotFoundError(2, "there is no such folder", self.as_uri())
        return (self / name for name in sorted(names))

    def glob(self, pattern: str, **_: Any) -> Iterator[BucketPath]:  # type: ignore[override]
        steps = pattern.split("/")
        if self.is_local or steps[-1].startswith("."):
            return (self / one.relative_to(self.plain) for one in self.plain.glob(pattern))
        return (self / name for name in sorted(self._names(len(steps))) if _matches(name, steps))

    def rglob(self, pattern: str, **_: Any) -> Iterator[BucketPath]:  # type: ignore[override]
        if self.is_local:
            return (self / one.relative_to(self.plain) for one in self.plain.rglob(pattern))
        found = (one.key.removeprefix(self.key).lstrip("/") for one in self.bucket.objects(self.key))
        return (self / name for name in found if fnmatchcase(name.rpartition("/")[2], pattern))

    def _names(self, depth: int) -> set[str]:
        """What is in this folder at a depth, as paths in it; the objects of a log are one file."""
        found: set[str] = set()
        for one in self.bucket.objects(self.key):
            names = one.key.removeprefix(self.key).lstrip("/").split("/")
            if len(names) >= depth:
                found.add("/".join(names[:depth]))
        return found

    # -- reading

    def fetch(self) -> Path:
        """A file on the local disk with the same bytes; FileNotFoundError if there is no such object."""
        here = self.plain
        if self.is_local:
            return here
        if self.is_log:
            return current_log(self)
        if here.is_file() and not self.name.endswith(layout.REPLACED):
            _mark_used(here)
            return here
        here.parent.mkdir(parents=True, exist_ok=True)
        temporary = here.with_name(f".{here.name}.{secrets.token_hex(8)}.tmp")
        try:
            self.bucket.download(self.key, temporary)
            temporary.replace(here)
            _used[str(here)] = time.monotonic()
        finally:
            temporary.unlink(missing_ok=True)
        return here

    def open(self, mode: str = "r", *args: Any, **options: Any) -> IO[Any]:  # type: ignore[override]
        if not self.is_local and set(mode) & set("wax+"):
            raise AssertionError(f"{self.key} is an object: write a temporary file and replace it by that")
        if not self.is_local:
            return self.fetch().open(mode, *args, **options)
        if "r" not in mode:  # the folder may be on another machine only
            self.plain.parent.mkdir(parents=True, exist_ok=True)
        return self.plain.open(mode, *args, **options)

    def read_bytes(self) -> bytes:
        if self.is_local or self.is_log or (self.plain.is_file() and not self.name.endswith(layout.REPLACED)):
            return self.fetch().read_bytes()
        return self.bucket.read(self.key)

    def read_text(self, encoding: str | None = None, *args: Any, **options: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    # -- writing

    def write_bytes(self, data: Any) -> int:
        if self.is_local:
            return self.plain.write_bytes(data)
        self.bucket.put(self.key, bytes(data))
        self.forget()
        return len(data)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Folders exist on the local disk only, for what is written there first."""
        here = not self.is_local
        self.plain.mkdir(mode, parents=parents or here, exist_ok=exist_ok or here)

    def replace(self, target: Any) -> Any:
        """Give a file that was written locally its name, which makes it an object; or move an object."""
        if not isinstance(target, BucketPath) or (self.is_local and target.is_local):
            return self.plain.replace(target)
        if self.is_local:
            if target.is_log:
                if not rewrite_log(target, self.plain.read_bytes()):
                    raise BucketError(f"another writer changed {target.as_uri()} meanwhile")
                self.unlink()
                return target
            target.bucket.put(target.key, self.plain)
            target.plain.parent.mkdir(parents=True, exist_ok=True)
            self.plain.replace(target.plain)
            return target
        if target.is_local:
            shutil.copyfile(self.fetch(), target.plain)
        else:
            self.bucket.copy(self.key, target.key)
            target.forget()
        self.unlink()
        return target

    def rename(self, target: Any) -> Any:
        return self.replace(target)

    def hardlink_to(self, target: Any) -> None:
        """Give a file that was written locally this name as well, if it is new; FileExistsError if not."""
        if self.is_local:
            self.plain.hardlink_to(target)
            return
        if not self.bucket.put_new(self.key, Path(str(target))):
            raise FileExistsError(17, "the object exists", self.as_uri())
        self.plain.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.plain.hardlink_to(str(target))

    def unlink(self, missing_ok: bool = False) -> None:
        if self.is_local:
            self.plain.unlink(missing_ok)
            return
        if self.is_log:
            drop_log(self)
            return
        self._check_delete()
        self.bucket.delete(self.key)
        self.forget()

    def _check_delete(self) -> None:
        check = _deletes.get(self._split()[0])
        if check is not None:
            check()

    def rmdir(self) -> None:
        if self.is_local:
            self.plain.rmdir()
        else:  # there are no empty folders in a bucket
            with suppress(OSError):
                self.plain.rmdir()

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        with suppress(FileNotFoundError):
            self.plain.chmod(mode)

    def forget(self) -> None:
        """Remove the local copy of an object."""
        self.plain.unlink(missing_ok=True)

    def remove_tree(self) -> None:
        """Delete a folder with everything in it."""
        if not self.is_local:
            self._check_delete()
            self.bucket.delete(*[one.key for one in self.bucket.objects(self.key)])
        shutil.rmtree(self.plain, ignore_errors=not self.is_local)


def _status(mode: int, size: int, modified: int, tag: int = 0) -> os.stat_result:
    seconds, exact = modified // 1_000_000_000, modified / 1_000_000_000
    return os.stat_result(
        (
            mode,
            tag,
            0,
            1,
            0,
            0,
            size,
            seconds,
            seconds,
            seconds,
            exact,
            exact,
            exact,
            modified,
            modified,
            modified,
        )
    )


def _matches(name: str, steps: list[str]) -> bool:
    return all(fnmatchcase(one, pattern) for one, pattern in zip(name.split("/"), steps, strict=True))


# -- paths that come as text


def warehouse_path(path: Path | str) -> Path:
    """A path of a warehouse, as one that knows whether its files are in a bucket."""
    text = str(path)
    if "/" + BUCKET_FOLDER not in text or isinstance(path, BucketPath):
        return path if isinstance(path, Path) else Path(path)
    return BucketPath(text)


def delta_options(path: Path) -> dict[str, str] | None:
    """What deltalake needs to know to open a table here."""
    return storage_options() if isinstance(path, BucketPath) else None


def on_disk(path: Path) -> Path:
    """The same path as one of the local disk."""
    return path.plain if isinstance(path, BucketPath) else path


def local_copy(path: Path | str) -> Path:
    """A file on the local disk with the content of a file of a warehouse: itself, or a copy of an object."""
    found = warehouse_path(path)
    return found.fetch() if isinstance(found, BucketPath) else found


def location(path: Path) -> str:
    """What a path of a warehouse is called in reports: the file, or the address of the object."""
    return path.as_uri() if isinstance(path, BucketPath) else str(path)


def status_of(path: Path | str) -> os.stat_result:
    """The size and times of a file of a warehouse, without asking the bucket if there is a copy."""
    found = warehouse_path(path)
    if isinstance(found, BucketPath) and not found.is_log:
        with suppress(FileNotFoundError):
            return found.plain.stat()
    return found.stat()


def size_of(path: Path | str) -> int:
    """How many bytes a file of a warehouse has, without asking the bucket if there is a copy."""
    return status_of(path).st_size


# -- logs

_MOMENT: Final = 0.5  # seconds for which readers may reuse what was last seen of a log
_MOST_SEEN: Final = 10_000
_last_seen: Final[dict[Path, tuple[float, Path | None]]] = {}  # when, and the copy; None: there is no log
_compared: Final[
    dict[Path, tuple[int, int]]
] = {}  # the generation of a copy, and how much of it is known to be right
_GENERATION: Final = 6  # digits of the number of a generation
_OFFSET: Final = 20
_TRIES: Final = 100
_REWRITING: Final = b"\0rewritten\0"  # begins a piece that holds the whole new content of its log
_DROPPED: Final = b"\0dropped\0"  # the content of a log that was removed


def _piece(path: BucketPath, generation: int, offset: int) -> str:
    return f"{path.key}/{generation:0{_GENERATION}d}.{offset:0{_OFFSET}d}"


def first_piece(path: BucketPath) -> str:
    """The key of the whole content of a log that was never appended to or rewritten in the bucket."""
    return _piece(path, 0, 0)


def _position(key: str) -> tuple[int, int]:
    generation, _, offset = key.rpartition("/")[2].partition(".")
    return int(generation), int(offset)


@contextmanager
def _copying(path: BucketPath) -> Iterator[None]:
    """One process at a time brings the copy of a log up to date."""
    here = path.plain
    here.parent.mkdir(parents=True, exist_ok=True)
    with here.with_name(f".{here.name}.copy.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy(path: BucketPath, generation: int) -> Path:
    return path.plain.with_name(f".{path.name}.{generation:0{_GENERATION}d}.copy")


def current_log(path: BucketPath) -> Path:
    """The local copy of a log, brought up to date; FileNotFoundError if there is no such log. A copy that
    this process checked just now is returned unchecked."""
    known = _last_seen.get(path)
    if known is not None and time.monotonic() - known[0] < _MOMENT:
        if known[1] is None:
            raise FileNotFoundError(2, "there is no such log", path.as_uri())
        if known[1].exists():
            return known[1]
    with _copying(path):
        return _current(path)


def look_again(path: Path) -> None:
    """Make the next reader of a log check the bucket."""
    _last_seen.pop(path, None)


def has_log(path: BucketPath) -> bool:
    try:
        current_log(path)
    except FileNotFoundError:
        return False
    return True


def _current(path: BucketPath) -> Path:
    for _ in range(_TRIES):
        copy = _bring_up_to_date(path)
        if copy is not None:
            return copy
    raise BucketError(f"{path.as_uri()} is being rewritten again and again")


def _bring_up_to_date(path: BucketPath) -> Path | None:
    """The local copy of a log with all that the bucket has; None if the log was rewritten meanwhile."""
    generation, known, pieces = _unknown_pieces(path)
    copy = _copy(path, generation)
    if not copy.exists():
        _drop_copies(path)
    if known == 0 and pieces and pieces[0][0] != 0:
        raise BucketError(f"the first piece of {path.as_uri()} is missing")
    with copy.open("r+b" if copy.exists() else "w+b") as file:
        size = file.seek(0, os.SEEK_END)
        ends = (known, *(offset + one.size for offset, one in pieces))
        file.truncate(max(end for end in ends if end <= max(size, known)))  # a crash may have torn a piece
        has = file.seek(0, os.SEEK_END)
        for offset, one in pieces:
            if offset < has:
                continue
            if offset != file.tell():
                raise BucketError(f"a piece of {path.as_uri()} is missing at {file.tell()}")
            content = _read_piece(path, generation, one.key)
            if content is None:
                return None
            file.write(content)
    if (known == 0 and not pieces) or _is_dropped(copy):
        _drop_copies(path)
        _remember(path, None)
        raise FileNotFoundError(2, "there is no such log", path.as_uri())
    _remember(path, copy)
    return copy


def _unknown_pieces(path: BucketPath) -> tuple[int, int, list[tuple[int, FoundObject]]]:
    """The generation of a log, how many bytes of the copy this process has compared with the bucket, and the
    pieces after these: a log may have many, and most of the time all but the last are known."""
    known = _compared.get(path)
    if known is not None and _copy(path, known[0]).exists():
        generation, size = known
        pieces = _pieces(path, after=_piece(path, generation, size - 1))
        if size <= _copy(path, generation).stat().st_size and all(one[0] == generation for one in pieces):
            return generation, size, [(offset, one) for _, offset, one in pieces if offset >= size]
    pieces = _pieces(path)
    generation = pieces[-1][0] if pieces else 0
    return generation, 0, [(offset, one) for number, offset, one in pieces if number == generation]


def _is_dropped(copy: Path) -> bool:
    return copy.stat().st_size == len(_DROPPED) and copy.read_bytes() == _DROPPED


def _read_piece(path: BucketPath, generation: int, key: str) -> bytes | None:
    """The bytes that a piece adds to its log; None if the piece is gone because the log was rewritten."""
    try:
        content = path.bucket.read(key)
    except FileNotFoundError:
        return None
    if not content.startswith(_REWRITING):
        return content
    _finish_rewriting(path, generation, content.removeprefix(_REWRITING))
    return None


def _pieces(path: BucketPath, after: str | None = None) -> list[tuple[int, int, FoundObject]]:
    """The generation and the offset of each object of a log, in their order; only those after a key, if one
    is given."""
    return [(*_position(one.key), one) for one in path.bucket.objects(path.key, after=after)]


def _remember(path: BucketPath, copy: Path | None) -> None:
    if len(_last_seen) > _MOST_SEEN:
        _last_seen.clear()
        _compared.clear()
    _last_seen[path] = time.monotonic(), copy
    size = copy.stat().st_size if copy is not None else 0
    if copy is not None and size > 0:
        _compared[path] = _generation(copy), size
    else:
        _compared.pop(path, None)


def append_to_log(path: BucketPath, content: bytes, at: int) -> bool:
    """Append to a log that has `at` bytes; False if another writer has appended to it or rewritten it since.

    Of two writers one finds the key of its piece taken. An appender that was slow may find it free again,
    because a rewriting was finished and its pieces deleted: the next generation then tells.
    """
    with _copying(path):
        generation, size = _end(path)
        if size != at:
            return False
        piece = _next_piece(path, generation, at)
        if not path.bucket.put_new(piece, content):
            return False
        written, _ = _position(piece)
        if any(number > written for number, _, _ in _pieces(path, after=piece)):
            path.bucket.delete(piece)
            return False
        look_again(path)
        if written == generation:
            copy = _copy(path, generation)
            with copy.open("ab") as file:
                file.write(content)
            _remember(path, copy)
    return True


def _next_piece(path: BucketPath, generation: int, at: int) -> str:
    """The key of what is written next to a log that has `at` bytes. A generation that was begun without
    content also has an object at its beginning, so the next write begins another generation."""
    if at == 0 and path.bucket.find(_piece(path, generation, 0)) is not None:
        return _piece(path, generation + 1, 0)
    return _piece(path, generation, at)


def _end(path: BucketPath) -> tuple[int, int]:
    """The generation of a log, and how many bytes it has."""
    try:
        copy = _current(path)
    except FileNotFoundError:
        pieces = _pieces(path)
        return (pieces[-1][0] if pieces else 0), 0
    return _generation(copy), copy.stat().st_size


def _generation(copy: Path) -> int:
    return int(copy.name.removesuffix(".copy").rpartition(".")[2])


def rewrite_log(path: BucketPath, content: bytes, at: int | None = None) -> bool:
    """Replace the content of a log in one step; False if another writer has changed the log meanwhile, or
    since it had `at` bytes.

    The step is one put under the key that the next append would have. It holds the whole new content, so the
    next writer can finish what a crash interrupted.
    """
    with _copying(path):
        generation, size = _end(path)
        if at is not None and size != at:
            return False
        piece = _next_piece(path, generation, size)
        if not path.bucket.put_new(piece, _REWRITING + content):
            return False
        written, _ = _position(piece)
        if any(number > written for number, _, _ in _pieces(path, after=piece)):
            path.bucket.delete(piece)
            return _begins_with(path, written + 1, content)  # another machine may have finished it
        _finish_rewriting(path, written, content)
        look_again(path)
    return True


def _begins_with(path: BucketPath, generation: int, content: bytes) -> bool:
    try:
        return path.bucket.read(_piece(path, generation, 0)) == content
    except FileNotFoundError:
        return False


def _finish_rewriting(path: BucketPath, generation: int, content: bytes) -> None:
    """Begin the next generation with the new content, then delete what it replaces."""
    path.bucket.put_new(_piece(path, generation + 1, 0), content)
    path.bucket.delete(*[one.key for number, _, one in _pieces(path) if number <= generation])


def drop_log(path: BucketPath) -> None:
    """Remove a log. Its generation stays, so that no machine takes its copy for a part of a later log.
    ConflictError if others write to it all the time."""
    for _ in range(_TRIES):
        if not has_log(path) or rewrite_log(path, _DROPPED):
            return
        look_again(path)
    raise ConflictError(
        f"the log was not removed: other writers changed it {_TRIES} times in a row",
        where=path.as_uri(),
        hint="run the same again; if it stays so, stop what writes to it on other machines first",
    )


def _drop_copies(path: BucketPath) -> None:
    for one in path.plain.parent.glob(f".{path.name}.*.copy"):
        one.unlink(missing_ok=True)


# -- copies of objects

_USED_EVERY: Final = 300.0  # seconds
_used: Final[dict[str, float]] = {}  # copies that this process has marked, and when


def _mark_used(copy: Path) -> None:
    """Give a copy that is in use the present time, for `LocalCopies`; not each time, since readers recognise
    files that they have read before by their times."""
    now = time.monotonic()
    if now - _used.get(str(copy), -_USED_EVERY) < _USED_EVERY:
        return
    with suppress(OSError):
        os.utime(copy)
    if len(_used) > _MOST_SEEN:
        _used.clear()
    _used[str(copy)] = now


class LocalCopies:
    """The copies of the objects of a warehouse, and how many bytes they may take."""

    def __init__(self, warehouse: Path, most: int) -> None:
        self._warehouse = warehouse
        self._most = most
        self._checked_at = 0

    def trim(self, now: int) -> int:
        """Delete those first that were not used for longest, until they take few enough bytes; returns how
        many were deleted. Looks once a minute. What was used in the last ten minutes stays."""
        if not isinstance(self._warehouse, BucketPath) or now - self._checked_at < MINUTE:
            return 0
        self._checked_at = now
        found = sorted(self._found())
        total, deleted = sum(size for _, size, _ in found), 0
        for used, size, path in found:
            if total <= self._most or used > now - _FRESH:
                break
            path.unlink(missing_ok=True)
            total -= size
            deleted += 1
        return deleted

    def _found(self) -> Iterator[tuple[int, int, Path]]:
        """When each copy was last used, its size, and its file."""
        for folder, _, names in os.walk(on_disk(self._warehouse)):
            for name in names:
                one = BucketPath(folder) / name
                if not one.is_local and not one.is_log:
                    with suppress(FileNotFoundError):
                        status = one.plain.stat()
                        yield status.st_mtime_ns // 1000, status.st_size, one.plain


def forget_copy(path: Path) -> None:
    """Make the next reader read from the bucket: a search for damage must not check a copy."""
    if isinstance(path, BucketPath) and not (path.is_local or path.is_log):
        path.forget()
