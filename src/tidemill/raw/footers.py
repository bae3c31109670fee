"""The footers of parts of raw and quarantine, as types: parts of a batch, packed parts, and parts without
rows that replace removed ones (stand-ins).

A lost ledger is rebuilt from these, so the keys on disk stay as they are. Only `raw_footer` reads a file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from tidemill.formats.declared_columns import LEFT_OUT, Column, RawColumn, RawColumns
from tidemill.model.levels import BASE
from tidemill.model.slices import Repeat
from tidemill.storage.state.protocol import ClockState, Progress
from tidemill.storage.tables.footers import (
    Footer,
    as_fields,
    fields_in,
    items_in,
    number_in,
    optional_number_in,
    text_in,
    texts_in,
)
from tidemill.storage.tables.parts import FOOTER_KEY, read_footer

if TYPE_CHECKING:
    import pyarrow.parquet as pq

RAW_PART: Final = "raw"  # kinds of footers: a part of a batch …
QUARANTINE_PART: Final = "quarantine"  # … and its records that were not accepted
PACKED: Final = "packed"  # rows of several batches; also how a stand-in marks parts whose rows moved there
TOMBSTONE: Final = "word"  # a stand-in for parts that were packed
COLUMNS: Final = "columns"  # key: the declaration of the part's columns
EXPIRED: Final = "expired"  # a stand-in for expired parts, and how it marks those
_NO_BATCH: Final[dict[str, object]] = {"batch": "", "slices": [], "runs": [], "clocks": [], "progress": None}


@dataclass(frozen=True, slots=True)
class SliceSummary:
    """What a part records of a slice: enough to enter its outcome into a new ledger."""

    id: str
    records: int
    duplicate: int
    conflict: int
    rejects: Mapping[str, int]  # by reason
    watermark: int | None
    error: str | None  # why it failed
    decision: int = 0
    by_storage: bool = False  # for one that failed: because of the disk, so it is tried again
    failed_as: str | None = None
    retried: int = 0
    repeats: tuple[Repeat, ...] = ()

    def to_footer(self) -> dict[str, object]:
        failed = {"by_storage": self.by_storage, "failed_as": self.failed_as} if self.error else {}
        return {
            "id": self.id,
            "records": self.records,
            "duplicate": self.duplicate,
            "conflict": self.conflict,
            "rejects": dict(self.rejects),
            "watermark": self.watermark,
            "error": self.error,
            "judgement": self.decision,
            **failed,
            **({"repeats": [repeat.as_fields() for repeat in self.repeats]} if self.repeats else {}),
            **({"retried": self.retried} if self.retried else {}),
        }

    @staticmethod
    def from_footer(footer: Footer) -> SliceSummary:
        """Read it. Earlier versions decided a slice once, and retried none."""
        rejects = fields_in(footer, "rejects")
        repeats = items_in(footer, "repeats") if "repeats" in footer else []
        error, failed_as = footer.get("error"), footer.get("failed_as")
        return SliceSummary(
            id=text_in(footer, "id"),
            records=number_in(footer, "records"),
            duplicate=number_in(footer, "duplicate"),
            conflict=number_in(footer, "conflict"),
            rejects={reason: number_in(rejects, reason) for reason in rejects},
            watermark=optional_number_in(footer, "watermark"),
            error=None if error is None else str(error),
            decision=number_in(footer, "judgement", 0),
            by_storage=footer.get("by_storage") is True,
            failed_as=None if failed_as is None else str(failed_as),
            retried=number_in(footer, "retried", 0),
            repeats=tuple(Repeat.from_fields(as_fields(one, "repeats")) for one in repeats),
        )


@dataclass(frozen=True, slots=True)
class ProgressAt:
    """The progress of a stream, with the version of raw that records it: the last one counts."""

    version: int
    progress: Progress

    def to_footer(self) -> dict[str, object]:
        return {**asdict(self.progress), "version": self.version}

    @staticmethod
    def from_footer(footer: Footer) -> ProgressAt:
        known = {one.name for one in fields(Progress)} & footer.keys()
        numbers = {name: number_in(footer, name) for name in known - {"watermark"}}
        progress = Progress(optional_number_in(footer, "watermark"), **numbers)
        return ProgressAt(number_in(footer, "version"), progress)


@dataclass(frozen=True, slots=True)
class LargeRows:
    """Further facts of a part that was large when its batch was accepted, and thus counts as packed."""

    rows: Mapping[str, int]  # by slice
    min_time: int
    max_time: int
    created_at: int

    @property
    def holds(self) -> tuple[str, ...]:
        return tuple(sorted(self.rows))

    def to_footer(self) -> dict[str, object]:
        return {
            "holds": list(self.holds),
            "rows_of": dict(sorted(self.rows.items())),
            "min_time": self.min_time,
            "max_time": self.max_time,
            "created_at": self.created_at,
        }

    @staticmethod
    def from_footer(footer: Footer) -> LargeRows:
        rows = fields_in(footer, "rows_of")
        return LargeRows(
            rows={name: number_in(rows, name) for name in rows},
            min_time=number_in(footer, "min_time"),
            max_time=number_in(footer, "max_time"),
            created_at=number_in(footer, "created_at"),
        )


@dataclass(frozen=True, slots=True)
class BatchFooter:
    """The footer of a part of raw or quarantine that one batch wrote. Facts about the batch as a whole are in
    one of its parts, and so is each slice."""

    stream: str
    batch: str
    slices: tuple[SliceSummary, ...] = ()
    runs: tuple[str, ...] = ()  # of accepted ids, without suffix
    clocks: tuple[ClockState, ...] = ()
    progress: ProgressAt | None = None
    large: LargeRows | None = None
    kind: str = RAW_PART
    reading: str = ""  # how records were read, by `reading_of`; empty in earlier versions
    columns: RawColumns | None = None  # the declaration of its columns; None in earlier versions

    def for_next_part(self) -> BatchFooter:
        """The footer for the next part of the same rows, without what is recorded once."""
        return replace(self, slices=(), runs=(), clocks=(), progress=None)

    def to_footer(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "stream": self.stream,
            "batch": self.batch,
            "slices": [summary.to_footer() for summary in self.slices],
            "runs": list(self.runs),
            "clocks": [asdict(clock) for clock in self.clocks],
            "progress": self.progress.to_footer() if self.progress is not None else None,
            **({"reading": self.reading} if self.reading else {}),
            **({COLUMNS: self.columns.to_footer()} if self.columns is not None else {}),
            **(self.large.to_footer() if self.large is not None else {}),
        }

    @staticmethod
    def from_footer(footer: Footer) -> BatchFooter:
        """Read it. Earlier versions had no progress, and no time of the last arrival of a source."""
        progress = footer.get("progress")
        clocks = (as_fields(one, "clocks") for one in items_in(footer, "clocks"))
        return BatchFooter(
            stream=text_in(footer, "stream", ""),
            batch=text_in(footer, "batch"),
            slices=tuple(
                SliceSummary.from_footer(as_fields(one, "slices")) for one in items_in(footer, "slices")
            ),
            runs=texts_in(footer, "runs"),
            clocks=tuple(
                ClockState(
                    text_in(one, "source"),
                    number_in(one, "max_seen"),
                    number_in(one, "watermark"),
                    number_in(one, "arrival", 0),
                )
                for one in clocks
            ),
            progress=None if progress is None else ProgressAt.from_footer(as_fields(progress, "progress")),
            large=LargeRows.from_footer(footer) if "rows_of" in footer else None,
            kind=text_in(footer, "kind", RAW_PART),
            reading=text_in(footer, "reading", ""),
            columns=declared_by(footer),
        )


@dataclass(frozen=True, slots=True)
class PackedFooter:
    """The footer of a part with rows of several batches. A stand-in has the records of those."""

    stream: str
    holds: tuple[str, ...]  # slices whose rows it has, and that are packed thereby
    rest: tuple[str, ...]  # slices whose rows it has, and that still wait to be packed
    batches: Mapping[str, Sequence[str]]  # which of both belong to which batch
    created_at: int
    rows: int = 0
    min_time: int = 0
    max_time: int = 0
    columns: RawColumns | None = None  # the declaration of its columns; None in earlier versions

    @staticmethod
    def of(stream: str, slices: Mapping[str, str], created_at: int, *, packed: bool) -> PackedFooter:
        """For a part with rows of these slices (and their batches), which this part packs, or which still
        wait."""
        batches: dict[str, list[str]] = {}
        for name, batch in sorted(slices.items()):
            batches.setdefault(batch, []).append(name)
        names = tuple(sorted(slices))
        return PackedFooter(stream, names if packed else (), () if packed else names, batches, created_at)

    def without(self, batches: Collection[str]) -> PackedFooter:
        """For the part without the rows of these batches."""
        left = {batch: names for batch, names in self.batches.items() if batch not in batches}
        slices = {name for names in left.values() for name in names}
        return replace(
            self,
            holds=tuple(name for name in self.holds if name in slices),
            rest=tuple(name for name in self.rest if name in slices),
            batches=left,
        )

    def to_footer(self) -> dict[str, object]:
        return {
            **_NO_BATCH,
            "kind": PACKED,
            "stream": self.stream,
            "holds": list(self.holds),
            "rest": list(self.rest),
            "batches": {batch: list(names) for batch, names in self.batches.items()},
            "created_at": self.created_at,
            "rows": self.rows,
            "min_time": self.min_time,
            "max_time": self.max_time,
            **({COLUMNS: self.columns.to_footer()} if self.columns is not None else {}),
        }

    @staticmethod
    def from_footer(footer: Footer) -> PackedFooter:
        batches = fields_in(footer, "batches")
        return PackedFooter(
            stream=text_in(footer, "stream", ""),
            holds=texts_in(footer, "holds"),
            rest=texts_in(footer, "rest"),
            batches={batch: texts_in(batches, batch) for batch in batches},
            created_at=number_in(footer, "created_at"),
            rows=number_in(footer, "rows"),
            min_time=number_in(footer, "min_time"),
            max_time=number_in(footer, "max_time"),
            columns=declared_by(footer),
        )


@dataclass(frozen=True, slots=True)
class GonePart:
    """A part that was packed or has expired, as its stand-in records it."""

    footer: Footer  # of that part, verbatim, except for its columns
    accepted: Mapping[str, int]  # rows by slice; so are the others
    late: Mapping[str, int]
    bounds: Mapping[str, tuple[int, int]]  # first and last event time
    steps: Mapping[str, Sequence[int]] = field(default_factory=dict)  # base tiles, as `steps_of` has them
    tiles: Mapping[str, Sequence[int]] = field(default_factory=dict)  # in earlier versions: one by one
    path: str = ""  # its path in the table

    @property
    def batch(self) -> str:
        return text_in(self.footer, "batch")

    @property
    def is_packed(self) -> bool:
        return self.footer.get("kind") == PACKED

    def former_footer(self) -> BatchFooter | PackedFooter:
        """The footer it had."""
        return (PackedFooter if self.is_packed else BatchFooter).from_footer(self.footer)

    def tiles_of_slices(self) -> Iterator[tuple[str, list[int]]]:
        """The starts of the base tiles of each slice."""
        yield from ((name, list(starts)) for name, starts in self.tiles.items())
        for name, (first, *steps) in self.steps.items():
            apart = np.repeat(np.array(steps[::2], np.int64), steps[1::2])
            yield name, (np.cumsum(np.append(first, apart)) * BASE.tile).tolist()

    def to_footer(self) -> dict[str, object]:
        return {
            "path": self.path,
            "footer": dict(self.footer),
            "accepted": dict(self.accepted),
            "late": dict(self.late),
            "bounds": {name: list(bounds) for name, bounds in self.bounds.items()},
            **({"tiles": {name: list(starts) for name, starts in self.tiles.items()}} if self.tiles else {}),
            **({"steps": dict(self.steps)} if self.steps or not self.tiles else {}),
        }

    @staticmethod
    def from_footer(footer: Footer) -> GonePart:
        accepted, late = fields_in(footer, "accepted"), fields_in(footer, "late")
        bounds = fields_in(footer, "bounds")
        return GonePart(
            footer=fields_in(footer, "footer"),
            accepted={name: number_in(accepted, name) for name in accepted},
            late={name: number_in(late, name) for name in late},
            bounds={name: _pair(bounds, name) for name in bounds},
            steps=_numbers(footer, "steps"),
            tiles=_numbers(footer, "tiles"),
            path=text_in(footer, "path", ""),
        )


@dataclass(frozen=True, slots=True)
class StandInFooter:
    """The footer of a part without rows that replaces removed parts."""

    stream: str
    kind: str  # TOMBSTONE or EXPIRED
    progress: ProgressAt | None  # when it was written
    packed: tuple[GonePart, ...] = ()
    expired: tuple[GonePart, ...] = ()
    keys: tuple[str, ...] = ()  # files with the ids of expired events

    def recorded(self) -> list[GonePart]:
        """Parts that had records of their batch. Packed ones that expired had none: only their rows are
        recorded."""
        return [*self.packed, *(gone for gone in self.expired if not gone.is_packed)]

    def to_footer(self) -> dict[str, object]:
        footer = {
            **_NO_BATCH,
            "kind": self.kind,
            "stream": self.stream,
            "progress": self.progress.to_footer() if self.progress is not None else None,
        }
        if self.kind == EXPIRED:
            footer["keys"] = sorted(self.keys)
            footer[EXPIRED] = [gone.to_footer() for gone in self.expired]
        if self.packed or self.kind == TOMBSTONE:
            footer[PACKED] = [gone.to_footer() for gone in self.packed]
        return footer

    @staticmethod
    def from_footer(footer: Footer) -> StandInFooter:
        progress = footer.get("progress")
        return StandInFooter(
            stream=text_in(footer, "stream", ""),
            kind=text_in(footer, "kind"),
            progress=None if progress is None else ProgressAt.from_footer(as_fields(progress, "progress")),
            packed=_gone_parts(footer, PACKED),
            expired=_gone_parts(footer, EXPIRED),
            keys=texts_in(footer, "keys") if "keys" in footer else (),
        )


RawFooter = BatchFooter | PackedFooter | StandInFooter


def from_footer(footer: Footer) -> RawFooter:
    """The footer of any part of raw or quarantine."""
    if footer.get("kind") == PACKED:
        return PackedFooter.from_footer(footer)
    if EXPIRED in footer or PACKED in footer:
        return StandInFooter.from_footer(footer)
    return BatchFooter.from_footer(footer)


def raw_footer(path: Path | str) -> RawFooter:
    return from_footer(read_footer(path))


def packed_footer(path: Path | str) -> PackedFooter:
    """The footer of a packed part."""
    return PackedFooter.from_footer(read_footer(path))


def stand_in_footer(path: Path | str) -> StandInFooter:
    """The footer of a stand-in."""
    return StandInFooter.from_footer(read_footer(path))


def declared_by(footer: Footer) -> RawColumns | None:
    """The declaration of a part's columns; None if it has none."""
    if COLUMNS not in footer:
        return None
    fields = fields_in(footer, COLUMNS)
    columns = (as_fields(one, "fields") for one in items_in(fields, "fields"))
    misfits, rounded = (texts_in(fields, key) if key in fields else () for key in ("misfits", "rounded"))
    left_out = fields_in(fields, LEFT_OUT) if LEFT_OUT in fields else {}
    return RawColumns(
        tuple(map(_column, columns)),
        frozenset(misfits),
        frozenset(rounded),
        keeps_payload=LEFT_OUT not in fields,
        spellings=tuple((name, text_in(left_out, name)) for name in left_out),
    )


def declared_in(file: pq.ParquetFile, path: str) -> RawColumns | None:
    """The declaration of an open part's columns; None if it has none."""
    return declared_with(file.metadata, path)


def declared_with(metadata: pq.FileMetaData, path: str) -> RawColumns | None:
    """The same, of a part with this metadata."""
    return _declared(path, (metadata.metadata or {}).get(FOOTER_KEY, b"{}"))


@lru_cache(maxsize=4096)
def _declared(_path: str, footer: bytes) -> RawColumns | None:
    return declared_by(json.loads(footer))


def _column(entry: Footer) -> RawColumn:
    items, zone = (text_in(entry, key) if key in entry else None for key in ("items", "zone"))
    column = Column(text_in(entry, "name"), text_in(entry, "type"), number_in(entry, "scale", 0), items, zone)
    return RawColumn(column, texts_in(entry, "path"))


def _gone_parts(footer: Footer, why: str) -> tuple[GonePart, ...]:
    recorded = items_in(footer, why) if why in footer else []
    return tuple(GonePart.from_footer(as_fields(one, why)) for one in recorded)


def _pair(footer: Footer, key: str) -> tuple[int, int]:
    first, last = (int(str(one)) for one in items_in(footer, key))
    return first, last


def _numbers(footer: Footer, key: str) -> dict[str, list[int]]:
    found = fields_in(footer, key) if key in footer else {}
    return {name: cast(list[int], items_in(found, name)) for name in found}
