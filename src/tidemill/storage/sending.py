"""Sends the files of a warehouse in a folder to a bucket, where they are the same warehouse.

What belongs to a machine (locks, a state in a file, logs of gateways, staging) stays behind, and so do copies
and checksums of logs, which a bucket does not need. A log becomes one object, the first piece of its first
generation. May be repeated: what was sent before is recognised, and is not sent again if its name states its
content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.model.errors import ConflictError
from tidemill.model.names import bucket_folder
from tidemill.storage import layout
from tidemill.storage.bucket import Bucket
from tidemill.storage.bucket_path import BucketPath, first_piece
from tidemill.storage.files import UPLOADS, storage_errors

_NAMED_BY_CONTENT: Final = re.compile(r"\.[0-9a-f]{16}\.parquet$|/[0-9a-f]{64}\.[a-z]+(\.[a-z]+)?$")
_NOT_NEEDED: Final = frozenset({"_log_copies", "_log_sums"})  # a bucket keeps its objects more than once


@dataclass(frozen=True, slots=True)
class ToSend:
    """A file of the folder, as it was found."""

    path: Path
    key: str  # of its object
    size: int
    modified: int  # in nanoseconds


def to_send(warehouse: Path, url: str) -> dict[str, ToSend]:
    """The files of a warehouse that are objects in a bucket, by key."""
    top = BucketPath(warehouse.parent / bucket_folder(url))
    return {one.key: one for one in _found(warehouse, top)}


def _found(warehouse: Path, top: BucketPath) -> Iterator[ToSend]:
    for folder, folders, names in os.walk(warehouse):
        folders[:] = sorted(name for name in folders if name not in _NOT_NEEDED)
        for name in sorted(names):
            path = Path(folder) / name
            at = top / path.relative_to(warehouse)
            if at.is_local:
                continue
            with storage_errors("look at", path):
                found = path.stat()
            key = first_piece(at) if at.is_log else at.key
            if found.st_size or not at.is_log:  # an empty log is none
                yield ToSend(path, key, found.st_size, found.st_mtime_ns)


def check_target(url: str, files: Mapping[str, ToSend]) -> dict[str, int]:
    """The sizes of the objects under an address, by key; ConflictError if they are not left of an earlier try
    to send these files."""
    found = {one.key: one.size for one in Bucket(url).objects("")}
    other = sorted(key for key in found if key not in files)
    if other:
        is_warehouse = layout.state_owner(Path()).as_posix() in other
        raise ConflictError(
            "there is a warehouse with a state of its own"
            if is_warehouse
            else f"there are {len(other)} objects that this warehouse does not have, {other[0]} first",
            where=url,
            hint="choose a prefix without objects, or delete what is there",
        )
    return found


def send(url: str, files: Mapping[str, ToSend], there: Mapping[str, int]) -> int:
    """Send files, except for those that are there; how many were sent."""
    bucket = Bucket(url)
    missing = [one for one in files.values() if not _is_there(one, there)]

    def put(one: ToSend) -> None:
        with storage_errors("send", one.path):
            bucket.put(one.key, one.path)

    with ThreadPoolExecutor(UPLOADS) as pool:
        for sent in [pool.submit(put, one) for one in missing]:
            sent.result()
    return len(missing)


def _is_there(one: ToSend, there: Mapping[str, int]) -> bool:
    return there.get(one.key) == one.size and _NAMED_BY_CONTENT.search(one.key) is not None


def check_sent(url: str, files: Mapping[str, ToSend]) -> None:
    """ConflictError unless the bucket has exactly these files, each with its size."""
    found = check_target(url, files)
    wrong = sorted(key for key, one in files.items() if found.get(key) != one.size)
    if wrong:
        raise ConflictError(
            f"{len(wrong)} objects are not what was sent, {wrong[0]} first",
            where=url,
            hint="run the same again; let nothing else write to the bucket meanwhile",
        )
