"""Chooses which slices of raw are packed together: so many, or so many bytes, oldest first, each once.

The rule is pure; its input is read from the log of raw, its parts and the ledger. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from tidemill.config.stream_sections import Pack
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import DAY, Interval, format_instant
from tidemill.raw.footers import BatchFooter, LargeRows, PackedFooter, packed_footer, raw_footer
from tidemill.raw.part_names import (
    batch_of,
    is_expired_tombstone,
    is_large,
    is_packed,
    is_settled,
    is_shared,
)
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.storage.state.protocol import Ledger, State

PAGE: Final = 500  # slices of the ledger that are read at once


@dataclass(frozen=True, slots=True)
class UnpackedSlice:
    """A slice with rows in raw, as input of the choice."""

    id: str
    seq: int  # ledger offset
    start: int  # start of what it covers, declared or else observed
    rows: int  # that are not packed
    bytes: int  # about, of the parts that they are in
    parts: tuple[str, ...] = ()  # parts that can hold them
    span: Interval | None = None  # of the event times of its rows
    partition: str = ""  # slices of different partitions are never packed together


@dataclass(frozen=True, slots=True)
class Group:
    """Slices that are packed together."""

    slices: tuple[str, ...]  # oldest first
    rows: int
    bytes: int
    parts: tuple[str, ...] = ()  # parts that can hold their rows
    days: tuple[str, ...] = ()  # that they may have rows of


def groups(waiting: Iterable[UnpackedSlice], pack: Pack) -> list[Group]:
    """Full groups, oldest slices first, each of one partition; the slices after the last full group wait. A
    group is full once it has so many slices, or so many bytes, whichever comes first."""
    found: list[Group] = []
    open_groups: dict[str, list[UnpackedSlice]] = {}
    sizes: dict[str, int] = {}
    for each in sorted(waiting, key=_age):
        current = open_groups.setdefault(each.partition, [])
        current.append(each)
        sizes[each.partition] = sizes.get(each.partition, 0) + each.bytes
        if len(current) >= pack.slices or sizes[each.partition] >= pack.bytes:
            found.append(_group(current))
            del open_groups[each.partition], sizes[each.partition]
    return found


def _age(one: UnpackedSlice) -> tuple[int, int]:
    return one.start, one.seq


def _group(members: Sequence[UnpackedSlice]) -> Group:
    return Group(
        slices=tuple(one.id for one in members),
        rows=sum(one.rows for one in members),
        bytes=sum(one.bytes for one in members),
        parts=tuple(sorted({path for one in members for path in one.parts})),
        days=_days([one.span for one in members if one.span is not None]),
    )


def _days(spans: Sequence[Interval]) -> tuple[str, ...]:
    found = {day for span in spans for day in range(span.start // DAY, -(-span.end // DAY))}
    return tuple(format_instant(day * DAY)[:10] for day in sorted(found))


# -- what there is


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A part whose rows are packed, by packing or by being large from the start. Instants are
    microseconds."""

    path: str  # relative to the table
    slices: tuple[str, ...]
    rows: int
    bytes: int
    min_time: int
    max_time: int
    created_at: int


def packed_parts(raw: Table) -> list[PackedPart]:
    """The packed parts of a table, by path, without those that hold rows which still wait."""
    found = []
    for part in raw.snapshot().parts:
        if part.rows and is_settled(part):
            footer = raw_footer(raw.root / part.path)
            facts = footer.large if isinstance(footer, BatchFooter) else footer
            assert isinstance(facts, LargeRows | PackedFooter), part.path
            times = (facts.min_time, facts.max_time, facts.created_at)
            found.append(PackedPart(part.path, facts.holds, part.rows, part.size, *times))
    return found


@dataclass(frozen=True, slots=True)
class Settled:
    """What is packed: whole slices by packing, and rows of slices in parts that were large from the start."""

    slices: frozenset[str]
    rows: Mapping[str, int]

    def waiting(self, entry: SliceEntry) -> int:
        """Accepted rows of a slice that are not packed."""
        return 0 if entry.id in self.slices else entry.counts.accepted - self.rows.get(entry.id, 0)


def settled_in(raw: Table) -> Settled:
    slices: set[str] = set()
    rows: dict[str, int] = {}
    for part in raw.snapshot().parts:
        if is_packed(part):
            slices.update(packed_footer(raw.root / part.path).holds)
        elif is_large(part):
            for name, count in LargeRows.from_footer(read_footer(raw.root / part.path)).rows.items():
                rows[name] = rows.get(name, 0) + count
    return Settled(frozenset(slices), rows)


class SelectionSource(Protocol):
    """What the choice reads from. An acceptor is one; a reader needs no more."""

    @property
    def stream(self) -> Stream: ...
    @property
    def state(self) -> State: ...
    @property
    def raw(self) -> Table: ...


def fresh(
    source: SelectionSource,
    *,
    packed_too: bool = False,
    partition: Callable[[SliceEntry], str] = lambda _entry: "",
) -> list[UnpackedSlice]:
    """Accepted slices with rows in raw that are not packed yet (with `packed_too` all of them), oldest first;
    none while slices wait to be decided again. `partition` says which may be packed together."""
    state, stream, raw = source.state, source.stream.name, source.raw
    if any(entry.attempt for entry in state.pending(stream, 1)[:1]):
        return []
    raw.refresh()
    offsets = _Offsets(raw, packed_too=packed_too)
    if not offsets.parts:
        return []
    settled = Settled(frozenset(), {}) if packed_too else settled_in(raw)
    entries = list(_with_rows(state, stream, settled, offsets))
    where = {entry.id: offsets.of(entry) for entry in entries}
    rows = {entry.id: settled.waiting(entry) for entry in entries}
    claimed: dict[str, int] = {}  # rows of slices that may be in a part
    for entry in entries:
        for part in where[entry.id]:
            claimed[part.path] = claimed.get(part.path, 0) + rows[entry.id]
    found = [
        replace(_waiting(entry, rows[entry.id], where[entry.id], claimed), partition=partition(entry))
        for entry in entries
        if where[entry.id]
    ]
    return sorted(found, key=_age)


def _with_rows(state: Ledger, stream: str, settled: Settled, offsets: _Offsets) -> Iterator[SliceEntry]:
    """Accepted slices with rows that are not packed, newest first. It stops once all such rows were found, so
    that a long history need not be read for a few slices at its end."""
    left, before = offsets.rows, None
    while left is None or left > 0:
        page = state.slices(stream, SliceStatus.ACCEPTED, newest=True, limit=PAGE, before=before)
        if not page:
            return
        before = page[-1].seq
        for entry in page:
            if waiting := settled.waiting(entry):
                left = None if left is None else left - waiting
                yield entry


class _Offsets:
    """Parts by the slices whose rows they can hold."""

    def __init__(self, raw: Table, *, packed_too: bool) -> None:
        every = raw.snapshot().parts
        self.parts = [part for part in every if part.rows]
        # For the slices that are searched; None if the ledger counts rows that have expired.
        there = sum(part.rows for part in self.parts if packed_too or not is_settled(part))
        self.rows = None if any(map(is_expired_tombstone, every)) else there
        self._by_batch: dict[str, list[Part]] = {}
        self._by_slice: dict[str, list[Part]] = {}
        for part in self.parts:
            if is_shared(part):
                footer = packed_footer(raw.root / part.path)
                for name in footer.rest + (footer.holds if packed_too else ()):
                    self._by_slice.setdefault(name, []).append(part)
            elif (batch := batch_of(part)) is not None and (packed_too or not is_large(part)):
                self._by_batch.setdefault(batch, []).append(part)

    def of(self, entry: SliceEntry) -> list[Part]:
        span = entry.observed
        if span is None:
            return []
        own = [
            part
            for part in self._by_batch.get(str(entry.batch), ())
            if part.may_hold("event_time", span.start, span.end - 1)
            and part.may_hold("slice", entry.id, entry.id)
        ]
        return [*own, *self._by_slice.get(entry.id, ())]


def _waiting(
    entry: SliceEntry, rows: int, parts: Sequence[Part], claimed: Mapping[str, int]
) -> UnpackedSlice:
    bounds = entry.bounds
    assert bounds is not None, entry.id
    size = sum(part.size * rows // claimed[part.path] for part in parts)
    paths = tuple(part.path for part in parts)
    return UnpackedSlice(entry.id, entry.seq, bounds.start, rows, size, paths, entry.observed)


def regrouped(waiting: Iterable[UnpackedSlice], pack: Pack, raw: Table) -> list[Group]:
    """All slices grouped again, from the oldest, except for groups that already are as they would be."""
    return [group for group in groups(waiting, pack) if not _is_current(group, raw)]


def _is_current(group: Group, raw: Table) -> bool:
    """Whether the slices of a group are already packed together, without others, and in order of time."""
    live = raw.snapshot().by_path
    parts = [live[path] for path in group.parts if path in live]
    if not all(is_packed(part) for part in parts):
        return False
    footers = [packed_footer(raw.root / part.path) for part in parts]
    held = [set(footer.holds) for footer in footers]
    spans = sorted((one.min_time, one.max_time) for one in footers)
    apart = all(before[1] < after[0] for before, after in pairwise(spans))
    return apart and set().union(*held) == set(group.slices)
