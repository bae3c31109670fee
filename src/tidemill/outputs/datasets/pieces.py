"""A dataset on its way to somebody else, as the pieces of a Parquet or Arrow file: nowhere as a whole.

A few record batches are in memory at a time. What is asked for one tenant tells nothing of the others.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.outputs.datasets.catalog import DatasetFile
from tidemill.outputs.datasets.dataset import METADATA_KEY, metadata_text, read_batches
from tidemill.storage.files import storage_errors
from tidemill.storage.writers import arrow_file, parquet_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMATS: Final = ("arrow", "parquet")
PIECE: Final = 1 << 18  # bytes of a file that goes out as it is
_WRITERS: Final = {"arrow": arrow_file, "parquet": parquet_file}
_OF_ALL: Final = ("stream", "window", "start", "span", "revision")


def pieces(file: DatasetFile, to: str, tenant: str | None = None) -> Iterator[bytes]:
    """The rows of a dataset, or those of one tenant, as `to`."""
    said = file.said
    if tenant is None:
        as_it_is = to == "arrow" and not file.shared
        return _as_it_is(file.path) if as_it_is else _written(file.path, to, file.schema, None)
    about = {"kind": "export", "tenant": tenant} | {name: said[name] for name in _OF_ALL}
    schema = file.schema.with_metadata({METADATA_KEY: metadata_text(about)})
    return _written(file.path, to, schema, tenant)


def _as_it_is(file: Path) -> Iterator[bytes]:
    with storage_errors("read the dataset", file), file.open("rb", buffering=0) as source:
        while piece := source.read(PIECE):
            yield piece


def _written(file: Path, to: str, schema: pa.Schema, tenant: str | None) -> Iterator[bytes]:
    sink = _Pieces()
    with _WRITERS[to](sink, schema) as write:
        for batch in read_batches(file):
            mine = batch if tenant is None else batch.filter(pc.equal(batch.column("tenant"), tenant))
            if mine.num_rows:
                write(mine.replace_schema_metadata(schema.metadata))
            if piece := sink.take():
                yield piece
    if piece := sink.take():
        yield piece


class _Pieces(io.RawIOBase):
    """What a writer writes, to be taken piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Buffer, /) -> int:
        content = bytes(piece)
        self._held.append(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """What was written since the last time."""
        held, self._held = self._held, []
        return b"".join(held)
