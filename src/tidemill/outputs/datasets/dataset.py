"""Dataset files: one Arrow IPC file per window and revision, with metadata about what it was made of.

A file gets its final name only when its bytes are durable, and no name is used twice. What a window contains
is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from tidemill.config.stream import Stream
from tidemill.config.vectors import Vector
from tidemill.formats.declared_columns import declared_column
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import set_hash
from tidemill.model.windows import LEADING, Build, Dataset, DeltaStats, WindowKey
from tidemill.outputs.datasets.checksums import FIELD, UNSET, checksum_of, enter_checksum, stored_checksum
from tidemill.outputs.datasets.row_order import LEAST_ROWS
from tidemill.storage import layout as paths
from tidemill.storage.bucket_path import local_copy, on_disk
from tidemill.storage.files import (
    locked_file,
    make_folder,
    remove_dead,
    remove_tree,
    storage_errors,
    sync_folder,
)
from tidemill.storage.tables.footers import Footer, fields_in, number_in, text_in, texts_in

log = logging.getLogger(__name__)

METADATA_KEY: Final = b"tidemill"
_KIND: Final = "dataset"
_ZONE: Final = " in "  # precedes the zone of timestamps without an offset


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a dataset become bytes. A file records its layout; `verify` builds it again with the
    same one."""

    number: int
    compression: str
    least_rows: int  # of a record batch that ends with its step
    states_checksum: bool = True


FIRST_LAYOUT: Final = Layout(1, "lz4", 1, states_checksum=False)  # of files that do not record one
SECOND_LAYOUT: Final = Layout(2, "zstd", LEAST_ROWS, states_checksum=False)
LAYOUT: Final = Layout(3, "zstd", LEAST_ROWS)
LAYOUTS: Final = {layout.number: layout for layout in (FIRST_LAYOUT, SECOND_LAYOUT, LAYOUT)}


# -- the metadata of a file


def dataset_schema(stream: Stream) -> pa.Schema:
    """The columns of a stream's datasets: those of every event, then the declared fields in order; for a
    delta stream, the vector and the operation."""
    fields = [
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
    ]
    if stream.vector is not None:
        return pa.schema([*fields, *_delta_fields(stream.vector)])
    for name, declared in stream.fields.items():
        if name in LEADING:
            continue  # it is already that column
        kind = declared_column(stream, name).arrow
        fields.append(pa.field(name, kind, metadata=declared.notes or None))
    return pa.schema(fields)


def _delta_fields(vector: Vector) -> list[pa.Field]:
    """Each field records the column it was read from, and `values` its dimension."""
    read_from = {"vector_id": vector.id, "op": vector.op, "indices": vector.indices, "values": vector.values}
    types = {"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    value = {name: {"column": column} for name, column in read_from.items()}
    value["values"]["dimension"] = str(vector.dimension)
    return [pa.field(name, types.get(name, pa.string()), metadata=value[name]) for name in read_from]


def columns_name(schema: pa.Schema, types: Mapping[str, str]) -> str:
    """Identifies the columns of a dataset: equal for the same names, types and units, read from the same
    columns in the same order, and the same `types` as they are declared, where values depend on more than
    the type of the column. Descriptions do not matter."""
    text = "\n".join(
        f"{one.name}\t{one.type}\t{one.nullable}"
        + "".join(
            f"\t{key.decode()}={value.decode()}"
            for key, value in sorted((one.metadata or {}).items())
            if key != b"comment"
        )
        + _read_as(one.type, types.get(one.name, ""))
        for one in schema
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_as(kind: pa.DataType, declared: str) -> str:
    """What the type of a column does not say: that its text is JSON, or the zone of timestamps."""
    is_json = pa.types.is_string(kind) and declared in ("object", "array", "any")
    return f"\t{declared}" if is_json or _ZONE in declared else ""


def columns_declared(stream: Stream) -> str:
    """The same for the datasets that would be built now."""
    return columns_name(dataset_schema(stream), {} if stream.vector is not None else declared_types(stream))


def columns_of_file(warehouse: Path, file: str) -> str | None:
    """The same for a dataset in the warehouse; None if it cannot be read."""
    path = warehouse / file
    try:
        schema = read_schema(path)
        return columns_name(schema, _types_in(stored_metadata(path, schema)))
    except StorageError:
        return None


@lru_cache(maxsize=65_536)
def misfits_of_file(warehouse: Path, file: str) -> Mapping[str, int]:
    """By column, how many values a dataset leaves out because its type cannot hold them; none if the file
    cannot be read. (Cached for good: a dataset is never overwritten.)"""
    try:
        found = DatasetFooter.from_footer(stored_metadata(warehouse / file))
    except StorageError:
        return {}
    return found.misfits


def _types_in(footer: Footer) -> dict[str, str]:
    """The declared types that a file records; of a delta stream none, whose columns have types of their
    own."""
    types = fields_in(footer, "schema") if "schema" in footer and "deltas" not in footer else {}
    return {column: text_in(types, column) for column in types}


@dataclass(frozen=True, slots=True)
class DatasetFooter:
    """The metadata of a dataset, in its schema. (Not the offset of its seal, which depends on the order of
    arrival.)"""

    key: WindowKey
    revision: int
    hash: str
    slices: tuple[str, ...]  # ascending
    sealed: bool
    rows: int
    misfits: Mapping[str, int]  # column -> values its type cannot hold: null
    schema: Mapping[str, str]  # the types of the columns, as they are declared
    layout: int  # number of its layout; the first layout has none
    deltas: DeltaStats | None = None  # for a delta stream

    def to_footer(self) -> dict[str, object]:
        return {
            "kind": _KIND,
            "stream": self.key.stream,
            "window": str(self.key.interval),
            "start": self.key.start,
            "span": self.key.span,
            "revision": self.revision,
            "hash": self.hash,
            "slices": list(self.slices),
            "sealed": self.sealed,
            "rows": self.rows,
            "misfits": dict(self.misfits),
            "schema": dict(self.schema),
            **({"layout": self.layout} if self.layout != FIRST_LAYOUT.number else {}),
            **({"deltas": asdict(self.deltas)} if self.deltas is not None else {}),
        }

    @staticmethod
    def from_footer(footer: Footer) -> DatasetFooter:
        """Read the metadata. StorageError also for the shared file of windows without rows, which has
        none."""
        misfits = fields_in(footer, "misfits") if "misfits" in footer else {}
        types = fields_in(footer, "schema") if "schema" in footer else {}
        deltas = footer.get("deltas")
        return DatasetFooter(
            key=WindowKey(text_in(footer, "stream"), number_in(footer, "start"), number_in(footer, "span")),
            revision=number_in(footer, "revision"),
            hash=text_in(footer, "hash"),
            slices=texts_in(footer, "slices"),
            sealed=footer.get("sealed") is True,
            rows=number_in(footer, "rows"),
            misfits={column: number_in(misfits, column) for column in misfits},
            schema={column: text_in(types, column) for column in types},
            layout=number_in(footer, "layout", FIRST_LAYOUT.number),
            deltas=_delta_stats(deltas),
        )


@dataclass(frozen=True, slots=True)
class Content:
    """The metadata of the rows that a builder is about to write."""

    stream: Stream
    build: Build
    rows: int
    misfits: Mapping[str, int] = field(default_factory=dict)  # column -> values its type cannot hold: null
    layout: Layout = LAYOUT
    deltas: DeltaStats | None = None  # for a delta stream, whose rows are one batch

    def schema(self, revision: int) -> pa.Schema:
        """The columns with all metadata; equal contents give equal text."""
        build = self.build
        footer = DatasetFooter(
            key=build.key,
            revision=revision,
            hash=build.desired,
            slices=tuple(sorted(member.name for member in build.members)),
            sealed=build.seal is not None,
            rows=self.rows,
            misfits=self.misfits,
            schema=declared_types(self.stream),
            layout=self.layout.number,
            deltas=self.deltas,
        )
        fields = footer.to_footer() | ({FIELD: UNSET} if self.layout.states_checksum else {})
        return dataset_schema(self.stream).with_metadata({METADATA_KEY: metadata_text(fields)})


def declared_types(stream: Stream) -> dict[str, str]:
    """The types of the columns, as they are declared."""
    return {
        name: (declared.type if declared.scale is None else f"{declared.type}({declared.scale})")
        + (f"{_ZONE}{zone}" if (zone := declared_column(stream, name).zone) is not None else "")
        for name, declared in stream.fields.items()
    }


def metadata_text(fields: Mapping[str, object]) -> bytes:
    """Metadata as text; equal for equal facts."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_schema(path: Path) -> pa.Schema:
    """The columns and the metadata of a dataset file; no row is read."""
    with storage_errors("read the dataset", path):
        try:
            with pa.OSFile(str(local_copy(path))) as source, ipc.open_file(source) as reader:
                return reader.schema
        except pa.ArrowInvalid as error:
            raise not_a_dataset(path) from error


def stored_metadata(path: Path, schema: pa.Schema | None = None) -> dict[str, object]:
    """The metadata of a dataset file; StorageError if it is not one of ours."""
    metadata = (schema or read_schema(path)).metadata or {}
    fields: object = json.loads(metadata.get(METADATA_KEY, b"null"))
    if not isinstance(fields, dict) or fields.get("kind") != _KIND:
        raise not_a_dataset(path)
    return fields


def not_a_dataset(path: Path) -> StorageError:
    return StorageError(
        "the file is not a dataset that Tidemill wrote, or it is damaged",
        hint="move it out of the warehouse; `tidemill rebuild` builds the window again from raw",
        where=str(path),
    )


def layout_of(path: Path) -> Layout:
    """The layout that a dataset file was written with."""
    return LAYOUTS[number_in(stored_metadata(path), "layout", FIRST_LAYOUT.number)]


def read_dataset(warehouse: Path, file: str) -> Dataset:
    """The dataset that a file describes; `file` is relative to the warehouse."""
    return _dataset(warehouse, file, read_schema(warehouse / file))


def _dataset(warehouse: Path, file: str, schema: pa.Schema) -> Dataset:
    path = warehouse / file
    try:
        footer = DatasetFooter.from_footer(stored_metadata(path, schema))
    except StorageError as error:
        raise not_a_dataset(path) from error
    if file != paths.dataset(footer.key, footer.revision) or set_hash(footer.slices) != footer.hash:
        raise not_a_dataset(path)
    with storage_errors("read the dataset", path):
        size = path.stat().st_size
    return Dataset(
        key=footer.key,
        revision=footer.revision,
        hash=footer.hash,
        slices=footer.slices,
        rows=footer.rows,
        bytes=size,
        file=file,
        sealed=0 if footer.sealed else None,
        columns=columns_name(schema, {} if footer.deltas is not None else footer.schema),
        deltas=footer.deltas,
    )


def with_checksum(warehouse: Path, dataset: Dataset) -> Dataset:
    """The dataset with the checksum stored in its file, which a damaged file does not match; if the file
    stores none, with the checksum of its current bytes."""
    path = warehouse / dataset.file
    with storage_errors("read the dataset", path):
        return replace(dataset, checksum=stored_checksum(path) or checksum_of(path).computed)


def _delta_stats(fields: object) -> DeltaStats | None:
    return DeltaStats(**fields) if isinstance(fields, dict) else None


# -- finding them


def revisions(warehouse: Path, key: WindowKey) -> list[int]:
    """The revisions for which a window has files, ascending."""
    return _revisions(warehouse / paths.dataset_folder(key))


def _revisions(folder: Path) -> list[int]:
    with storage_errors("list the folder", folder):
        names = [child.name for child in folder.iterdir()] if folder.is_dir() else []
    return sorted(found for name in names if (found := paths.dataset_revision(name)) is not None)


def find_files(warehouse: Path, stream: str, key: WindowKey | None = None) -> Iterator[Dataset]:
    """The datasets of a stream, or of one window, that have files of their own; damaged ones are left out."""
    if key is not None:
        folders = [warehouse / paths.dataset_folder(key)]
    else:
        top = warehouse / paths.datasets(stream)
        with storage_errors("list the folder", top):
            folders = sorted(child for child in top.iterdir() if child.is_dir()) if top.is_dir() else []
    for folder in folders:
        for revision in _revisions(folder):
            file = (folder / paths.dataset_name(revision)).relative_to(warehouse).as_posix()
            try:
                yield read_dataset(warehouse, file)
            except StorageError as error:
                log.warning("a dataset is left out: %s", error, extra={"stream": stream})


def drop_files(warehouse: Path, keys: Iterable[WindowKey]) -> None:
    """Delete the files of these windows."""
    for key in keys:
        folder = warehouse / paths.dataset_folder(key)
        with storage_errors("remove the datasets", folder):
            if folder.is_dir():
                remove_tree(folder)


# -- writing one


def published(
    warehouse: Path, stream: Stream, build: Build, recorded: Iterable[Dataset] = ()
) -> tuple[int, Dataset | None]:
    """The revision that a build gets; and the dataset, if a builder that died had already published it in a
    file or, without rows, among those `recorded`."""
    revision, without_rows = build.revision, {one.revision: one for one in recorded}
    while True:
        file = paths.dataset(build.key, revision)
        has_file = (warehouse / file).exists()
        if not has_file and revision not in without_rows:
            return revision, None
        try:
            found = read_dataset(warehouse, file) if has_file else without_rows[revision]
        except StorageError:  # damaged: it stays, and the next revision is made
            revision += 1
            continue
        same = found.hash == build.desired and (found.sealed is None) == (build.seal is None)
        columns = columns_declared(stream)
        if same and found.columns == columns and _is_whole(warehouse / found.file):
            return revision, with_checksum(warehouse, replace(found, sealed=build.seal))
        revision += 1


def _is_whole(path: Path) -> bool:
    with storage_errors("read the dataset", path):
        return checksum_of(path).is_whole()


def make_folders(warehouse: Path, stream: str, keys: Iterable[WindowKey]) -> None:
    """Create the folders of windows, durably: they are synced once for all."""
    top = warehouse / paths.datasets(stream)
    make_folder(top, top=warehouse)
    folders = [warehouse / paths.dataset_folder(key) for key in keys]
    missing = [folder for folder in folders if not on_disk(folder).is_dir()]
    for folder in missing:
        with storage_errors("create the folder", folder):
            folder.mkdir(exist_ok=True)
    if missing:
        sync_folder(top)


def write_dataset(
    warehouse: Path, content: Content, revision: int, batches: Iterable[pa.RecordBatch]
) -> tuple[Dataset, bool]:
    """Write and publish a dataset as `revision`, or the next free number; its folder exists.

    The second value is True if another builder published the same dataset meanwhile, which is then kept.
    """
    key = content.build.key
    with ExitStack() as stack:
        temporary, lock = stack.enter_context(_temporary(warehouse, key.stream))
        with storage_errors("write the dataset", temporary):
            rows, columns = _write(temporary, content, revision, batches)
        assert rows == content.rows, (key, rows, content.rows)
        while True:
            with storage_errors("make durable", temporary):
                checksum = enter_checksum(temporary)
                os.fsync(lock)
                size = os.fstat(lock).st_size
            failpoint("dataset.after_temp")
            file = paths.dataset(key, revision)
            if _link(temporary, warehouse / file):
                failpoint("dataset.after_link")
                names = tuple(sorted(member.name for member in content.build.members))
                build = content.build
                return Dataset(
                    key, revision, build.desired, names, rows, size, file, build.seal, columns,
                    content.deltas, checksum,
                ), False  # fmt: skip
            revision, found = published(warehouse, content.stream, content.build)
            if found is not None:
                return found, True
            # The number is taken, and the file contains it: write the same rows again under the next one.
            source = temporary
            temporary, lock = stack.enter_context(_temporary(warehouse, key.stream))
            with storage_errors("write the dataset", temporary):
                _write(temporary, content, revision, read_batches(source))


def _write(
    temporary: Path, content: Content, revision: int, batches: Iterable[pa.RecordBatch]
) -> tuple[int, str]:
    """Write the rows; how many there were, and what identifies their columns."""
    # One thread: several builders run at once, each on a core.
    options = ipc.IpcWriteOptions(compression=content.layout.compression, use_threads=False)
    schema, rows = content.schema(revision), 0
    with pa.OSFile(str(temporary), "wb") as sink, ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows, columns_declared(content.stream)


def _link(temporary: Path, target: Path) -> bool:
    """Give the file its name; False if that exists. A link, since a rename would overwrite."""
    with storage_errors("publish the dataset", target):
        try:
            target.hardlink_to(temporary)
        except FileExistsError:
            return False
    sync_folder(target.parent)
    return True


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset file, one record batch in memory at a time."""
    with storage_errors("read the dataset", path):
        try:
            with pa.OSFile(str(local_copy(path))) as source, ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        except pa.ArrowInvalid as error:
            raise not_a_dataset(path) from error


# -- temporary files


@contextmanager
def _temporary(warehouse: Path, stream: str) -> Iterator[tuple[Path, int]]:
    """A file in staging that is locked while its writer lives: the lock, not a name or a clock, shows whether
    it is a leftover."""
    folder = paths.dataset_staging(warehouse, stream)
    make_folder(folder, top=warehouse)
    with storage_errors("write the dataset", folder):
        path, lock = locked_file(lambda: folder / f"{uuid.uuid4().hex}.arrow")
    try:
        yield path, lock
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def clean_temporaries(warehouse: Path, stream: str) -> int:
    """Remove what builders that died left in staging; how many files. Files being written are locked and
    stay, so this may run at any time, beside any builder."""
    folder = paths.dataset_staging(warehouse, stream)
    with storage_errors("clean up", folder):
        return remove_dead(list(folder.iterdir()) if folder.is_dir() else [])
