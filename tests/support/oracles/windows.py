"""What must become of windows, said as simply as it can be: every window is judged anew at every tick.

It never imports the engine and never tries to be fast; where the two differ, one of them is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple

from tests.support.oracles.oracle import Event, Oracle, check, lookup
from tests.support.oracles.stream import OracleField, OracleStream
from tests.support.oracles.strictjson import Json, Number, canonical

from tidemill.model.errors import InputError
from tidemill.model.slices import contribution_name, set_hash, slice_id
from tidemill.model.time import SECOND, Interval
from tidemill.model.windows import Member

LEADING: Final = ("event_time", "tenant", "event_id")  # the first columns of every dataset

DatasetValue = str | int | float | bool | Decimal | None
DatasetRow = dict[str, DatasetValue]  # by column, in the order of the columns


@dataclass(frozen=True, slots=True)
class OracleRules:
    """What a stream says of its windows; all of it in microseconds."""

    span: int
    stc: int = 0
    allow_incomplete: bool = False
    gap_tolerance: int = SECOND
    max_lateness: int = 0


# --- a script: what happens, in the order in which it happens ------------------------------------


class Land(NamedTuple):
    """A slice arrives."""

    slice: str
    records: tuple[bytes, ...]
    at: int
    declared: Interval | None = None
    source: str = "default"

    @classmethod
    def of(
        cls,
        stream: str,
        records: Sequence[bytes],
        at: int,
        declared: Interval | None = None,
        source: str = "default",
    ) -> Land:
        """With the id that such a slice has when its records are the lines of a file."""
        act = cls("", tuple(records), at, declared, source)
        return act._replace(slice=slice_id(stream, declared, sha256(act.content).hexdigest()))

    @property
    def content(self) -> bytes:
        return b"".join(record + b"\n" for record in self.records)


class Tick(NamedTuple):
    """One round of work."""

    at: int


class Retract(NamedTuple):
    """A slice is taken back."""

    slice: str
    at: int


Act = Land | Tick | Retract


# --- what the oracle says --------------------------------------------------------------------------


class OracleDataset(NamedTuple):
    """What one build of a window made."""

    start: int
    revision: int
    at: int  # the tick that built it
    slices: frozenset[str]  # names
    hash: str
    rows: tuple[DatasetRow, ...]


class OracleWindow(NamedTuple):
    """A window as it stands at a moment. Slices are given by their names."""

    interval: Interval
    members: frozenset[str]
    used: frozenset[str]
    ignored: frozenset[str]
    hash: str  # of `used`
    ready: bool
    reason: str | None  # why it is not ready
    observed: str | None  # hash of the current dataset
    revision: int  # of the newest dataset, withdrawn or not
    sealed: int | None  # place in the ledger up to which slices count although they came late
    final: bool  # built, and nothing that still arrives can change it


class Round(NamedTuple):
    """What a tick did, oldest window first."""

    at: int
    built: tuple[OracleDataset, ...]
    withdrawn: tuple[int, ...]  # starts of windows


class WindowOracle:
    """Play a script, or land, tick and retract by hand; then compare what it says with what the engine says.

    Its own `gate` is the oracle of records; places in the ledger count from 1.
    """

    def __init__(self, stream: OracleStream, rules: OracleRules) -> None:
        self.stream = stream
        self.rules = rules
        self.gate = Oracle(stream)
        self.rounds: list[Round] = []
        self.datasets: dict[int, OracleDataset] = {}  # the current ones, by the start of their window
        self._ledger: dict[str, Land] = {}  # those that were retracted, too
        self._retracted: set[str] = set()
        self._accepted: dict[str, int] = {}  # records accepted from a slice, by the last tick that saw it
        self._decisions: Counter[str] = Counter()  # how often that number changed
        self._touched: dict[str, set[int]] = {}  # the windows a slice was a member of at the last tick
        self._revisions: Counter[int] = Counter()
        self._sealed: dict[int, int] = {}

    # -- acts

    def play(self, acts: Iterable[Act]) -> WindowOracle:
        for act in acts:
            if isinstance(act, Land):
                self.land(act)
            elif isinstance(act, Tick):
                self.tick(act.at)
            else:
                self.retract(act.slice)
        return self

    def land(self, act: Land) -> None:
        """A slice that has landed before changes nothing, not even when it was retracted."""
        if act.slice not in self._ledger:
            self._ledger[act.slice] = act
            self.gate.land(act.slice, act.records, act.at, act.source)

    def retract(self, gone: str) -> None:
        """From now on the slice never arrived. The windows it counted in are no longer sealed."""
        if gone not in self._ledger:
            raise InputError(f"slice {gone!r} never landed", hint=f"landed: {', '.join(self._ledger)}")
        for start in self._touched.get(gone, set()):
            members = self.members(start)
            if gone in {
                member.slice for member in self._used(Interval(start, start + self.rules.span), members)
            }:
                self._sealed.pop(start, None)
        self._touched.pop(gone, None)
        self._retracted.add(gone)
        self.gate = self.gate.rebuilt(without={gone})

    def tick(self, now: int) -> Round:
        """Judge every window; build what is ready and not current; withdraw what may no longer stand."""
        self._go_through_the_gate()
        built: list[OracleDataset] = []
        withdrawn: list[int] = []
        for start, window in self.windows(now).items():
            if window.ready:
                self._seal(start, window)
            if window.ready and window.hash != window.observed:
                built.append(self._build(start, window, now))
            elif not window.ready and self._holds_what_is_gone(start, window):
                del self.datasets[start]
                withdrawn.append(start)
        self.rounds.append(Round(now, tuple(built), tuple(withdrawn)))
        return self.rounds[-1]

    def _go_through_the_gate(self) -> None:
        for each in self._live():
            self._decisions[each] = self._decision(each)
            self._accepted[each] = self.gate.counts[each].accepted
            self._touched[each] = self._touches(each)

    def _seal(self, start: int, window: OracleWindow) -> None:
        """A backfill is over once a dataset covers the window: what still arrives is late."""
        members = self.members(start)
        used = [member for member in members if member.name in window.used]
        backfill = not serves(window.interval, self._on_time(window.interval, members), self.rules)
        if backfill and is_complete(window.interval, used, self.rules.gap_tolerance):
            self._sealed.setdefault(start, max(member.seq for member in used))

    def _build(self, start: int, window: OracleWindow, now: int) -> OracleDataset:
        self._revisions[start] += 1
        slices = {member.slice for member in self.members(start) if member.name in window.used}
        rows = self._rows(window.interval, slices)
        made = OracleDataset(start, self._revisions[start], now, window.used, window.hash, rows)
        self.datasets[start] = made
        return made

    def _holds_what_is_gone(self, start: int, window: OracleWindow) -> bool:
        return start in self.datasets and not self.datasets[start].slices <= window.members

    # -- what can be asked

    def windows(self, now: int) -> dict[int, OracleWindow]:
        """Every window by its start, oldest first, as a tick at `now` would judge it: those that a slice
        touches, and those that ever had a dataset."""
        starts = {start for each in self._live() for start in self._touches(each)}
        return {start: self.window(start, now) for start in sorted(starts | set(self._revisions))}

    def window(self, start: int, now: int) -> OracleWindow:
        interval = Interval(start, start + self.rules.span)
        members = self.members(start)
        used = self._used(interval, members)
        names = frozenset(member.name for member in members)
        used_names = frozenset(member.name for member in used)
        desired = set_hash(used_names)
        reason = why_not_ready(interval, used, self.rules, now)
        current = self.datasets.get(start)
        observed = current.hash if current else None
        return OracleWindow(
            interval=interval,
            members=names,
            used=used_names,
            ignored=names - used_names,
            hash=desired,
            ready=reason is None,
            reason=reason,
            observed=observed,
            revision=self._revisions.get(start, 0),
            sealed=self._sealed.get(start),
            final=observed == desired and self._is_closed(interval, members, now),
        )

    def members(self, start: int) -> list[Member]:
        """The slices that touch a window, in ledger order."""
        return [
            Member(
                slice=each,
                seq=seq,
                name=contribution_name(each, self._decision(each)),
                arrival=act.at,
                bounds=self._bounds(each),
                runs=None if act.declared else self._runs(each),
            )
            for seq, (each, act) in enumerate(self._ledger.items(), start=1)
            if each not in self._retracted and start in self._touches(each)
        ]

    # -- the rules that need to know the ledger

    def _live(self) -> list[str]:
        return [each for each in self._ledger if each not in self._retracted]

    def _decision(self, each: str) -> int:
        """How often a retraction changed what is accepted from a slice that had been through the gate."""
        accepted = self.gate.counts[each].accepted
        return self._decisions[each] + (self._accepted.get(each, accepted) != accepted)

    def _bounds(self, each: str) -> Interval | None:
        """What it covers: as declared, else from the first to the last event accepted from it."""
        return self._ledger[each].declared or self.gate.observed[each]

    def _touches(self, each: str) -> set[int]:
        """The windows of its rows wherever they lie, and those that it covers a part of."""
        span, declared = self.rules.span, self._ledger[each].declared
        starts = {row.ts // span * span for row in self.gate.raw if row.slice == each}
        for covered in (declared,) if declared else self._runs(each):
            if covered.start < covered.end:
                starts |= {k * span for k in range(covered.start // span, (covered.end - 1) // span + 1)}
        return starts

    def _runs(self, each: str) -> tuple[Interval, ...]:
        """What a slice without bounds covers: from row to row, where no hole is wider than the tolerance."""
        runs: list[Interval] = []
        for at in sorted(row.ts for row in self.gate.raw if row.slice == each):
            if runs and at - runs[-1].end <= self.rules.gap_tolerance:
                runs[-1] = Interval(runs[-1].start, at + 1)
            else:
                runs.append(Interval(at, at + 1))
        return tuple(runs)

    def _on_time(self, window: Interval, members: Sequence[Member]) -> list[Member]:
        last = window.end + self.rules.stc + self.rules.max_lateness
        return [member for member in members if member.arrival <= last]

    def _used(self, window: Interval, members: Sequence[Member]) -> list[Member]:
        """Those that came in time, when they serve the window. Otherwise it is a backfill: everything that
        arrived, until the build that first covers the window seals it."""
        on_time = self._on_time(window, members)
        sealed = self._sealed.get(window.start)
        if sealed is not None:
            return [member for member in members if member in on_time or member.seq <= sealed]
        return on_time if serves(window, on_time, self.rules) else list(members)

    def _is_closed(self, window: Interval, members: Sequence[Member], now: int) -> bool:
        """Whether all that arrives from now on is late."""
        if now <= window.end + self.rules.stc + self.rules.max_lateness:
            return False
        on_time = self._on_time(window, members)
        return window.start in self._sealed or serves(window, on_time, self.rules)

    def _rows(self, window: Interval, slices: Collection[str]) -> tuple[DatasetRow, ...]:
        events = [
            check(self.stream, row.payload, self._ledger[row.slice].at)
            for row in self.gate.raw
            if row.slice in slices and window.holds(row.ts)
        ]
        events.sort(key=lambda event: (event.ts, event.event_id, event.tenant))
        return tuple(dataset_row(event, self.stream) for event in events)


# --- the rules -------------------------------------------------------------------------------------


def why_not_ready(window: Interval, used: Sequence[Member], rules: OracleRules, now: int) -> str | None:
    """None when it is ready; else the first of the conditions that does not hold."""
    if not used:
        return "empty"
    if rules.allow_incomplete:
        return None
    if now < window.end + rules.stc:
        return "cutoff"
    if not _overlapping(window, used):
        return "coverage"
    too_wide = [hole for hole in holes(window, used) if hole.end - hole.start > rules.gap_tolerance]
    if any(hole.start == window.start or hole.end == window.end for hole in too_wide):
        return "coverage"
    return "gap" if too_wide else None


def serves(window: Interval, members: Sequence[Member], rules: OracleRules) -> bool:
    """Whether a window that has these members, and no others, may be built once its time has come."""
    if rules.allow_incomplete:
        return len(members) > 0
    return is_complete(window, members, rules.gap_tolerance)


def is_complete(window: Interval, members: Sequence[Member], tolerance: int) -> bool:
    """Something covers it, and no hole is wider than the tolerance. A window that nothing covers is not
    complete, however short it is."""
    wide = [hole for hole in holes(window, members) if hole.end - hole.start > tolerance]
    return bool(_overlapping(window, members)) and not wide


def holes(window: Interval, members: Sequence[Member]) -> list[Interval]:
    """The longest stretches of the window that no bounds cover: it is cut wherever bounds start or end, each
    piece is covered or not, and neighbours that are not are one hole."""
    bounds = _overlapping(window, members)
    cuts = {window.start, window.end}
    cuts |= {cut for one in bounds for cut in (one.start, one.end) if window.holds(cut)}
    ordered = sorted(cuts)
    found: list[Interval] = []
    for start, end in pairwise(ordered):
        if any(one.start <= start and end <= one.end for one in bounds):
            continue
        if found and found[-1].end == start:
            start = found.pop().start
        found.append(Interval(start, end))
    return found


def _overlapping(window: Interval, members: Sequence[Member]) -> list[Interval]:
    """The bounds that cover at least an instant of the window."""
    bounds = [one for member in members for one in member.covers]
    return [one for one in bounds if max(one.start, window.start) < min(one.end, window.end)]


def dataset_columns(stream: OracleStream) -> list[str]:
    """A declared field that is called like a leading column is that column."""
    return [*LEADING, *(name for name in stream.fields if name not in LEADING)]


def dataset_row(event: Event, stream: OracleStream) -> DatasetRow:
    leading: DatasetRow = {"event_time": event.ts, "tenant": event.tenant, "event_id": event.event_id}
    fields = {
        name: dataset_value(lookup(event.fields, name), stream.fields[name])
        for name in dataset_columns(stream)
        if name not in LEADING
    }
    return leading | fields


def dataset_value(value: Json, declared: OracleField) -> DatasetValue:
    """As the column has it; objects, arrays and `any` are JSON text, here in its canonical spelling."""
    if value is None:
        return None
    if declared.type in ("object", "array", "any"):
        return canonical(value)
    if isinstance(value, Number):
        if declared.type == "float":
            return float(str(value))
        if declared.type == "integer":
            return value.integer()
        scaled = value.rounded(declared.scale or 0)
        return None if scaled is None else Decimal(scaled).scaleb(-(declared.scale or 0))
    assert isinstance(value, (str, bool)), value
    return value
