"""A Delta table: opened, published to, committed to through one path, read by snapshot.

Every commit is a compare-and-set on the version it was based on, made under the lease of its stream; there
must be no other way to write to a table.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from tidemill.model.errors import ConfigError, ConflictError, DamageError, StorageError
from tidemill.model.time import DAY
from tidemill.storage import layout
from tidemill.storage.bucket import is_of_bucket, read_again
from tidemill.storage.bucket_path import (
    BucketPath,
    delta_options,
    on_disk,
    size_of,
    status_of,
    warehouse_path,
)
from tidemill.storage.files import (
    UPLOADS,
    disk_error,
    make_folder,
    remove_tree,
    storage_errors,
    sync_folder,
    within_warehouse,
)
from tidemill.storage.leases import check_commit, tenure_of
from tidemill.storage.tables import log, log_checksums
from tidemill.storage.tables.log import Commit
from tidemill.storage.tables.part_checksums import is_whole
from tidemill.storage.tables.parts import StagedPart
from tidemill.storage.tables.schemas import added_columns, stored_schema
from tidemill.storage.tables.snapshot import Part, Snapshot, plain_path, snapshot_of
from tidemill.storage.tables.stats import bounds
from tidemill.storage.tables.vacuum import delete_parts, delete_staging, unreferenced
from tidemill.storage.tenure import MISSING, forget

logger = logging.getLogger(__name__)

APP_ID: Final = "tidemill"  # the same for all: two stale commits of one application conflict
RESHAPED: Final = "columns"  # in the info of a commit that changed the columns, and no part
CHECKPOINT_EVERY: Final = 50
TIDY_EVERY: Final = 10  # versions
KEEP_LOG: Final = DAY
_SETTINGS: Final = {
    # only `trim_log` deletes entries, and only we write checkpoints
    "delta.enableExpiredLogCleanup": "false",
    # We choose the columns with statistics, wherever they are in the schema.
    "delta.dataSkippingNumIndexedCols": "-1",
}
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@contextmanager
def _delta_errors(act: str, root: Path) -> Iterator[None]:
    """Turns errors of deltalake about the disk into StorageErrors. Conflicts pass through."""
    try:
        yield
    except CommitFailedError:
        raise
    except OSError as error:  # deltalake raises these about a bucket, too
        raise _failure(act, root, error) from error
    except DeltaError as error:
        if (isinstance(root, BucketPath) and is_of_bucket(error)) or "os error" in str(error):
            raise _failure(act, root, error) from error
        raise DamageError(
            f"cannot {act}: {' '.join(str(error).split())}", where=within_warehouse(layout.table_log(root))
        ) from error


def _failure(act: str, root: Path, error: DeltaError | OSError) -> StorageError:
    """What deltalake reports, without anything of a response of a bucket."""
    if isinstance(root, BucketPath) and is_of_bucket(error):
        return disk_error(act, root, root.bucket.failure(act, root.key, error))
    return disk_error(act, root, error)


class Table:
    """One table. Not thread-safe; any number of processes may open the same one."""

    def __init__(self, root: Path, delta: DeltaTable) -> None:
        self.root: Final = root
        self._delta = delta
        self._snapshot: Snapshot | None = None
        self._live: tuple[int, frozenset[str]] | None = None
        # The last version that was ours, and its transaction number.
        self._transaction: tuple[int, int] | None = None
        self._checkpoint = log.last_checkpoint(root)
        self._synced = max(self._checkpoint - 1, -1)
        self._tidied = self.version
        self._checked = self.version  # its entries were compared with their checksums
        self._read_shape()

    def _read_shape(self) -> None:
        self._schema = pa.schema(self._delta.schema().to_arrow())
        self._partition_by: tuple[str, ...] = tuple(self._delta.metadata().partition_columns)

    # -- opening

    @staticmethod
    def open(
        root: Path,
        *,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        name: str,
        description: str = "",
    ) -> Table:
        """The table at `root`, created if missing; columns of `schema` that it lacks are added."""
        wanted = stored_schema(schema, partition_by)
        root = root.absolute()
        table = Table.existing(root)
        if table is None:
            _create(root, wanted, partition_by, name, description)
            table = Table.existing(root)
            assert table is not None, root
        table._grow(wanted, partition_by)
        return table

    @staticmethod
    def existing(root: Path) -> Table | None:
        """The table at `root` as it is, for readers; None if there is none."""
        root = root.absolute()
        known = tenure_of(root)
        if known is not None and known.versions.get(root) == MISSING:
            return None
        found = Table._opened(root)
        if known is not None:
            known.record_seen(root, MISSING if found is None else found.version)
        return found

    @staticmethod
    def _opened(root: Path) -> Table | None:
        if unquote(str(root)) != str(root):
            raise ConfigError(
                "the path of a table cannot hold a % followed by two hexadecimal digits",
                hint="deltalake reads that as an escape: move the warehouse to a folder without it",
                where=str(root),
            )
        log_checksums.check_newest(root, log.last_checkpoint(root))  # first: a recorded entry is not torn
        torn = log.set_torn_entries_aside(root, layout.torn_log_entries(root))
        if torn:
            logger.warning("set torn log entries aside: %s", torn, extra={"table": str(root)})
        with _delta_errors("open the table", root):
            if not layout.table_log(root).is_dir():
                return None
            try:
                return Table(
                    root, read_again(lambda: DeltaTable(root.as_uri(), storage_options=delta_options(root)))
                )
            except TableNotFoundError:
                return None

    def _grow(self, wanted: pa.Schema, partition_by: Sequence[str]) -> None:
        for _ in range(log.TRIES):
            added = added_columns(self._schema, wanted, self._partition_by, partition_by)
            if not added:
                return
            base = self.version
            check_commit(self.root)
            fields = Schema.from_arrow(pa.schema(added)).fields
            try:
                with self._committing(), _delta_errors("add columns", self.root):
                    self._delta.alter.add_columns(
                        fields,
                        commit_properties=self._properties({RESHAPED: ",".join(f.name for f in added)}),
                        post_commithook_properties=_NO_HOOKS,
                    )
            except CommitFailedError as error:
                self._lost(base, error)
            else:
                self._won(base + 1)
            self._read_shape()
        raise log.contended(self.root)

    def reshape(self, wanted: pa.Schema, now: int = 0) -> None:
        """Give the table exactly these columns, with their metadata, in one commit that touches no part. A
        column may be removed, and added again with another type once no part has it: the caller must see to
        that."""
        schema = stored_schema(wanted, self._partition_by)
        for _ in range(log.TRIES):
            self.refresh()
            self._read_shape()
            if self._schema.equals(schema, check_metadata=True):
                return
            base = self.version
            check_commit(self.root)
            with self._committing():
                is_written = log.write_entry(self.root, base + 1, self._shape_actions(schema, now))
            if is_written:
                self._won(base + 1)
                self._read_shape()
                self._snapshot = None
                return
        raise log.contended(self.root)

    def _shape_actions(self, schema: pa.Schema, now: int) -> list[dict[str, object]]:
        metadata = self._delta.metadata()
        return [
            {
                "commitInfo": {
                    "timestamp": now // 1000,
                    "operation": "CHANGE COLUMNS",
                    log.INFO_KEY: {RESHAPED: ",".join(schema.names)},
                }
            },
            {"txn": {"appId": APP_ID, "version": (self._delta.transaction_version(APP_ID) or 0) + 1}},
            {
                "metaData": {
                    "id": str(metadata.id),
                    "name": metadata.name,
                    "description": metadata.description,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": Schema.from_arrow(schema).to_json(),
                    "partitionColumns": list(self._partition_by),
                    "configuration": dict(metadata.configuration),
                    "createdTime": metadata.created_time,
                }
            },
        ]

    # -- looking

    @property
    def version(self) -> int:
        return int(self._delta.version())

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def partition_by(self) -> tuple[str, ...]:
        return self._partition_by

    def refresh(self) -> int:
        """Read the newest version and return its number. The holder of the lease skips the look at a bucket:
        no other process can have written to it."""
        known = tenure_of(self.root)
        newest = None if known is None else known.versions.get(self.root)
        if newest == self.version:
            return self.version
        with _delta_errors("read the log", self.root):
            # deltalake lists the log, which takes a hundred times as long as checking two names
            if newest is not None or not log.is_newest(self.root, self.version):
                read_again(self._delta.update_incremental)
                self._read_shape()
        if self.version > self._checked:
            log_checksums.check(self.root, self._checked, self.version)
            self._checked = self.version
        if known is not None:
            known.record_seen(self.root, self.version)
        return self.version

    def expect(self, version: int) -> None:
        """DamageError unless this version, which was seen before, still exists: a table never goes back."""
        self.refresh()
        expect_version(self.root, self, version)

    def snapshot(self) -> Snapshot:
        """The parts of the version last read."""
        if self._snapshot is None or self._snapshot.version != self.version:
            with _delta_errors("list the parts", self.root):
                actions = self._add_actions()
            self._snapshot = snapshot_of(self.root, self.version, actions)
        return self._snapshot

    def last_commit(self) -> Commit:
        """The newest commit, without the empty entries that `take_version` writes."""
        version = self.refresh()
        while log.TAKEN_OVER in (found := self.commits(after=version - 1)[0]).info:
            version -= 1
        return found

    def commits(self, after: int) -> list[Commit]:
        """All commits newer than version `after`, oldest first."""
        log_checksums.check(self.root, max(after, -1), self.refresh())
        return [log.read_commit(self.root, v) for v in range(max(after, -1) + 1, self.refresh() + 1)]

    def _live_paths(self) -> frozenset[str]:
        if self._live is None or self._live[0] != self.version:
            with _delta_errors("list the parts", self.root):
                column = self._add_actions().column("path")
            self._live = (self.version, frozenset(map(plain_path, column.to_pylist())))
        return self._live[1]

    def _add_actions(self) -> pa.Table:
        return pa.RecordBatchReader.from_stream(self._delta.get_add_actions(flatten=True)).read_all()

    # -- staging and publishing

    def staging(self, batch: str) -> Path:
        """The folder where the parts of `batch` are written; nobody reads it."""
        folder = layout.staging(self.root) / _one_name(batch)
        with storage_errors("create the folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def clean_staging(self) -> None:
        """Remove what any batch left in staging."""
        top = layout.staging(self.root)
        with storage_errors("clean staging", top):
            for folder in top.iterdir() if top.is_dir() else ():
                remove_tree(folder)

    def publish(self, parts: Sequence[StagedPart]) -> list[Part]:
        """Move staged parts to their durable place in the table, still invisible to readers.

        May be repeated after a crash: what was already moved is recognised by its name and size.
        """
        if isinstance(self.root, BucketPath):  # uploads wait for the network, not for a core
            self._current_paths()
            with ThreadPoolExecutor(UPLOADS) as pool:
                published = list(pool.map(self._move, parts))
        else:
            published = [self._move(part) for part in parts]
        for folder in sorted({(self.root / part.path).parent for part in published}):
            sync_folder(folder)
        return published

    def _move(self, part: StagedPart) -> Part:
        values = dict(part.partition)
        assert set(values) == set(self._partition_by), (part.partition, self._partition_by)
        # as in Hive: characters that a file name cannot have are escaped in the folder
        folders = [f"{column}={quote(values[column], safe=' ')}" for column in self._partition_by]
        path = "/".join([*folders, _one_name(part.name)])
        target, staged = self.root / path, warehouse_path(part.path)
        make_folder(target.parent, top=self.root)
        with storage_errors("publish the part", target):
            if isinstance(target, BucketPath) and staged.exists():
                if path not in self._live_paths() or not is_whole(target):
                    staged.replace(target)  # the same bytes, if a try before came this far
            elif staged.exists():
                if target.exists() and path in self._current_paths() and is_whole(target):
                    staged.unlink()  # a part that readers see is never replaced
                else:
                    staged.replace(target)
            elif not target.exists():
                raise StorageError(
                    f"the staged part {part.name} is gone",
                    hint="run the same batch again: it is staged again",
                    where=part.path,
                )
            self._same_size(target, part.size)
        mins, maxs = bounds(part.stats, self._schema)
        return Part(path, part.size, part.rows, values, mins, maxs, part.stats)

    def _current_paths(self) -> frozenset[str]:
        self.refresh()
        return self._live_paths()

    def _same_size(self, path: Path, size: int) -> None:
        found = size_of(path)
        if found != size:
            raise ConflictError(
                f"a part of the same name has {found} bytes instead of {size}",
                hint="give every part its own name, made of its batch and what it holds",
                where=str(path),
            )

    # -- the one commit path

    def commit(
        self,
        adds: Sequence[Part],
        removes: Sequence[Part] = (),
        *,
        info: Mapping[str, str],
        now: int | None = None,
        data_change: bool = True,
        base: int | None = None,
    ) -> int:
        """Add and remove parts in one durable step and return the new version.

        A commit that another writer overtook is tried again on top of the winner, as long as every part to
        remove is still there and none to add is; otherwise ConflictError, and nothing has changed. `now` is
        recorded as the time of the removal (default: when the newest part concerned was written). Without
        `data_change` the rows are the same as before: readers that follow the log skip it. With `base`, the
        version that the parts were made for, every other commit since is a conflict.
        """
        written = [self._written(part) for part in adds]
        actions: list[AddAction | RemoveAction] = [
            _add(part, at, data_change) for part, at in zip(adds, written, strict=True)
        ]
        if removes:
            gone_at = now if now is not None else max(written or map(self._written, removes))
            actions += [_remove(part, gone_at, data_change) for part in removes]
        self.refresh()
        for _ in range(log.TRIES):
            if base is not None and base != self.version:
                raise self._overtaken(base)
            check_inputs(self._live_paths(), adds, removes)
            before, number = self.version, self._last_transaction() + 1
            check_commit(self.root)  # after the version was read: one that takes over takes the next one
            try:
                with self._committing(), _delta_errors("commit", self.root):
                    self._delta.create_write_transaction(
                        actions,
                        "append",  # the mode in which deltalake uses our removes instead of its own
                        self._delta.schema(),
                        list(self._partition_by),
                        commit_properties=self._properties(dict(info)),
                        post_commithook_properties=_NO_HOOKS,
                    )
            except CommitFailedError as error:
                self._lost(before, error)
                if not self._is_mine(before + 1, adds, removes, info):
                    continue
            self._won(before + 1)
            if self.version == before + 1:
                self._transaction = before + 1, number
            return before + 1
        raise log.contended(self.root)

    def _properties(self, info: dict[str, str]) -> CommitProperties:
        # no retries inside deltalake: it would rebase without checking whether our inputs still exist. The
        # application transaction makes a stale commit fail in any client that does rebase.
        return CommitProperties(
            custom_metadata={log.INFO_KEY: info},
            max_commit_retries=0,
            app_transactions=[Transaction(APP_ID, self._last_transaction() + 1)],
        )

    def _last_transaction(self) -> int:
        """The number of the last application transaction. deltalake reads the log for it, so the writer of
        the newest version caches it."""
        if self._transaction is None or self._transaction[0] != self.version:
            self._transaction = self.version, self._delta.transaction_version(APP_ID) or 0
        return self._transaction[1]

    def _written(self, part: Part) -> int:
        """When the part's file was last written; it must exist and be complete."""
        path = self.root / part.path
        with storage_errors("look at the part", path):
            found = status_of(path)
        assert found.st_size == part.size, (path, found.st_size, part.size)
        return found.st_mtime_ns // 1000

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """The body writes the next version; a conflict is answered, every other failure is not."""
        forget(self.root)
        try:
            yield
        except CommitFailedError:
            raise
        except BaseException:
            self._doubt()
            raise

    def _doubt(self) -> None:
        known = tenure_of(self.root)
        if known is not None:
            known.doubt(self.root)

    def _lost(self, base: int, error: CommitFailedError) -> None:
        """Another writer took version base + 1: read it. If none did, the failure is not a conflict."""
        if self.refresh() == base:
            self._doubt()
            raise _failure("commit", self.root, error) from error

    def _is_mine(
        self, version: int, adds: Sequence[Part], removes: Sequence[Part], info: Mapping[str, str]
    ) -> bool:
        """Whether a version is the very commit that failed: a bucket did what it was asked to, and its
        response was lost, so that the next try found the name taken."""
        if not isinstance(self.root, BucketPath):
            return False
        found = log.read_commit(self.root, version)
        return (
            found.info == dict(info)
            and sorted(found.added) == sorted(part.path for part in adds)
            and sorted(found.removed) == sorted(part.path for part in removes)
        )

    def _won(self, version: int) -> None:
        log.sync_entries(self.root, self._synced, version)
        self._synced = version
        known = tenure_of(self.root)
        if known is not None:
            known.record_seen(self.root, version)
        self.refresh()
        if version - self._checkpoint >= CHECKPOINT_EVERY and self.version == version:
            try:
                with _delta_errors("write a checkpoint", self.root):
                    self._delta.create_checkpoint()
                log.sync_checkpoint(self.root, version)
                self._checkpoint = version
            except StorageError as error:  # the commit is valid without it; the next one tries again
                logger.warning("no checkpoint: %s", error, extra={"table": str(self.root)})

    def _overtaken(self, base: int) -> ConflictError:
        return ConflictError(
            f"another writer committed version {base + 1} meanwhile",
            where=str(self.root),
            hint="nothing was written; the next round does it again from what is there now",
        )

    def leave_out(self, files: Collection[str], now: int) -> int:
        """Remove these parts (paths in the table) because their files are damaged or missing. How many of
        them it had."""
        self.refresh()
        lost = [part for part in self.snapshot().parts if part.path in files]
        if lost:
            self.commit([], lost, info={"damaged": str(len(lost))}, now=now)
        return len(lost)

    # -- expiry

    def is_untidy(self, every: int) -> bool:
        """Whether the version passed a multiple of `every` since the table was opened or last vacuumed. Of
        many short-lived processes, this is true for the one whose commit passes it."""
        return self.version // every > self._tidied // every

    def vacuum(self, retain: int, now: int) -> list[str]:
        """Delete our files that no version younger than `retain` refers to; returns their paths.

        A part that was removed is kept for `retain` after its removal, by the clock of that commit. A file
        that no commit removed (its writer died) is kept while it is younger than `retain`. Staging of that
        age is deleted too, so `retain` must exceed the longest build. Files that Tidemill did not write are
        never touched.
        """
        oldest = now - retain
        left = unreferenced(self.root, self._current_paths())
        ages = left | log.removed_at(self.root, left)
        check_commit(self.root)
        deleted = delete_parts(self.root, [path for path in left if ages[path] < oldest])
        delete_staging(self.root, oldest)
        self._tidied = self.version
        return deleted

    def trim_log(self, retain: int, now: int) -> int:
        """Delete log entries that no version younger than `retain` needs; returns how many.

        `commits` cannot go back further afterwards: call it once everything older is in the state.
        """
        return log.trim(self.root, now - retain)


def expect_version(root: Path, table: Table | None, committed: int) -> None:
    """DamageError if a table (None: there is none) is older than a version of it that was committed; 0:
    nothing is known."""
    version = -1 if table is None else table.version
    if max(version, 0) < committed:
        raise DamageError(
            f"the table is at version {version}, and version {committed} was committed: its log lost entries"
            if table is not None
            else f"the table is gone, and version {committed} of it was committed",
            where=within_warehouse(log.entry_path(root, version + 1)),
        )


def check_inputs(live: Collection[str], adds: Sequence[Part], removes: Sequence[Part]) -> None:
    """Check what is to be added and removed: deltalake itself would accept wrong parts silently."""
    gone = [part.path for part in removes if part.path not in live]
    if gone:
        raise ConflictError(
            f"{len(gone)} of the parts to remove are no longer in the table, {gone[0]} first",
            hint="another writer replaced them: read the new snapshot and decide again",
        )
    there = [part.path for part in adds if part.path in live]
    if there:
        raise ConflictError(
            f"{len(there)} of the parts to add are already in the table, {there[0]} first",
            hint="this was committed before: look at `commits` instead of committing again",
        )


def _add(part: Part, written: int, data_change: bool) -> AddAction:
    assert part.stats, f"{part.path} was not published here: only new parts can be added"
    return AddAction(part.path, part.size, part.partition, written // 1000, data_change, part.stats)


def _remove(part: Part, at: int, data_change: bool) -> RemoveAction:
    return RemoveAction(part.path, data_change, at // 1000, part.size, dict(part.partition))


def _create(root: Path, schema: pa.Schema, partition_by: Sequence[str], name: str, description: str) -> None:
    """Create a durable version 0 at `root`, or use the one of another process that was faster."""
    top = next(folder for folder in root.parents if on_disk(folder).is_dir())
    make_folder(root, top=top)
    forget(root)
    try:
        with _delta_errors("create the table", root):
            DeltaTable.create(
                root.as_uri(),
                Schema.from_arrow(schema),
                mode="ignore",
                storage_options=delta_options(root),
                partition_by=list(partition_by),
                name=name,
                description=description,
                configuration=dict(_SETTINGS),
                # with retries the slower of two creators would write a second table as version 1
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=[Transaction(APP_ID, 1)]
                ),
                post_commithook_properties=_NO_HOOKS,
            )
    except CommitFailedError as error:
        if not log.entry_path(root, 0).exists():
            raise _failure("create the table", root, error) from error
    log.sync_entries(root, -1, 0)
    sync_folder(root)


def _one_name(name: str) -> str:
    assert "/" not in name, name
    assert name not in ("", ".", ".."), name
    return name


def tidy(tables: Sequence[Table], keep_replaced: int, now: int) -> None:
    """Delete replaced parts and old log entries of these tables, if it is time to."""
    for table in tables:
        if table.is_untidy(TIDY_EVERY):
            gone = table.vacuum(keep_replaced, now)
            trimmed = table.trim_log(KEEP_LOG, now)
            context = {"table": str(table.root)}
            logger.info("deleted %d files and %d log entries", len(gone), trimmed, extra=context)
