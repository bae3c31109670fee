"""The file of tokens: read and replaced as a whole, durable, and readable only by its owner.

Two processes that change it wait for each other, so that no change is lost.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidemill.model.errors import DamageError, TidemillError
from tidemill.model.time import format_instant, parse_instant
from tidemill.server.access.grants import AccessToken, Scope
from tidemill.storage.bucket_path import on_disk
from tidemill.storage.files import attempt, clean_attempts, make_folder, storage_errors, sync_folder

VERSION: Final = 1
_WRITTEN: Final = "Tokens were made here: without tokens.json nobody is let in.\n"
DAMAGED: Final = "the file of tokens is damaged, so nobody can be let in"
LOST: Final = "the file of tokens is missing, so nobody can be let in"
FileVersion = tuple[int, int, int]  # changes with every change of the file


def version_of(path: Path) -> FileVersion | None:
    """The version of the file; None if it does not exist."""
    with storage_errors("look at", path):
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
    return _version(found)


def read_tokens(path: Path) -> tuple[FileVersion | None, tuple[AccessToken, ...]]:
    """The tokens in order of creation, and the version of the file that they were read from."""
    with storage_errors("read", path):
        try:
            version = _version(path.stat())  # first: what is written in between is read again
            content = path.read_bytes()
        except FileNotFoundError:
            return None, ()
    try:
        return version, _tokens(json.loads(content))
    except (ValueError, TypeError, KeyError, RecursionError, TidemillError) as error:
        raise unusable(path, DAMAGED) from error


def was_written(path: Path) -> bool:
    """Whether a token was ever made here: the lock file records it if the file is gone."""
    lock = _lock(path)
    with storage_errors("look at", lock):
        try:
            return lock.stat().st_size > 0
        except FileNotFoundError:
            return False


def unusable(path: Path, message: str) -> DamageError:
    """The error for a file that is damaged or gone: no caller can be let in."""
    return DamageError(
        message,
        hint="restore it from a backup; or remove what is left of it and run `tidemill token create`: "
        "tokens that were made before no longer work",
        where=str(path.relative_to(path.parent.parent)),
    )


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Inside it no other process changes the file. The lock ends with its holder, also in a crash."""
    folder = path.parent
    if not on_disk(folder).is_dir():
        make_folder(folder, top=next(above for above in folder.parents if on_disk(above).is_dir()))
        with storage_errors("close to others", folder):
            folder.chmod(0o700)
    lock = _lock(path)
    with storage_errors("lock", lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def replace_tokens(path: Path, tokens: Sequence[AccessToken]) -> None:
    """Inside `changing`: at every instant the old or the new content is there, complete."""
    document = {"version": VERSION, "tokens": [_plain(token) for token in tokens]}
    before = version_of(path)
    with storage_errors("write", path):
        clean_attempts(path)
        with attempt(path, mode=0o600) as temporary:
            with temporary.open("wb") as file:
                file.write(json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")
                file.flush()
                found = os.fstat(file.fileno())
                if before is not None and found.st_mtime_ns <= before[0]:
                    # Clocks of file systems tick slowly and inodes are reused: make sure that versions
                    # differ.
                    os.utime(file.fileno(), ns=(found.st_atime_ns, before[0] + 1))
                os.fsync(file.fileno())
            temporary.replace(path)
        if not was_written(path):
            _lock(path).write_text(_WRITTEN)
    sync_folder(path.parent)


def _lock(path: Path) -> Path:
    return path.with_suffix(".lock")


def _version(found: os.stat_result) -> FileVersion:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _plain(token: AccessToken) -> Mapping[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "tenant": token.tenant,
        "rate": token.rate,
        "created": format_instant(token.created),
        "expires": None if token.expires is None else format_instant(token.expires),
        "revoked": None if token.revoked is None else format_instant(token.revoked),
        "sha256": token.digest,
    }


def _tokens(document: Mapping[str, object]) -> tuple[AccessToken, ...]:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}")
    rows = document["tokens"]
    if not isinstance(rows, list) or not rows:  # revoked tokens stay in it: it is never written empty
        raise TypeError("tokens")
    return tuple(_token(row) for row in rows)


def _token(row: Mapping[str, object]) -> AccessToken:
    scopes, rate, created = row["scopes"], row["rate"], _instant(row["created"])
    if not isinstance(scopes, list) or not isinstance(rate, int | None) or created is None:
        raise TypeError("a token")
    return AccessToken(
        id=_text(row["id"]),
        name=_text(row["name"]),
        scopes=frozenset(Scope(scope) for scope in scopes),
        tenant=None if row["tenant"] is None else _text(row["tenant"]),
        rate=rate,
        created=created,
        expires=_instant(row["expires"]),
        revoked=_instant(row["revoked"]),
        digest=_digest(row["sha256"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _digest(value: object) -> str:
    digest = _text(value)
    if len(bytes.fromhex(digest)) != 32:
        raise ValueError("no SHA-256")
    return digest


def _instant(value: object) -> int | None:
    return None if value is None else parse_instant(_text(value))
