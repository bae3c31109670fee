"""Compresses the files of slices that were accepted, in rounds that have nothing else to do.

A file is replaced in one step by one that unpacks to the same bytes, which is checked first: at every
instant, and after a crash at any instant, the slice can be read. Ids, sizes and the ledger stay as they are.
The caller must hold the lock of the stream: accepting reads slices by their offsets in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from tidemill.formats.stored_slice import content_digest, is_compressed, write_compressed
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import Codec, Format, NewSlice, SliceEntry, SliceStatus, id_of
from tidemill.storage import layout
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.files import (
    atomic_write,
    attempt,
    clean_attempts,
    storage_errors,
    sync_file,
    sync_folder,
)
from tidemill.storage.state.protocol import Ledger

# bytes of a slice: smaller ones would save too little for the cost of the syncs
LEAST_BYTES: Final = 16 << 10
ROUND_BYTES: Final = 64 << 20  # bytes that one round compresses; slices that land meanwhile wait as long
_AT_ONCE: Final = 512  # slices that one round checks
_THREADS: Final = 2
_TEXT: Final = (Format.NDJSON, Format.JSON, Format.CSV)


class SliceCompression:
    """Compresses the slices of one warehouse. Its progress is stored beside the slices; without that, it
    checks all slices again."""

    def __init__(self, warehouse: Path, ledger: Ledger) -> None:
        self._warehouse = warehouse
        self._ledger = ledger
        self._file: Final = layout.compressed_slices(warehouse)
        self._through: dict[str, int] | None = None  # by stream, the last slice that was checked

    def step(self, stream: str) -> int:
        """Compress the next slices of a stream; how many were checked. 0: there is nothing left."""
        through = self._known()
        page = _due(self._ledger.slices(stream, after=through.get(stream, 0), limit=_AT_ONCE))
        if not page:
            return 0
        chosen = [entry.slice for entry in page if _is_worth_it(entry)]
        if chosen:
            with ThreadPoolExecutor(_THREADS) as threads:
                changed = list(threads.map(partial(_compress, self._warehouse), chosen))
            for folder in sorted({path.parent for path in changed if path is not None}):
                sync_folder(folder)
        through[stream] = page[-1].seq
        if chosen:  # otherwise checking again costs next to nothing
            atomic_write(self._file, json.dumps({**_read(self._file), stream: page[-1].seq}).encode())
        return len(page)

    def _known(self) -> dict[str, int]:
        if self._through is None:
            self._through = _read(self._file)
        return self._through


def _read(file: Path) -> dict[str, int]:
    """The stored progress; nothing if the file is lost or damaged: then all slices are checked again."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: seq for name, seq in found.items() if isinstance(seq, int)}


def _due(entries: Sequence[SliceEntry]) -> Sequence[SliceEntry]:
    """The first of the entries, up to one that waits for the gate, or to as many bytes as a round takes."""
    size = 0
    for number, entry in enumerate(entries):
        if entry.status is SliceStatus.PENDING or size >= ROUND_BYTES:
            return entries[:number]
        size += entry.slice.size if _is_worth_it(entry) else 0
    return entries


def _is_worth_it(entry: SliceEntry) -> bool:
    new = entry.slice
    is_text = new.format in _TEXT and new.codec is Codec.NONE
    return entry.status is SliceStatus.ACCEPTED and is_text and new.size >= LEAST_BYTES


def _compress(warehouse: Path, new: NewSlice) -> Path | None:
    """Replace the file of a slice by a compressed one; None if it stays as it is. Missing and damaged files
    are left to `scrub` and `verify`."""
    path = warehouse / new.path
    with storage_errors("compress the slice", path):
        try:
            found = path.stat()
            if found.st_size != new.size or is_compressed(local_copy(path)):
                return None
        except FileNotFoundError:
            return None
        clean_attempts(path)
        with attempt(path) as temporary:
            digest = write_compressed(local_copy(path), temporary)
            smaller = temporary.stat().st_size < new.size
            if not smaller or id_of(new, digest) != new.id or content_digest(temporary) != digest:
                return None
            # keep the time of landing: `recover` needs it if the logs are lost
            os.utime(temporary, ns=(found.st_atime_ns, found.st_mtime_ns))
            sync_file(temporary)
            failpoint("compression.before_rename")
            temporary.replace(path)
            failpoint("compression.after_rename")
    return path
