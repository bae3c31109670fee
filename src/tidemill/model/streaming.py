"""Streaming windows as declared, flat and picklable, and the rules that relate rows to them. Pure.

A row is late when its event time is at or before the watermark of its stream that it met. That is recorded
with the row, so its fate is a function of the row and the declaration, not of time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final

from tidemill.model.conditions.declared import DeclaredCondition
from tidemill.model.time import Interval


class WindowKind(StrEnum):
    TUMBLING = "tumbling"
    SLIDING = "sliding"
    SESSION = "session"
    COUNT = "count"
    STATE = "state"
    PER_ROW = "per_row"  # a sliding window whose step is a row

    @property
    def by_time(self) -> bool:
        """Whether the windows lie on a grid; otherwise they follow from the rows."""
        return self in (WindowKind.TUMBLING, WindowKind.SLIDING)

    @property
    def one_after_another(self) -> bool:
        """Whether its windows of a key follow each other, so that one begins where the last one ended."""
        return self in (WindowKind.SESSION, WindowKind.COUNT, WindowKind.STATE)

    @property
    def ends_by_time(self) -> bool:
        """Whether the watermark ends the windows, and not a row."""
        return self.by_time or self is WindowKind.SESSION


class Close(StrEnum):
    """When a window is published."""

    WATERMARK = "watermark"  # the watermark of the stream has reached its end
    COMPLETE = "complete"  # all aggregation windows of the stream that it overlaps are built


class LatePolicy(StrEnum):
    """What is done with a late row."""

    DISCARD = "discard"
    NEXT_WINDOW = "next_window"  # it counts at the watermark that it met, in the window open there
    REEMIT = "reemit"  # it counts at its own time, and a published window is published again


class LateBy(StrEnum):
    """What makes a row late."""

    ROW = "row"  # the watermark: its time is at or before the one it met
    WINDOW = "window"  # its window: that one had ended by then


class Function(StrEnum):
    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    STDDEV = "stddev"
    PERCENTILE = "percentile"


class Trigger(StrEnum):
    """Why a result was published."""

    WATERMARK = "watermark"
    COMPLETE = "complete"
    COUNT = "count"
    STATE = "state"
    LATE = "late"  # rows that came after it was published changed it
    RETRACTION = "retraction"
    STOP = "stop"  # a graceful stop: the window was still open
    HAVING = "having"  # not published: it never met the condition on results


class Fate(StrEnum):
    """What a window does with a row."""

    ON_TIME = "on_time"
    DISCARDED = "discarded"
    TOO_LATE = "too_late"  # later than max_lateness
    NEXT_WINDOW = "next_window"
    REEMITTED = "reemitted"

    @property
    def used(self) -> bool:
        return self not in (Fate.DISCARDED, Fate.TOO_LATE)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One column of a result. `type` and `scale` are those of its field; count(*) has none."""

    name: str
    function: Function
    column: str | None = None
    type: str | None = None
    scale: int = 0
    percent: str | None = None  # of a percentile: `99.9`

    @property
    def quantile(self) -> Fraction:
        assert self.percent is not None
        return Fraction(self.percent) / 100


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A declared streaming window. Durations are microseconds."""

    stream: str
    name: str
    kind: WindowKind
    size: int = 0  # of tumbling and sliding windows; for windows for each row, how far they look back
    step: int = 0  # of sliding windows; for tumbling ones it is the size
    gap: int = 0  # of sessions: a row longer than this after the last one begins the next
    inclusive: bool = True  # of sessions: whether a row exactly this long after it still belongs to it
    count: int = 0
    open: DeclaredCondition | None = None  # of state windows
    emit: DeclaredCondition | None = None
    key: tuple[str, ...] = ()  # each value has its own sessions, counts, states
    group_by: tuple[str, ...] = ()  # within a window each value has its own result
    aggregates: tuple[Aggregate, ...] = ()
    close: Close = Close.WATERMARK
    late: LatePolicy = LatePolicy.DISCARD
    max_lateness: int = 0
    late_by: LateBy = LateBy.ROW
    lookahead: int = 0  # of a window for each row
    emit_on_open: bool = True  # of state windows: the row that opens one may also end it
    having: DeclaredCondition | None = None  # results that do not meet it are not published

    @property
    def opens_after(self) -> int:
        """How long after its start a window is known; before that it does not exist."""
        return self.size if self.kind is WindowKind.PER_ROW else 0

    @property
    def reach(self) -> int:
        """For windows for each row: how long before a row a window that holds it can start."""
        return self.size + self.lookahead

    @property
    def next_open(self) -> int:
        """How long after its end a window is surely over, which is where a late row counts that goes to the
        next one: a session with an inclusive gap, and a window for a row, hold the instant they end at."""
        touches = self.kind is WindowKind.SESSION and self.inclusive
        return int(touches or self.kind is WindowKind.PER_ROW)

    @property
    def apart(self) -> int:
        """How long after the last row of a session a row begins the next one, at least."""
        return self.gap + self.inclusive

    @property
    def grouped_by(self) -> tuple[str, ...]:
        """The columns that distinguish results of the same instant and tenant."""
        return tuple(dict.fromkeys((*self.key, *self.group_by)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every field that is read, each once."""
        used = [*self.key, *self.group_by, *(a.column for a in self.aggregates if a.column is not None)]
        for condition in (self.open, self.emit):
            used.extend(condition.columns if condition is not None else ())
        return tuple(dict.fromkeys(used))

    @property
    def fingerprint(self) -> str:
        """A hash of everything that results depend on: all but the names of the stream and the window."""
        identity_fields = asdict(replace(self, stream="", name="", open=None, emit=None, having=None))
        conditions = {"open": self.open, "emit": self.emit, "having": self.having}
        identity_fields |= {name: of.identity for name, of in conditions.items() if of is not None}
        if self.kind is not WindowKind.SESSION:
            del identity_fields["inclusive"]
        for name in _ADDED:  # declarations from before this option existed keep their results
            if identity_fields[name] == _DEFAULTS[name]:
                del identity_fields[name]
        return hashlib.sha256(json.dumps(identity_fields, sort_keys=True, default=str).encode()).hexdigest()[
            :16
        ]

    def fate(self, event_time: int, met: int | None) -> Fate:
        """The fate of a row that met this watermark. A window that closes when it is complete depends on its
        slices instead, and has no late rows."""
        if self.close is Close.COMPLETE or met is None or event_time > met:
            return Fate.ON_TIME
        in_time = met - event_time <= self.max_lateness
        if self.late_by is LateBy.WINDOW:
            last = self.last_end(event_time)
            if last > met:
                again = self.late is LatePolicy.REEMIT and self._changes_ended(event_time, last, met)
                return Fate.REEMITTED if again else Fate.ON_TIME
            in_time = last > met - self.max_lateness
        match self.late:
            case LatePolicy.NEXT_WINDOW:
                return Fate.NEXT_WINDOW
            case LatePolicy.REEMIT:
                return Fate.REEMITTED if in_time else Fate.TOO_LATE
            case _:
                return Fate.DISCARDED

    def last_end(self, instant: int) -> int:
        """The end of the last window that holds an instant; for a session, its end unless more rows come.
        Other rows of the session are ignored: the fate of a row depends on the row alone."""
        if self.kind is WindowKind.SESSION:
            return instant + self.gap
        assert self.kind.by_time, self.kind
        return instant - instant % self.step + self.size

    @property
    def some_windows(self) -> bool:
        """Whether a row may count in some of its windows and not in others."""
        return self.late_by is LateBy.WINDOW and self.kind is WindowKind.SLIDING

    def ended_by(self, last: int, watermark: int) -> int:
        """Of the windows one step apart up to one that ends at `last`, after the watermark, the end of the
        newest that the watermark had reached, assuming that there is one."""
        step = self.step or self.gap
        return last + (watermark - last) // step * step

    def _changes_ended(self, event_time: int, last: int, met: int) -> bool:
        ended = self.ended_by(last, met)
        return ended > max(event_time, met - self.max_lateness)

    def counts_at(self, event_time: int, met: int | None) -> int:
        """Return the instant that a used row counts at."""
        if met is not None and self.fate(event_time, met) is Fate.NEXT_WINDOW:
            return met + self.next_open
        return event_time

    def windows_at(self, instant: int) -> list[Interval]:
        """Return the windows of the grid that hold an instant, oldest first."""
        assert self.kind.by_time, self.kind
        newest = instant - instant % self.step
        starts = range(newest, instant - self.size, -self.step)
        return [Interval(start, start + self.size) for start in reversed(starts)]


# Options that were added later: one that has its default is not part of the fingerprint.
_ADDED: Final = ("late_by", "lookahead", "emit_on_open", "having")
_DEFAULTS: Final = {field.name: field.default for field in fields(WindowSpec)}

Value = str | int | bool | float | None
"""Of a key or an aggregate: decimals are integers times ten to their scale, as the field declares it."""


@dataclass(frozen=True, slots=True)
class WindowResult:
    """The result of one group of one window. Plain Python; tables hold the same as columns."""

    tenant: str
    group: tuple[Value, ...]  # values of `WindowSpec.grouped_by`
    start: int
    end: int
    rows: int
    late_rows: int
    first_time: int  # least and greatest event time of its rows
    last_time: int
    bytes: int  # of the payloads of its rows
    slices: frozenset[str]  # names of the slices its rows came from
    values: Mapping[str, Value]  # by the name of the aggregate


def window_id(spec: WindowSpec, tenant: str, key: tuple[Value, ...], start: int, ordinal: int) -> str:
    """Identifies the window in every process: `ordinal` numbers windows of one key (values of
    `spec.key`) that begin at the same instant, which only count and state windows can."""
    identity_fields = json.dumps(
        [spec.stream, spec.name, tenant, list(key), start, ordinal], ensure_ascii=False
    )
    return hashlib.sha256(identity_fields.encode("utf-8", "surrogatepass")).hexdigest()[:24]
