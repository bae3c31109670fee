"""Arrow files in which one step of a job passes a table to the next; they are memory-mapped when read.

They are temporary: nothing is synced, and what a crash leaves is removed with its folder.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from tidemill.storage.bucket_path import local_copy
from tidemill.storage.files import replacing


def write_ipc(path: Path, table: pa.Table) -> None:
    """Write a table for the next step."""
    with (
        replacing(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_ipc(path: str) -> pa.Table:
    """Map a table into memory; columns that are not used are not read."""
    return ipc.open_file(pa.memory_map(str(local_copy(path)))).read_all()
