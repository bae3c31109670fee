"""Files of the warehouse as relations that DuckDB scans: it asks for columns and rows, and only those are
read. No path is ever part of a statement, so the engine needs no access to files.

Each file is compared with its checksum when it is first read, and rows that a tenant must not see are left
out here, below anything that SQL can express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from tidemill.model.errors import TidemillError
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.files import storage_errors
from tidemill.storage.tables.part_checksums import check_part
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.stats import Bound

INSTANT: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = fs.LocalFileSystem()
# Limits what is held at once.
_AHEAD: Final = {"batch_size": 65_536, "batch_readahead": 4, "fragment_readahead": 2}

Value = Bound | None


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A file, the constant values of columns that are not in it, and known bounds of other columns. Instants
    are microseconds."""

    path: str
    constants: Mapping[str, Value] = field(default_factory=dict)
    bounds: Mapping[str, tuple[Value, Value]] = field(default_factory=dict)  # of columns without nulls
    check: Callable[[], None] | None = None  # None: its name has its checksum


class FileScan(ds.FileSystemDataset):  # type: ignore[misc]
    """The rows of some files for which `only` is true. An error during a scan is kept in `failure`, since the
    engine would report it in its own words."""

    def __init__(
        self,
        files: Sequence[ScannedFile],
        schema: pa.Schema,
        format_: ds.FileFormat,
        only: ds.Expression | None = None,
    ) -> None:
        fragments = [
            format_.make_fragment(file.path, _LOCAL, partition_expression=_known(file, schema))
            for file in files
        ]
        super().__init__(fragments, schema, format_, _LOCAL)
        self._checks = {file.path: file.check for file in files}
        self._only = only
        self._guard: Callable[[], None] = lambda: None
        self.failure: TidemillError | None = None

    def watch(self, guard: Callable[[], None]) -> None:
        """Call `guard` before each file is read: it raises if the time is used up."""
        self._guard = guard

    def scanner(
        self, columns: object = None, filter: ds.Expression | None = None, **options: Any
    ) -> ds.Scanner:
        """The object that DuckDB calls."""
        condition = self._only if filter is None else filter if self._only is None else self._only & filter
        try:
            for fragment in self.get_fragments(condition):
                self._guard()
                check = self._checks[fragment.path]
                check() if check is not None else check_part(fragment.path)
                with storage_errors("read", fragment.path):
                    local_copy(fragment.path)
        except TidemillError as error:
            self.failure = error
            raise
        return super().scanner(columns=columns, filter=condition, **{**options, **_AHEAD})


def parts_scan(
    snapshot: Snapshot,
    parts: Sequence[Part],
    schema: pa.Schema,
    bounded: Sequence[str],
    only: ds.Expression | None,
) -> FileScan:
    """Parts of a table. `bounded`: columns without nulls whose statistics exclude parts."""
    files = [
        ScannedFile(
            f"{snapshot.root}/{part.path}",
            part.partition,
            {name: (part.mins.get(name), part.maxs.get(name)) for name in bounded},
        )
        for part in parts
        if part.rows
    ]
    return FileScan(files, schema, ds.ParquetFileFormat(), only)


def equals(column: str, value: str) -> ds.Expression:
    return ds.field(column) == pa.scalar(value, pa.string())


def _known(file: ScannedFile, schema: pa.Schema) -> ds.Expression | None:
    """What is true of every row of a file."""
    terms = [
        ds.field(name) == _scalar(value, schema.field(name).type)
        for name, value in file.constants.items()
        if name in schema.names
    ]
    for name, (low, high) in file.bounds.items():
        if name in schema.names and low is not None and high is not None:
            kind = schema.field(name).type
            terms += [ds.field(name) >= _scalar(low, kind), ds.field(name) <= _scalar(high, kind)]
    found: ds.Expression | None = None
    for term in terms:
        found = term if found is None else found & term
    return found


def _scalar(value: Value, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)
