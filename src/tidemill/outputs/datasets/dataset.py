"""Dataset files: one Arrow IPC file per window and revision, which says of itself what it was made of.

A file gets its name only when its bytes are durable, and no name is ever given twice. Nothing here decides
what a window is made of.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import ipc

from tidemill.config.stream import Stream
from tidemill.config.vectors import Vector
from tidemill.formats.declared import declared_column
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import set_hash
from tidemill.model.windows import LEADING, Build, Dataset, DeltaStats, WindowKey
from tidemill.outputs.datasets.damage import checksum_of
from tidemill.outputs.datasets.order import LEAST_ROWS
from tidemill.storage import layout as paths
from tidemill.storage.files import locked_file, make_folder, remove_dead, storage_errors, sync_folder
from tidemill.storage.tables.footers import Footer, fields_in, number_in, text_in, texts_in

log = logging.getLogger(__name__)

METADATA_KEY: Final = b"tidemill"
_KIND: Final = "dataset"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a dataset become bytes. A file says by which layout it was written; `verify` builds it
    again by the same one."""

    number: int
    compression: str
    least_rows: int  # of a record batch that ends with its step


FIRST_LAYOUT: Final = Layout(1, "lz4", 1)  # of files that do not say which
LAYOUT: Final = Layout(2, "zstd", LEAST_ROWS)
LAYOUTS: Final = {layout.number: layout for layout in (FIRST_LAYOUT, LAYOUT)}


# -- what a file says of itself


def dataset_schema(stream: Stream) -> pa.Schema:
    """The columns of a stream's datasets: what every event has, then the declared fields in their order; of a
    stream of deltas, what they do to which vector."""
    fields = [
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
    ]
    if stream.vector is not None:
        return pa.schema([*fields, *_delta_fields(stream.vector)])
    for name, declared in stream.fields.items():
        if name in LEADING:
            continue  # it is that column
        kind = declared_column(stream, name).arrow
        fields.append(pa.field(name, kind, metadata=declared.notes or None))
    return pa.schema(fields)


def _delta_fields(vector: Vector) -> list[pa.Field]:
    """Each says which column of the records it was read from, and `values` of how many dimensions."""
    read_from = {"vector_id": vector.id, "op": vector.op, "indices": vector.indices, "values": vector.values}
    types = {"indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    value = {name: {"column": column} for name, column in read_from.items()}
    value["values"]["dimension"] = str(vector.dimension)
    return [pa.field(name, types.get(name, pa.string()), metadata=value[name]) for name in read_from]


def columns_name(schema: pa.Schema) -> str:
    """A name for the columns of a dataset: the same names, types and units, read from the same columns, in
    the same order have the same one. Another description makes no other dataset."""
    text = "\n".join(
        f"{one.name}\t{one.type}\t{one.nullable}"
        + "".join(
            f"\t{key.decode()}={value.decode()}"
            for key, value in sorted((one.metadata or {}).items())
            if key != b"comment"
        )
        for one in schema
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def columns_of_file(warehouse: Path, file: str) -> str | None:
    """The same of a dataset that stands in the warehouse; None when it cannot be read."""
    try:
        return columns_name(read_schema(warehouse / file))
    except StorageError:
        return None


@dataclass(frozen=True, slots=True)
class DatasetFooter:
    """What a dataset says of itself, in the metadata of its schema. (Where it is sealed depends on the order
    of arrival: not that.)"""

    key: WindowKey
    revision: int
    hash: str
    slices: tuple[str, ...]  # ascending
    sealed: bool
    rows: int
    misfits: Mapping[str, int]  # column -> values its type cannot hold: null
    schema: Mapping[str, str]  # the types of the columns, as they are declared
    layout: int  # by which its rows became bytes; the first one says no number
    deltas: DeltaStats | None = None  # of a stream of deltas

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
        """StorageError for the file of all windows without rows, too: it says nothing of any of them."""
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
    """What a builder says of the rows it is about to write."""

    stream: Stream
    build: Build
    rows: int
    misfits: Mapping[str, int] = field(default_factory=dict)  # column -> values its type cannot hold: null
    layout: Layout = LAYOUT
    deltas: DeltaStats | None = None  # of a stream of deltas, whose rows are one batch

    def schema(self, revision: int) -> pa.Schema:
        """The columns, with everything there is to say of the file; the same content, the same text."""
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
        return dataset_schema(self.stream).with_metadata({METADATA_KEY: metadata_text(footer.to_footer())})


def declared_types(stream: Stream) -> dict[str, str]:
    """The types of the columns, as they are declared."""
    return {
        name: declared.type if declared.scale is None else f"{declared.type}({declared.scale})"
        for name, declared in stream.fields.items()
    }


def metadata_text(said: Mapping[str, object]) -> bytes:
    """The same for the same facts."""
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_schema(path: Path) -> pa.Schema:
    """The columns of a dataset file, and what it says of itself; no row is read."""
    with storage_errors("read the dataset", path):
        try:
            with pa.OSFile(str(path)) as source, ipc.open_file(source) as reader:
                return reader.schema
        except pa.ArrowInvalid as error:
            raise foreign(path) from error


def said_of_itself(path: Path, schema: pa.Schema | None = None) -> dict[str, object]:
    """The metadata of a dataset file; StorageError when it is not one of ours."""
    metadata = (schema or read_schema(path)).metadata or {}
    said: object = json.loads(metadata.get(METADATA_KEY, b"null"))
    if not isinstance(said, dict) or said.get("kind") != _KIND:
        raise foreign(path)
    return said


def foreign(path: Path) -> StorageError:
    return StorageError(
        "the file is not a dataset that Tidemill wrote, or it is damaged",
        hint="move it out of the warehouse; `tidemill rebuild` builds the window again from raw",
        where=str(path),
    )


def layout_of(path: Path) -> Layout:
    """By which layout a dataset file was written."""
    return LAYOUTS[number_in(said_of_itself(path), "layout", FIRST_LAYOUT.number)]


def read_dataset(warehouse: Path, file: str) -> Dataset:
    """A dataset as its file says; `file` is relative to the warehouse."""
    return _dataset(warehouse, file, read_schema(warehouse / file))


def _dataset(warehouse: Path, file: str, schema: pa.Schema) -> Dataset:
    path = warehouse / file
    try:
        said = DatasetFooter.from_footer(said_of_itself(path, schema))
    except StorageError as error:
        raise foreign(path) from error
    if file != paths.dataset(said.key, said.revision) or set_hash(said.slices) != said.hash:
        raise foreign(path)
    with storage_errors("read the dataset", path):
        size = path.stat().st_size
    return Dataset(
        key=said.key,
        revision=said.revision,
        hash=said.hash,
        slices=said.slices,
        rows=said.rows,
        bytes=size,
        file=file,
        sealed=0 if said.sealed else None,
        columns=columns_name(schema),
        deltas=said.deltas,
    )


def with_checksum(warehouse: Path, dataset: Dataset) -> Dataset:
    """By the bytes as they are now, where nobody knows it."""
    if dataset.checksum is not None:
        return dataset
    with storage_errors("read the dataset", warehouse / dataset.file):
        return replace(dataset, checksum=checksum_of(warehouse / dataset.file))


def _delta_stats(said: object) -> DeltaStats | None:
    return DeltaStats(**said) if isinstance(said, dict) else None


# -- finding them


def revisions(warehouse: Path, key: WindowKey) -> list[int]:
    """Of the files that a window has, ascending."""
    return _revisions(warehouse / paths.dataset_folder(key))


def _revisions(folder: Path) -> list[int]:
    with storage_errors("list the folder", folder):
        names = [child.name for child in folder.iterdir()] if folder.is_dir() else []
    return sorted(found for name in names if (found := paths.dataset_revision(name)) is not None)


def find_files(warehouse: Path, stream: str, key: WindowKey | None = None) -> Iterator[Dataset]:
    """The datasets of a stream that have files of their own, or those of one window, without damaged ones."""
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
    """The files of these windows go, for good."""
    for key in keys:
        folder = warehouse / paths.dataset_folder(key)
        with storage_errors("remove the datasets", folder):
            if folder.is_dir():
                shutil.rmtree(folder)


# -- writing one


def published(
    warehouse: Path, stream: Stream, build: Build, recorded: Iterable[Dataset] = ()
) -> tuple[int, Dataset | None]:
    """The revision that a build gets; and the dataset itself, when a builder that died had published it, in a
    file or, without rows, as one of those `recorded`."""
    revision, without_rows = build.revision, {one.revision: one for one in recorded}
    wanted = columns_name(dataset_schema(stream))
    while True:
        file = paths.dataset(build.key, revision)
        has_file = (warehouse / file).exists()
        if not has_file and revision not in without_rows:
            return revision, None
        try:
            found = read_dataset(warehouse, file) if has_file else without_rows[revision]
        except StorageError:  # damaged: it stays, and the revision after it is made
            revision += 1
            continue
        same = found.hash == build.desired and (found.sealed is None) == (build.seal is None)
        if same and found.columns == wanted:
            return revision, with_checksum(warehouse, replace(found, sealed=build.seal))
        revision += 1


def make_folders(warehouse: Path, stream: str, keys: Iterable[WindowKey]) -> None:
    """The folders of windows, durable: their names are synced once for all of them."""
    top = warehouse / paths.datasets(stream)
    make_folder(top, top=warehouse)
    folders = [warehouse / paths.dataset_folder(key) for key in keys]
    missing = [folder for folder in folders if not folder.is_dir()]
    for folder in missing:
        with storage_errors("create the folder", folder):
            folder.mkdir(exist_ok=True)
    if missing:
        sync_folder(top)


def write_dataset(
    warehouse: Path, content: Content, revision: int, batches: Iterable[pa.RecordBatch]
) -> tuple[Dataset, bool]:
    """Write and publish a dataset as `revision`, or the next number that is free; its folder is there.

    True beside it when another builder published the same meanwhile, which then stands.
    """
    key = content.build.key
    with ExitStack() as stack:
        temporary, lock = stack.enter_context(_temporary(warehouse, key.stream))
        with storage_errors("write the dataset", temporary):
            rows = _write(temporary, content, revision, batches)
        assert rows == content.rows, (key, rows, content.rows)
        while True:
            with storage_errors("make durable", temporary):
                os.fsync(lock)
                size = os.fstat(lock).st_size
                checksum = checksum_of(temporary)
            failpoint("dataset.after_temp")
            file = paths.dataset(key, revision)
            if _link(temporary, warehouse / file):
                failpoint("dataset.after_link")
                names = tuple(sorted(member.name for member in content.build.members))
                build, columns = content.build, columns_name(dataset_schema(content.stream))
                return Dataset(
                    key, revision, build.desired, names, rows, size, file, build.seal, columns,
                    content.deltas, checksum,
                ), False  # fmt: skip
            revision, found = published(warehouse, content.stream, content.build)
            if found is not None:
                return found, True
            # The number is taken, and the file says it: the same rows once more, under the next one.
            source = temporary
            temporary, lock = stack.enter_context(_temporary(warehouse, key.stream))
            with storage_errors("write the dataset", temporary):
                _write(temporary, content, revision, read_batches(source))


def _write(path: Path, content: Content, revision: int, batches: Iterable[pa.RecordBatch]) -> int:
    # One thread: a builder is one of several, and each has its core.
    options = ipc.IpcWriteOptions(compression=content.layout.compression, use_threads=False)
    schema, rows = content.schema(revision), 0
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _link(temporary: Path, target: Path) -> bool:
    """Give the file its name; False when somebody has it. A link, since a rename would overwrite."""
    with storage_errors("publish the dataset", target):
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
    sync_folder(target.parent)
    return True


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a dataset file, one record batch in memory at a time."""
    with storage_errors("read the dataset", path):
        try:
            with pa.OSFile(str(path)) as source, ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        except pa.ArrowInvalid as error:
            raise foreign(path) from error


# -- temporary files


@contextmanager
def _temporary(warehouse: Path, stream: str) -> Iterator[tuple[Path, int]]:
    """A file in staging that is locked while its writer lives: the lock, not a name or a clock, tells
    whether it is a leftover."""
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
    """Remove what builders that died left in staging; how many files. Those being written are locked and
    stay, so this may run at any time, beside any builder."""
    folder = paths.dataset_staging(warehouse, stream)
    with storage_errors("clean up", folder):
        return remove_dead(list(folder.iterdir()) if folder.is_dir() else [])
