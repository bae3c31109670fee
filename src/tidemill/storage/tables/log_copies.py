"""A second copy of every file of a table's log, in `_log_copies/` beside it. An entry says which parts came
and went, and nothing else says that: one that is lost or changed is put back from its copy.

Not synced: a copy that a power cut tears is known by the checksum of the file, and is made again by the next
commit of whoever opens the table.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidemill.storage import layout
from tidemill.storage.files import atomic_write, storage_errors
from tidemill.storage.tables import log_sums

_SUFFIX: Final = ".copy"  # no reader takes it for a part


def keep(root: Path, names: Iterable[str]) -> None:
    """Copy files of the log that are durable, unless they are copied."""
    folder = layout.log_copies(root)
    for name in names:
        target = folder / f"{name}{_SUFFIX}"
        with storage_errors("copy", target):
            if not target.exists():
                folder.mkdir(exist_ok=True)
                target.write_bytes((layout.table_log(root) / name).read_bytes())


def is_kept(root: Path, name: str) -> bool:
    """Whether there is a copy of a file of the log, and it is what was written."""
    return _content(root, name) is not None


def put_back(root: Path, name: str) -> bool:
    """Write a file of the log anew from its copy; False when there is none that is whole."""
    content = _content(root, name)
    if content is not None:
        atomic_write(layout.table_log(root) / name, content)
    return content is not None


def _content(root: Path, name: str) -> bytes | None:
    known, path = log_sums.recorded(root).get(name), layout.log_copies(root) / f"{name}{_SUFFIX}"
    with storage_errors("read", path):
        content = path.read_bytes() if path.exists() else None
    if content is None or known is None:
        return None
    return content if (len(content), zlib.crc32(content)) == (known.size, known.checksum) else None


def trim(root: Path, floor: int) -> None:
    """Forget the files of versions before `floor`, which are about to be deleted."""
    folder = layout.log_copies(root)
    with storage_errors("trim", folder):
        for path in list(folder.iterdir()) if folder.is_dir() else ():
            if path.name < f"{floor:020d}":
                path.unlink(missing_ok=True)
