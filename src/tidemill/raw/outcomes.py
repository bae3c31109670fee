"""The outcome of an ingestion: of each of its events, once its slice went through the gate.

Nothing is decided here. What raw or quarantine no longer show is `unknown`, never a duplicate by default; a
slice that is being retracted has the status `landed`, like one that waits for the gate.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from tidemill.model.errors import StorageError
from tidemill.model.gateway import Receipt
from tidemill.model.slices import RecordOutcome, Reject, SliceEntry, SliceStatus
from tidemill.raw.accept.decisions import KINDS, UNKNOWN, Decisions, read_decisions

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse

CACHE_BYTES: Final = 32 << 20  # cache of slices that were asked for last
_OVERHEAD: Final = 2048  # of a slice in the cache, whatever it holds
_ATTEMPTS: Final = 3  # attempts at a slice that changes while it is read
_GONE: Final = "its row has expired, or was replayed from quarantine: its outcome is not known"


class Status(StrEnum):
    """The progress of an ingestion."""

    LANDED = "landed"  # in the ledger, and waits for the gate, or for its storage
    DECIDED = "decided"  # each event has its outcome
    FAILED = "failed"  # its slice cannot be read, so none of its events was accepted
    RETRACTED = "retracted"  # retracted: as if it had never arrived


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """The outcome of one event; `index` is its position in the request, from 0."""

    index: int
    event_id: str | None  # None: it has none, or it is unknown
    outcome: str  # accepted, duplicate, conflict, rejected; unknown if it can no longer be found
    code: str | None = None  # conflict, or why it was rejected
    detail: str | None = None
    content_hash: str | None = None  # for a conflict: its own, and that of the accepted event
    accepted_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome of an ingestion; `counts` by outcome, without zeros."""

    status: Status
    counts: Mapping[str, int] = field(default_factory=dict)
    outcomes: tuple[EventOutcome, ...] = ()


def decided(warehouse: Warehouse, receipt: Receipt, *, each: bool = True) -> Decided:
    """The outcome; without `each`, only counts. Thread-safe."""
    with _OPENING:
        outcomes = _OUTCOMES.get(warehouse)
        if outcomes is None:
            outcomes = _OUTCOMES[warehouse] = Outcomes(warehouse)
    return outcomes.decided(receipt, each=each)


class Outcomes:
    """Outcomes of one warehouse, with a cache of slices. Thread-safe."""

    def __init__(self, warehouse: Warehouse, cache_bytes: int = CACHE_BYTES) -> None:
        project = warehouse.project
        self._project, self._state, self._expiries = project, warehouse.state, warehouse.expiries
        self._allowed = cache_bytes
        self._guard = threading.Lock()
        self._known: OrderedDict[_Key, Decisions] = OrderedDict()
        self._held = 0
        self._reading: dict[_Key, threading.Lock] = {}
        self._readers = warehouse.readers

    @property
    def held(self) -> int:
        """Bytes used by the cache."""
        return self._held

    def decided(self, receipt: Receipt, *, each: bool = True) -> Decided:
        for _ in range(_ATTEMPTS):
            entry = self._entry(receipt)
            if entry.status is SliceStatus.RETRACTED:
                return Decided(Status.RETRACTED)
            if entry.status is SliceStatus.FAILED and entry.retry_at is None:
                return _failed(receipt, entry, each=each)
            if entry.status in (SliceStatus.PENDING, SliceStatus.FAILED):
                return Decided(Status.LANDED)
            found = self._decisions(entry)
            if found is not None:
                return _answer(receipt, found, each=each)
        return Decided(Status.LANDED)

    def _entry(self, receipt: Receipt) -> SliceEntry:
        entry = self._state.slice(receipt.slice)
        if entry is None:
            raise StorageError(
                f"the ledger does not know slice {receipt.slice[:12]}, in which {receipt.id} landed",
                hint="run `tidemill recover` to rebuild the state from the warehouse",
            )
        return entry

    def _decisions(self, entry: SliceEntry) -> Decisions | None:
        """None while it is being retracted, or sent back to the gate."""
        key = (entry.id, entry.attempt, entry.decision)
        with self._guard:
            if (known := self._recent(key)) is not None:
                return known
            one_reads = self._reading.setdefault(key, threading.Lock())
        with one_reads:  # many may wait for the same slice: the first reads it for all
            with self._guard:
                if (known := self._recent(key)) is not None:
                    return known
            try:
                found = self._read(entry)
            finally:
                with self._guard:
                    self._reading.pop(key, None)
            if found.accepted_rows < entry.counts.accepted and not self._may_have_expired(entry):
                return None
            if found.whole:  # counts that do not add up may be about to change
                self._keep(key, found)
            return found

    def _recent(self, key: _Key) -> Decisions | None:
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    def _keep(self, key: _Key, found: Decisions) -> None:
        with self._guard:
            if key in self._known:
                return
            self._known[key] = found
            self._held += found.nbytes + _OVERHEAD
            while self._held > self._allowed:
                _, gone = self._known.popitem(last=False)
                self._held -= gone.nbytes + _OVERHEAD

    def _read(self, entry: SliceEntry) -> Decisions:
        stream = self._project.stream(entry.slice.stream)
        raw, quarantine = (
            self._readers.snapshot("raw", stream.name),
            self._readers.snapshot("quarantine", stream.name),
        )
        return read_decisions(self._project.warehouse, stream, entry, raw, quarantine)

    def _may_have_expired(self, entry: SliceEntry) -> bool:
        seal = self._expiries.seal(entry.slice.stream)
        return seal is not None and entry.observed is not None and entry.observed.start < seal


_Key = tuple[str, int, int]  # slice, attempt, decision: only what went through the gate is kept
_OUTCOMES: Final[WeakKeyDictionary[Warehouse, Outcomes]] = WeakKeyDictionary()
_OPENING: Final = threading.Lock()


def _failed(receipt: Receipt, entry: SliceEntry, *, each: bool) -> Decided:
    rejected, code = RecordOutcome.REJECTED.value, Reject.MALFORMED.value
    outcomes = (
        EventOutcome(index, None, rejected, code, entry.error)
        for index in range(receipt.records if each else 0)
    )
    return Decided(Status.FAILED, {rejected: receipt.records}, tuple(outcomes))


def _answer(receipt: Receipt, found: Decisions, *, each: bool) -> Decided:
    first, behind = receipt.first - 1, receipt.first - 1 + receipt.records
    kinds = [KINDS[kind] for kind in found.kinds[first:behind].tolist()]
    kinds += [UNKNOWN] * (receipt.records - len(kinds))
    if receipt.repeated:
        kinds = [
            RecordOutcome.DUPLICATE.value if kind == RecordOutcome.ACCEPTED.value else kind for kind in kinds
        ]
    counts = Counter(kinds)
    return Decided(
        Status.DECIDED,
        {kind: counts[kind] for kind in (*KINDS[1:], UNKNOWN) if counts[kind]},
        tuple(_outcomes(kinds, first, found)) if each else (),
    )


def _outcomes(kinds: list[str], first: int, found: Decisions) -> list[EventOutcome]:
    ids = found.ids[first : first + len(kinds)].to_pylist()
    ids += [None] * (len(kinds) - len(ids))
    low, high = found.lines.searchsorted([first + 1, first + len(kinds) + 1])
    refused = {row["line"]: row for row in found.refused.slice(low, high - low).to_pylist()}
    outcomes = []
    for index, (kind, name) in enumerate(zip(kinds, ids, strict=True)):
        row = refused.get(first + index + 1)
        if row is not None:
            values = (row["reason"], row["detail"], row["content_hash"], row["accepted_hash"])
            outcomes.append(EventOutcome(index, name, kind, *values))
        elif kind == RecordOutcome.REJECTED.value:
            outcomes.append(EventOutcome(index, name, kind, found.code))
        elif kind == RecordOutcome.CONFLICT.value:
            outcomes.append(EventOutcome(index, name, kind, kind))
        else:
            outcomes.append(EventOutcome(index, name, kind, None, _GONE if kind == UNKNOWN else None))
    return outcomes
