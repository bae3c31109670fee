"""Keeps the index of a stream current: each raw part within its retention has exactly one index part.

What is desired follows from raw, what exists from the names of the index parts; new events, retractions,
other declared paths and crashes are all handled by the difference. It never changes raw.
"""

from __future__ import annotations

import filecmp
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.engine import Engine
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import set_hash
from tidemill.model.time import Interval
from tidemill.outputs.index.extract import IndexUnit, build, build_index
from tidemill.outputs.index.table import in_folder, index_name, index_path, index_table
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.files import remove_tree
from tidemill.storage.tables.part_checksums import named_checksums
from tidemill.storage.tables.parts import StagedPart, read_footer, read_part
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)

_LEAST: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Indexed:
    """What a refresh did."""

    built: int = 0  # index parts
    removed: int = 0
    entries: int = 0  # in those that were built
    version: int = 0  # of the index table

    @property
    def idle(self) -> bool:
        return not self.built and not self.removed


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """An index part that differs from what raw gives."""

    part: str
    what: str


class Indexer:
    """The index of one stream. `raw` is used as it is: a caller that has committed to it must refresh it."""

    def __init__(self, warehouse: Path, stream: Stream, engine: Engine, raw: Table) -> None:
        self.stream = stream
        self.engine = engine
        self.raw = raw
        self.table = index_table(warehouse, stream.name, raw.partition_by)
        self._settled: tuple[int, int] | None = None  # versions of raw and index that were found to agree
        self._due: int | None = None  # when the oldest part leaves the index

    def refresh(self, now: int) -> Indexed:
        """Build what is missing and remove what is obsolete, in one commit. Cheap if there is nothing to
        do."""
        self.raw.refresh()
        self.table.refresh()
        versions = (self.raw.version, self.table.version)
        if self._settled == versions and (self._due is None or now < self._due):
            return Indexed(version=self.table.version)
        self.table.clean_staging()
        desired = self._desired(now)
        current = self.table.snapshot().by_name
        missing = [raw for path, raw in desired.items() if path not in current]
        gone = [part for path, part in current.items() if path not in desired]
        entries = self._replace(missing, gone, now) if missing or gone else 0
        self._settled = (versions[0], self.table.version)
        self._due = self._next_expiry(desired.values())
        return Indexed(len(missing), len(gone), entries, self.table.version)

    def rebuild(self, now: int, span: Interval | None = None) -> Indexed:
        """Make the index of the raw parts with events in the span (None: all) again from raw. What is equal
        to the byte stays as it is."""
        self.raw.refresh()
        self.table.refresh()
        self.table.clean_staging()
        self._settled = None
        desired = {path: raw for path, raw in self._desired(now).items() if touches(raw, span)}
        current = self.table.snapshot().by_name
        again = {path: raw for path, raw in desired.items() if path in current}
        built = self._build(list(again.values()))
        other = [
            current[path]
            for path, part in zip(again, built, strict=True)
            if not _same(warehouse_path(part.path), self.table.root / current[path].path)
        ]
        if other:  # removed first: a part with the name of a visible one would be refused
            self.table.commit([], other, info={"batch": "rebuild"}, now=now)
            log.warning(
                "%d index parts were not as raw has it", len(other), extra={"stream": self.stream.name}
            )
        self.table.clean_staging()
        done = self.refresh(now)
        return Indexed(len(built) + max(0, done.built - len(other)), done.removed, done.entries, done.version)

    def verify(self, now: int) -> list[IndexDifference]:
        """Make every index part again, outside the table, and compare bytes."""
        self.raw.refresh()
        self.table.refresh()
        desired = self._desired(now)
        current = self.table.snapshot().by_name
        found = [
            IndexDifference(path, f"is missing for {raw.path}")
            for path, raw in desired.items()
            if path not in current
        ]
        found += [IndexDifference(path, "belongs to no raw part") for path in current if path not in desired]
        folder = self.table.staging("verify")
        units = [
            _CheckUnit(self._unit(raw, folder), str(self.table.root / current[path].path))
            for path, raw in desired.items()
            if path in current
        ]
        try:
            found += self.engine.run(_check, units, "verify index", sum(raw.size for raw in desired.values()))
        finally:
            remove_tree(folder)
        return sorted(found, key=lambda difference: difference.part)

    # -- desired

    def _desired(self, now: int) -> dict[str, Part]:
        """The paths of the index parts that should exist, each with its raw part."""
        return desired_parts(self.stream, self.raw.snapshot().parts, now)

    def _next_expiry(self, parts: Iterable[Part]) -> int | None:
        kept = self.stream.retention.index
        if kept is None:
            return None
        return min((_newest(raw) + kept + 1 for raw in parts), default=None)

    # -- making it so

    def _replace(self, missing: Sequence[Part], gone: Sequence[Part], now: int) -> int:
        built = self._build(missing)
        failpoint("search.after_build")
        parts = self.table.publish(built)
        self.table.commit(parts, gone, info={"raw": str(self.raw.version)}, now=now)
        failpoint("search.after_commit")
        self.table.clean_staging()
        log.info(
            "indexed %d raw parts, dropped %d index parts", len(parts), len(gone),
            extra={"stream": self.stream.name},
        )  # fmt: skip
        return sum(part.rows for part in built)

    def _build(self, raw: Sequence[Part]) -> list[StagedPart]:
        if not raw:
            return []
        name = set_hash(part.path for part in raw)[:24]
        folder = self.table.staging(name)
        units = [self._unit(part, folder) for part in raw]
        return self.engine.run(build, units, "index", sum(part.size for part in raw))

    def _unit(self, raw: Part, folder: Path) -> IndexUnit:
        return IndexUnit(
            stream=self.stream.name,
            raw=str(self.raw.root / raw.path),
            raw_path=raw.path,
            partition=raw.partition,
            paths=self.stream.indexed,
            folder=str(folder),
            name=index_name(raw, self.stream.indexed),
        )


def desired_parts(stream: Stream, parts: Iterable[Part], now: int) -> dict[str, Part]:
    """The paths of the index parts that should exist, each with its raw part."""
    if not stream.indexed:
        return {}
    oldest = _LEAST if stream.retention.index is None else now - stream.retention.index
    kept = [raw for raw in parts if raw.rows and _newest(raw) >= oldest]
    return {index_path(raw, stream.indexed): raw for raw in kept}


@dataclass(frozen=True, slots=True)
class _CheckUnit:
    build: IndexUnit
    current: str


def _check(unit: _CheckUnit) -> Iterator[IndexDifference]:
    built = build_index(unit.build)
    path = in_folder(unit.build.partition, Path(unit.current).name)
    try:
        if not _same(warehouse_path(built.path), warehouse_path(unit.current)):
            yield IndexDifference(path, f"differs from what {unit.build.raw_path} gives")
    finally:
        warehouse_path(built.path).unlink()


def _same(built: Path, other: Path) -> bool:
    """Whether the other file has the same bytes; if an earlier version wrote it, the same rows and footer."""
    try:
        if filecmp.cmp(built, other, shallow=False):
            return True
        return named_checksums(other) is None and _same_content(built, other)
    except (FileNotFoundError, DamageError):
        return False
    except OSError as error:
        raise StorageError(
            f"cannot read: {error.strerror}",
            where=str(other),
            hint="check the disk, then run the same again",
        ) from error


def _same_content(one: Path, other: Path) -> bool:
    return read_footer(one) == read_footer(other) and read_part(one).equals(read_part(other))


def _newest(raw: Part) -> int:
    """An instant that no event of the part is newer than."""
    found = raw.maxs.get("event_time")
    return found if isinstance(found, int) else 2**62


def touches(raw: Part, span: Interval | None) -> bool:
    """Whether the part can have an event in the span (None: of all time)."""
    return span is None or raw.may_hold("event_time", span.start, span.end - 1)
