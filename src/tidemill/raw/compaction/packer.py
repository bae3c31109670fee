"""`pack` and `manifest`: packs the rows of many small slices into large sorted parts of raw, each slice once.

Running and explaining share one plan. It is decided here what is packed and when; `packing` does it without
changing or losing a row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidemill.formats.declared_columns import RawColumns, raw_columns
from tidemill.ingest.manifests import dataset_facts, facts_of, is_from_manifest
from tidemill.ingest.retraction_log import RetractionLog, is_deciding_again
from tidemill.model.slices import NewSlice, SliceEntry
from tidemill.model.time import MILLISECOND, format_instant
from tidemill.raw.compaction.column_rewrite import (
    RemadeColumns,
    StaleColumns,
    is_up_to_date,
    remake_columns,
    stale_columns,
)
from tidemill.raw.compaction.packing import PackedParts, Prepared, commit, pack_groups, prepare, source_of
from tidemill.raw.compaction.packing_folders import sweep
from tidemill.raw.compaction.selection import Group, PackedPart, fresh, groups, packed_parts, regrouped
from tidemill.raw.part_names import is_settled
from tidemill.storage import layout
from tidemill.storage.bucket_path import location
from tidemill.storage.tables.table import Table, tidy

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.raw.accept.batch import Acceptor
    from tidemill.storage.state.protocol import State

# Groups in one commit, or more small ones: each commit rewrites what waits beside them.
GROUPS_AT_ONCE: Final = 16
BYTES_AT_ONCE: Final = 64 << 20
UNDER_WAY: Final = 100 * MILLISECOND  # until a round checks again whether prepared parts are ready


@dataclass(frozen=True, slots=True)
class PackStep:
    """A group of slices that are packed together."""

    stream: str
    slices: Sequence[str]  # oldest first
    rows: int
    bytes: int  # about, of the parts that they are in
    parts_before: int  # parts that may hold their rows
    days: Sequence[str]  # that they may have rows of


@dataclass(frozen=True, slots=True)
class Packed:
    """The outcome of a step."""

    step: PackStep
    parts: Sequence[str]  # paths in the table
    bytes_after: int
    seconds: float

    @property
    def stream(self) -> str:
        return self.step.stream

    @property
    def slices(self) -> Sequence[str]:
        return self.step.slices

    @property
    def rows(self) -> int:
        return self.step.rows

    @property
    def bytes_before(self) -> int:
        return self.step.bytes


@dataclass(frozen=True, slots=True)
class PackRound:
    """What a round packed of a stream, and when to check again."""

    packed: Sequence[Packed]
    waiting: int  # slices that do not fill a group yet
    again: int  # microseconds

    @property
    def idle(self) -> bool:
        return not self.packed

    @property
    def under_way(self) -> bool:
        """Whether parts are being prepared in the background."""
        return self.again == UNDER_WAY


@dataclass(frozen=True, slots=True)
class _ReaderSource:
    """What the choice reads from, for readers."""

    stream: Stream
    state: State
    raw: Table


@dataclass(frozen=True, slots=True)
class _Choice:
    """The full groups of a stream, and how many slices are in none."""

    groups: Sequence[Group]
    waiting: int


_NOTHING: Final = _Choice((), 0)


@dataclass(frozen=True, slots=True)
class _LastCheck:
    """A check that found no full group."""

    version: int  # of raw
    accepted: int  # slices, ever
    waiting: int
    since: int
    until: int  # instants between which no check is needed, if nothing happens


@dataclass(frozen=True, slots=True)
class _PackJob:
    """Groups whose parts are written in the background."""

    groups: Sequence[Group]
    waiting: int  # slices, including these
    began: float
    prepared: Future[Prepared | None]


class Packer:
    """The packer of one warehouse. Parts are prepared by a thread; a later round commits them."""

    def __init__(self, warehouse: Warehouse, acceptor: Callable[[str], Acceptor]) -> None:
        self._warehouse = warehouse
        self._acceptor = acceptor
        self._last_check: dict[str, _LastCheck] = {}
        self._jobs: dict[str, _PackJob] = {}
        self._up_to_date: dict[str, tuple[int, RawColumns]] = {}  # version of raw and declaration, by stream
        self._background = ThreadPoolExecutor(1, thread_name_prefix="pack")

    def wait(self) -> bool:
        """Wait until no part is being prepared in the background. Returns whether one was; the next round
        commits it."""
        for job in self._jobs.values():
            job.prepared.exception()
        return bool(self._jobs)

    def close(self) -> None:
        """Discard what is prepared and not committed: it is chosen again later."""
        self._background.shutdown(wait=True, cancel_futures=True)
        for job in self._jobs.values():
            if not job.prepared.cancelled() and job.prepared.exception() is None:
                found = job.prepared.result()
                if found is not None:
                    found.discard()
        self._jobs.clear()

    # -- looking

    def plan(self, stream: str | None = None, *, rebuild: bool = False) -> list[PackStep]:
        """The groups of accepted slices that are full, and that `Mill.pack` would pack. Changes nothing."""
        return [
            _step(one.name, group)
            for one in self._streams(stream)
            for group in self._choice(one, rebuild=rebuild).groups
        ]

    def waiting(self, stream: str | None = None, *, rebuild: bool = False) -> dict[str, int]:
        """For each stream, how many slices with rows are in no full group yet."""
        return {one.name: self._choice(one, rebuild=rebuild).waiting for one in self._streams(stream)}

    def manifest(self, stream: str) -> dict[str, object]:
        """The manifest of a stream: the slices in each packed part, with rows and times."""
        declared = self._warehouse.project.stream(stream)
        raw = self._existing(declared)
        found = packed_parts(raw) if raw is not None else []
        slices = {entry.id: entry.slice for entry in self._warehouse.state.slices(stream)} if found else {}
        return {
            "dataset": {
                "name": declared.name,
                "description": declared.description,
                "table": location(layout.raw(self._warehouse.root, declared.name)),
                "version": raw.version if raw is not None else None,
                "event_time": declared.time_column,
                **dataset_facts(self._warehouse.state, declared.name),
            },
            "parts": [
                self._recorded(part, declared, slices)
                for part in sorted(found, key=lambda part: (part.min_time, part.path))
            ],
        }

    def _recorded(
        self, part: PackedPart, stream: Stream, slices: Mapping[str, NewSlice]
    ) -> dict[str, object]:
        """`feed_hashes` are those of the feed, slice by slice; null if a slice came in another way."""
        first, last = part.min_time // MILLISECOND, part.max_time // MILLISECOND
        column, keys = stream.time_column, stream.manifests.partition_by
        named = {} if column is None else {f"min_{column}": first, f"max_{column}": last}
        there = [slices.get(name) for name in part.slices]
        facts = facts_of(there[0].metadata) if there and there[0] is not None else {}
        return {
            "part": part.path,
            **({"partition": {key: facts.get(key) for key in keys}} if keys else {}),
            "slice_hashes": list(part.slices),
            "feed_hashes": [
                one.name if one is not None and is_from_manifest(one.name, one.metadata) else None
                for one in there
            ],
            "row_count": part.rows,
            "min_time": first,
            "max_time": last,
            **named,
            "created_at": format_instant(part.created_at),
        }

    # -- doing

    def pack(self, stream: Stream, now: int, *, rebuild: bool) -> list[Packed]:
        """Commit what was prepared, then pack the groups that are full; with `rebuild` all slices again. The
        caller must hold the tick lock, and have accepted what has landed."""
        if (raw := self._warehouse.existing("raw", stream.name)) is not None:
            sweep(raw.root)
        done = self._taken_up(stream, now)
        return done + self._carry_out(stream, self._choice(stream, rebuild=rebuild).groups, now)

    def pack_due(self, stream: Stream, now: int) -> PackRound | None:
        """In a round, which holds the lock: commit parts that are ready, and begin those of the next full
        groups in the background. None before anything was accepted."""
        raw = self._warehouse.existing("raw", stream.name)
        if raw is None:
            return None
        sweep(raw.root)
        if (job := self._jobs.get(stream.name)) is not None and not job.prepared.done():
            return PackRound((), job.waiting, UNDER_WAY)
        done = self._taken_up(stream, now)
        raw.refresh()
        accepted = self._warehouse.state.totals(stream.name)["accepted_slices"]
        last = self._last_check.pop(stream.name, None)
        if self._is_held_back(stream):
            return PackRound(done, 0, stream.pack.partial)
        if last is not None and (last.version, last.accepted) == (raw.version, accepted):
            if last.since <= now < last.until:
                self._last_check[stream.name] = last
                return PackRound(done, last.waiting, last.until - now)
            return self._checked(stream, raw, accepted, last.waiting, now, done)
        if last is not None and _is_short(stream, raw, last, accepted):
            return self._checked(stream, raw, accepted, last.waiting + accepted - last.accepted, now, done)
        choice = self._choice(stream)
        if choice.groups:
            waiting = choice.waiting + sum(len(group.slices) for group in choice.groups)
            self._begin(stream, _commits(choice.groups)[0], waiting, now)
            return PackRound(done, waiting, UNDER_WAY)
        return self._checked(stream, raw, accepted, choice.waiting, now, done)

    def _checked(
        self, stream: Stream, raw: Table, accepted: int, waiting: int, now: int, done: Sequence[Packed]
    ) -> PackRound:
        pause = stream.pack.partial if waiting else stream.pack.idle
        self._last_check[stream.name] = _LastCheck(raw.version, accepted, waiting, now, now + pause)
        return PackRound(done, waiting, pause)

    # -- columns

    def remake_due(self, stream: Stream, now: int) -> RemadeColumns | None:
        """In a round, which holds the lock: make the columns of some parts again, if they were written with
        another declaration. None before anything was accepted."""
        raw = self._warehouse.existing("raw", stream.name)
        if raw is None or stream.name in self._jobs or self._is_held_back(stream):
            return None
        raw.refresh()
        columns = raw_columns(stream)
        version = (raw.version, columns)
        if self._up_to_date.get(stream.name) == version or is_up_to_date(raw, columns):
            self._up_to_date[stream.name] = version
            return None
        done = remake_columns(self._acceptor(stream.name), now)
        if done.parts:
            tidy([self._acceptor(stream.name).raw], self._warehouse.project.engine.keep_replaced, now)
        return done

    def remake_all(self, stream: Stream, now: int) -> RemadeColumns:
        """Make the columns again of all parts that were written with another declaration. The caller must
        hold the tick lock and have caught up."""
        parts = rows = 0
        done = RemadeColumns(0, 0, StaleColumns())
        while (found := self._remade(stream, now)) is not None:
            parts, rows, done = parts + found.parts, rows + found.rows, found
            self._warehouse.progress(stream.name, "columns", rows / (rows + done.left.rows or 1))
            if not found.left.parts:
                break
        return replace(done, parts=parts, rows=rows)

    def _remade(self, stream: Stream, now: int) -> RemadeColumns | None:
        self.wait()
        self._taken_up(stream, now)
        return self.remake_due(stream, now)

    def stale(self, stream: str) -> StaleColumns:
        """What of raw has columns of another declaration. Changes nothing."""
        declared = self._warehouse.project.stream(stream)
        raw = self._existing(declared)
        return stale_columns(raw, raw_columns(declared)) if raw is not None else StaleColumns()

    # -- in the background

    def _begin(self, stream: Stream, groups: Sequence[Group], waiting: int, now: int) -> None:
        acceptor = self._acceptor(stream.name)
        acceptor.raw.refresh()
        source = source_of(acceptor)
        prepared = self._background.submit(prepare, source, groups, now)
        self._jobs[stream.name] = _PackJob(groups, waiting, time.perf_counter(), prepared)

    def _taken_up(self, stream: Stream, now: int) -> list[Packed]:
        """Commit what is prepared, once it is ready."""
        job = self._jobs.pop(stream.name, None)
        if job is None:
            return []
        prepared = job.prepared.result()
        if prepared is None:
            return []
        if self._is_held_back(stream):
            prepared.discard()
            return []
        acceptor = self._acceptor(stream.name)
        found = commit(acceptor, prepared, now)
        tidy([acceptor.raw], self._warehouse.project.engine.keep_replaced, now)
        return _packed(stream, job.groups, found, time.perf_counter() - job.began)

    def _is_held_back(self, stream: Stream) -> bool:
        """Whether a retraction is in progress, or slices it sent back still wait to be decided."""
        state = self._warehouse.state
        unfinished = RetractionLog(self._warehouse.root).unfinished(state, stream.name)
        is_lost = bool(self._warehouse.lost("raw", stream.name))  # which slices it holds cannot be read
        return unfinished is not None or is_deciding_again(state, stream.name) or is_lost

    # -- both

    def _streams(self, stream: str | None) -> list[Stream]:
        project = self._warehouse.project
        return [project.stream(stream)] if stream is not None else list(project.streams.values())

    def _existing(self, stream: Stream) -> Table | None:
        """The table, opened again: callers may be in several threads."""
        return Table.existing(layout.raw(self._warehouse.root, stream.name))

    def _choice(self, stream: Stream, *, rebuild: bool = False) -> _Choice:
        raw = self._existing(stream)
        if raw is None or self._is_held_back(stream):
            return _NOTHING
        partition = partial(_partition, stream.manifests.partition_by)
        waiting = fresh(
            _ReaderSource(stream, self._warehouse.state, raw), packed_too=rebuild, partition=partition
        )
        found = groups(waiting, stream.pack)
        left = len(waiting) - sum(len(group.slices) for group in found)
        return _Choice(regrouped(waiting, stream.pack, raw) if rebuild else found, left)

    def _carry_out(self, stream: Stream, chosen: Sequence[Group], now: int) -> list[Packed]:
        warehouse, done, passed = self._warehouse, list[Packed](), 0
        for some in _commits(chosen):
            warehouse.progress(stream.name, "pack", passed / len(chosen))
            passed += len(some)
            began = time.perf_counter()
            found = pack_groups(self._acceptor(stream.name), some, now)
            done += _packed(stream, some, found, time.perf_counter() - began)
        if done:
            warehouse.progress(stream.name, "pack", 1.0)
            tables = [self._acceptor(stream.name).raw]
            tidy(tables, warehouse.project.engine.keep_replaced, now)
        return done


def _packed(
    stream: Stream, groups: Sequence[Group], found: Sequence[PackedParts], seconds: float
) -> list[Packed]:
    by_slices = {one.slices: one for one in found}
    return [
        Packed(
            _step(stream.name, group),
            [part.path for part in one.parts],
            one.bytes_after,
            seconds / len(groups),
        )
        for group in groups
        if (one := by_slices.get(group.slices)) is not None
    ]


def _partition(keys: Sequence[str], entry: SliceEntry) -> str:
    """Equal for slices that may be packed together."""
    facts = facts_of(entry.slice.metadata) if keys else {}
    return json.dumps([facts.get(key) for key in keys])


def _commits(chosen: Sequence[Group]) -> list[list[Group]]:
    """Which groups go into one commit, in their order."""
    found: list[list[Group]] = []
    size = 0
    for group in chosen:
        if not found or (len(found[-1]) >= GROUPS_AT_ONCE and size >= BYTES_AT_ONCE):
            found.append([])
            size = 0
        found[-1].append(group)
        size += group.bytes
    return found


def _is_short(stream: Stream, raw: Table, last: _LastCheck, accepted: int) -> bool:
    """Whether what arrived since the last check cannot have filled a group. Opens no file."""
    if accepted < last.accepted:
        return False
    small = sum(part.size for part in raw.snapshot().parts if part.rows and not is_settled(part))
    return last.waiting + accepted - last.accepted < stream.pack.slices and small < stream.pack.bytes


def _step(stream: str, group: Group) -> PackStep:
    return PackStep(stream, group.slices, group.rows, group.bytes, len(group.parts), group.days)
