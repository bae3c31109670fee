"""The small protocol that a bucket must offer: read, put, put if absent, list, copy and delete, by key.

The client is obstore. Credentials come from the environment and the usual chains of each provider, never from
the project; errors name the bucket and the key, and nothing else of a response. Every call may be repeated:
the client retries when a server is slow, throttles requests, or resets a connection.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.model.errors import MachineError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

# Imports inside functions keep start-up short: only a warehouse in a bucket needs the client.

Result = TypeVar("Result")
_TRIES: Final = 4  # tries of a read whose response was cut off: the client itself retries only requests
_PIECE: Final = 8 << 20
_WHOLE: Final = 64 << 20  # larger files are sent in several requests, unless the key must be new
_STATUS: Final = re.compile(r"status code: (\d{3})|HTTP status [a-z ]*\((\d{3})")
_OF_BUCKETS: Final = ("Error performing", "Generic S3", "Generic GCS", "Generic MicrosoftAzure")
_TIMEOUT: Final = "60s"
_CONNECT: Final = "10s"
_MOST_RETRIES: Final = 6
_RETRY_SECONDS: Final = 60
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


def storage_options() -> dict[str, str]:
    """The options for deltalake, which reads the same environment."""
    return {
        "timeout": _TIMEOUT,
        "connect_timeout": _CONNECT,
        "aws_conditional_put": "etag",
        "max_retries": str(_MOST_RETRIES),
        "retry_timeout": f"{_RETRY_SECONDS}s",
        "allow_http": str(_is_plain_http()).lower(),
    }


def _is_plain_http() -> bool:
    """Whether the environment names a server without TLS, as one on this machine or in a private network."""
    return any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)


class BucketError(OSError):
    """An operation on a bucket failed. It is an OSError, so callers handle it like an error of the disk."""

    @property
    def hint(self) -> str:
        return (
            "check that the bucket exists, that the network reaches it, and that the credentials in the "
            "environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL) "
            "may read and write it; then run the same again: nothing is half-written"
        )


class _BrokenOffError(OSError):
    """A response ended too early."""

    def __str__(self) -> str:
        return "decoding response body"


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object, as a listing shows it."""

    key: str
    size: int
    modified: int  # in nanoseconds since the epoch, by the clock of the bucket
    tag: int = 0  # changes with the content


class Bucket:
    """The objects under the address of a warehouse; keys are relative to it."""

    def __init__(self, url: str) -> None:
        self.url: Final = url.rstrip("/")
        self._opened: tuple[int, ObjectStore] | None = None

    @property
    def _store(self) -> ObjectStore:
        """The client of this process. A client has threads, which do not survive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), _connect(self.url)
        return self._opened[1]

    # -- reading: retried when a response is cut off

    def find(self, key: str) -> FoundObject | None:
        import obstore

        try:
            return _found(key, self._read("look at", key, lambda: obstore.head(self._store, key)))
        except FileNotFoundError:
            return None

    def read(self, key: str) -> bytes:
        """The content of an object; FileNotFoundError if there is none."""
        import obstore

        return self._read("read", key, lambda: bytes(obstore.get(self._store, key).bytes()))

    def download(self, key: str, target: Path) -> None:
        """Write the content of an object to a local file; FileNotFoundError if there is none."""
        self._read("read", key, lambda: self._download(key, target))

    def _download(self, key: str, target: Path) -> None:
        import obstore

        got = obstore.get(self._store, key)
        with target.open("wb") as file:
            for piece in got.stream(min_chunk_size=_PIECE):
                file.write(piece)
            written = file.tell()
        if written != got.meta["size"]:
            raise _BrokenOffError

    def objects(self, prefix: str, after: str | None = None) -> list[FoundObject]:
        """All objects whose keys begin with `prefix` and a slash, in the order of their keys; only those
        after a key, if one is given."""
        import obstore

        def listed() -> list[FoundObject]:
            pages = obstore.list(self._store, prefix or None, offset=after, chunk_size=1000)
            return [_found(one["path"], one) for page in pages for one in page]

        return sorted(self._read("list", prefix, listed), key=lambda one: one.key)

    def children(self, prefix: str) -> tuple[list[str], list[FoundObject]]:
        """The names of the folders directly under `prefix`, and the objects there."""
        import obstore

        listing = self._read("list", prefix, lambda: obstore.list_with_delimiter(self._store, prefix or None))
        folders = [one.rstrip("/").rpartition("/")[2] for one in listing["common_prefixes"]]
        return folders, [_found(one["path"], one) for one in listing["objects"]]

    def has_any(self, prefix: str, after: str | None = None) -> bool:
        """Whether there is any object under `prefix`; only after a key, if one is given."""
        import obstore

        def found() -> bool:
            pages = obstore.list(self._store, prefix or None, offset=after, chunk_size=1)
            return any(page for page in pages)

        return self._read("list", prefix, found)

    def _read(self, act: str, key: str, work: Callable[[], Result]) -> Result:
        from obstore.exceptions import GenericError

        with self._errors(act, key):
            for _ in range(_TRIES - 1):
                with suppress(GenericError, _BrokenOffError):
                    return work()
            return work()

    # -- writing

    def put(self, key: str, content: bytes | Path) -> None:
        """Write a whole object; replaces one with the same key."""
        import obstore

        size = content.stat().st_size if isinstance(content, Path) else len(content)
        with self._errors("write", key):
            obstore.put(self._store, key, content, use_multipart=size > _WHOLE)

    def put_new(self, key: str, content: bytes | Path) -> bool:
        """Write an object whose key must be new; False if the key exists. An object with exactly this content
        is our own: the response to an earlier try was lost."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._errors("write", key):
            try:
                obstore.put(self._store, key, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                expected = content.read_bytes() if isinstance(content, Path) else content
                found = self.find(key)
                return found is not None and found.size == len(expected) and self.read(key) == expected
        return True

    def copy(self, key: str, target: str) -> None:
        import obstore

        with self._errors("copy", key):
            obstore.copy(self._store, key, target)

    def delete(self, *keys: str) -> None:
        """Delete objects; missing ones are ignored."""
        import obstore

        for first in range(0, len(keys), 1000):
            some = list(keys[first : first + 1000])
            with self._errors("delete", some[0]):
                try:
                    obstore.delete(self._store, some)
                except FileNotFoundError:
                    if len(some) > 1:
                        raise

    @contextmanager
    def _errors(self, act: str, key: str) -> Iterator[None]:
        """Turns errors of the client into BucketErrors."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(2, "there is no such object", f"{self.url}/{key}") from None
        except BucketError:
            raise
        except (BaseError, OSError) as error:
            raise self._error(act, key, _reason(error)) from None

    def failure(self, act: str, key: str, error: Exception) -> BucketError:
        """The error for a failure that another client of the same bucket reported."""
        return self._error(act, key, _reason(error))

    def _error(self, act: str, key: str, reason: str) -> BucketError:
        return BucketError(f"cannot {act} {self.url}/{key}: {reason}")


def _found(key: str, meta: ObjectMeta) -> FoundObject:
    modified = round(meta["last_modified"].timestamp() * 1_000_000) * 1000
    return FoundObject(key, meta["size"], modified, zlib.crc32((meta["e_tag"] or "").encode()))


def _connect(url: str) -> ObjectStore:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise MachineError(
            f"the client of buckets cannot be used: {error}",
            where="warehouse",
            hint="install it: pip install 'tidemill[bucket]'",
        ) from None
    client: ClientConfig = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT, "allow_http": _is_plain_http()}
    retries: RetryConfig = {
        "max_retries": _MOST_RETRIES,
        "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
    }
    store: ObjectStore = from_url(url, client_options=client, retry_config=retries)
    return store


def read_again(work: Callable[[], Result]) -> Result:
    """The result of a read by deltalake, repeated when a response of a bucket was cut off."""
    for _ in range(_TRIES - 1):
        try:
            return work()
        except Exception as error:
            if not is_of_bucket(error) or "body" not in str(error):
                raise
    return work()


def is_of_bucket(error: Exception) -> bool:
    """Whether deltalake reports that the bucket, and not the table, was at fault."""
    text = str(error)
    return any(phrase in text for phrase in _OF_BUCKETS)


def _reason(error: Exception) -> str:
    """Why it failed, without the body of the response: it may repeat the signature of the request."""
    kinds = {
        "PermissionDeniedError": "access is denied",
        "UnauthenticatedError": "the credentials are not accepted",
        "NotSupportedError": "the server does not support it",
    }
    kind = type(error).__name__
    if kind in kinds:
        return kinds[kind]
    status = _STATUS.search(str(error))
    if status:
        return f"the server answered {status[1] or status[2]}"
    text = str(error).lower()
    for phrase, reason in (
        ("credential", "there are no credentials"),
        ("timed out", "the server did not answer in time"),
        ("error sending request", "the server cannot be reached"),
        ("body", "the connection broke off"),
    ):
        if phrase in text:
            return reason
    return "the request failed"
