"""Handles damage that `recover` finds while there is no state yet: files are set aside and removed from their
tables, so that later rounds make their contents again. What cannot be made again is listed; recovery
continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.time import format_instant
from tidemill.pipeline.damaged_files import kind_of, set_aside
from tidemill.pipeline.recover_losses import lost_with
from tidemill.pipeline.recover_stream import decide_in_order
from tidemill.raw.batch_removal import remove_batches
from tidemill.raw.damaged_parts import have_expired, lost_batches
from tidemill.raw.part_names import batch_of, is_expired_tombstone
from tidemill.storage import layout
from tidemill.storage.tables import log_copies
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

log = logging.getLogger(__name__)

Done = TypeVar("Done")
_OF_TABLES: Final = (FileKind.ROLLUP, FileKind.INDEX, FileKind.CHAIN, FileKind.RESULT)
_ALONE: Final = (  # made again when they are next needed
    FileKind.DATASET,
    FileKind.EMPTY_DATASETS,
    FileKind.OBSERVATIONS,
    FileKind.ADMITTED_KEYS,
    FileKind.OPEN_WINDOWS,
    FileKind.ACCEPTED_IDS,
)


class OutdatedLedgerError(Exception):
    """Batches left raw after their slices were entered in the new state as accepted."""


class RecoveryDamage:
    """The damage of one recovery, which may begin again."""

    def __init__(self, workers: Workers, before: RecoveryDamage | None = None) -> None:
        self._workers = workers
        self.set_aside: dict[str, str] = {} if before is None else before.set_aside  # file -> its new path
        self._left: list[Damage] = [] if before is None else before._left
        self._undone: set[str] = set() if before is None else before._undone  # streams that lost batches
        self.has_ledger = False  # whether the new state knows which slices are accepted

    @property
    def left(self) -> list[Damage]:
        """What could not be recovered."""
        return list(dict.fromkeys(self._left))

    def leave(self, damages: Iterable[Damage]) -> None:
        self._left += damages

    def attempt(self, stream: str, work: Callable[[], Done]) -> Done | None:
        """The result of the work. When it finds a damaged file, that is set aside and the work begins again;
        None when it finds one that cannot be made again."""
        while True:
            try:
                return work()
            except StorageError as error:
                file = self._file(error)
                if file is None:
                    raise
                damage = Damage(file, kind_of(file) or FileKind.STATE, stream, error.message)
                if file in self.set_aside or not self._handle(damage):
                    log.error("cannot be recovered: %s", error, extra={"stream": stream, "file": file})
                    self.leave([damage])
                    return None

    def _file(self, error: StorageError) -> str | None:
        """The damaged file that an error names, relative to the warehouse; None: it is not about one."""
        path, root = Path(error.where), self._workers.root
        file = path.relative_to(root).as_posix() if path.is_relative_to(root) else error.where
        is_damage = isinstance(error, DamageError) or kind_of(file or ".") is FileKind.DATASET
        return file if error.where and is_damage else None

    def _handle(self, damage: Damage) -> bool:
        root, now = self._workers.root, self._workers.warehouse.clock()
        path = root / damage.file
        if damage.kind is FileKind.TABLE_LOG:
            if not log_copies.is_kept(path.parent.parent, path.name):
                return False
            self.set_aside[damage.file] = set_aside(root, damage, now)
            log_copies.put_back(path.parent.parent, path.name)
        elif damage.kind in (FileKind.RAW, FileKind.QUARANTINE):
            if not self.undo([damage], now):
                return False
        elif damage.kind in _OF_TABLES:
            self._record_losses(damage, now)
            self.set_aside[damage.file] = set_aside(root, damage, now)
            self._leave_out(damage, now)
        elif damage.kind in _ALONE:
            self._name_forgotten(damage)
            self.set_aside[damage.file] = set_aside(root, damage, now)
        else:
            return False
        self._workers.forget(damage.stream)
        return True

    def _record_losses(self, damage: Damage, now: int) -> None:
        """Record what is lost with a part whose raw is gone, so that answers report it. There is no state to
        tell which tiles those are, so all of its span counts as lost."""
        lost = lost_with(self._workers.warehouse, damage, now)
        self._workers.warehouse.expiries.append(lost)
        if lost:
            reason = f"{damage.reason}; what it held of {lost[0].span} cannot be made again"
            self.leave([replace(damage, reason=reason)])

    def _name_forgotten(self, damage: Damage) -> None:
        """Of the state history, what came before raw that is kept cannot be made again."""
        seal = self._workers.warehouse.expiries.seal(damage.stream)
        if seal is not None and damage.kind in (FileKind.OBSERVATIONS, FileKind.ADMITTED_KEYS):
            what = f"states and admitted keys from before {format_instant(seal)} cannot be made again"
            self.leave(
                [replace(damage, reason=f"{damage.reason}; {what}, and answers report them as missing")]
            )

    def _leave_out(self, damage: Damage, now: int) -> None:
        root = self._workers.root
        folder = Path(*Path(damage.file).parts[: 3 if damage.kind is FileKind.RESULT else 2])
        table = Table.existing(root / folder)
        if table is not None:
            parts = layout.in_table(root / folder, root, [damage.file])
            whole = damage.kind is FileKind.CHAIN  # only all parts together show what they are made of
            table.leave_out([one.path for one in table.snapshot().parts] if whole else parts, now)

    def undo(self, damages: Sequence[Damage], now: int) -> bool:
        """All batches with rows in these parts of one stream leave raw and quarantine: their slices are
        decided again. So do those of other damaged parts that this meets. Raises OutdatedLedgerError if the
        new state has them as accepted."""
        stream, found = damages[0].stream, {damage.file: damage for damage in damages}
        batches: set[str] = set()
        while True:
            try:
                if not self._remove_batches(list(found.values()), batches, now):
                    return False
                break
            except DamageError as error:
                file = self._file(error)
                kind = kind_of(file) if file is not None else None
                if file is None or file in found or kind not in (FileKind.RAW, FileKind.QUARANTINE):
                    raise
                found[file] = Damage(file, kind, stream, error.message)
        self._undone.add(stream)
        if self.has_ledger:
            raise OutdatedLedgerError
        return True

    def _remove_batches(self, damages: list[Damage], batches: set[str], now: int) -> bool:
        """Adds to the batches those of the damaged parts. Returns False if raw has let go of some of what
        they held, so that it cannot be decided again."""
        root, stream = self._workers.root, damages[0].stream
        files = [damage.file for damage in damages]
        raw, quarantine = (Table.existing(layout.table(root, kind, stream)) for kind in ("raw", "quarantine"))
        if raw is None:
            return False
        of_raw = layout.in_table(raw.root, root, files)
        known = {} if quarantine is None else quarantine.snapshot().by_path
        named = layout.in_table(layout.quarantine(root, stream), root, files)
        batches |= {batch for path in named if path in known and (batch := batch_of(known[path]))}
        if of_raw:
            parts = raw.snapshot().by_path
            if any(is_expired_tombstone(parts[path]) for path in of_raw if path in parts):
                return False
            batches |= lost_batches(raw, of_raw)
        if have_expired(raw, batches, of_raw):
            return False
        for damage in damages:
            if damage.file not in self.set_aside:
                self.set_aside[damage.file] = set_aside(root, damage, now)
        info = {"sent_back": ", ".join(files)}
        for table in (raw, quarantine):
            if table is not None:
                remove_batches(table, batches, info, now, self._workers.warehouse.engine, missing=True)
        return True

    def finish(self) -> None:
        """Send slices that were decided after lost ones back to the gate: as after a retraction, they are
        compared with the watermark at their ledger offset."""
        for stream in sorted(self._undone):
            decide_in_order(self._workers, stream, "raw was damaged when the state was recovered")
