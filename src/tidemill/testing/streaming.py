"""Results of streaming windows, computed as simply as possible: from all rows, every window again.

It never imports the engine and shares only types with it; if the two differ, one is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import inf, isclose, isfinite, ldexp, nan, nextafter, sqrt
from typing import NamedTuple

from tidemill.model.conditions.declared import DeclaredCondition
from tidemill.model.streaming import Aggregate, Fate, Value, WindowResult, WindowSpec
from tidemill.model.time import Interval
from tidemill.testing.conditions import RecordValue, condition_is


class StreamingRow(NamedTuple):
    """An accepted row. `met` is the watermark of the stream when its slice arrived, None if there was none
    (or time is processing time); decimals are unscaled integers."""

    tenant: str
    time: int
    seq: int  # offset of its slice in the ledger
    line: int
    slice: str  # name of its slice
    size: int = 0  # of its payload, in bytes
    fields: Mapping[str, Value] = {}
    met: int | None = None


class StreamingSlice(NamedTuple):
    """A slice before it met a watermark: tenant, time, size and fields of each row, in order of its lines."""

    name: str
    source: str
    arrival: int
    rows: tuple[tuple[str, int, int, Mapping[str, Value]], ...]


class _Positioned(NamedTuple):
    """A row at the instant at which it counts."""

    at: int
    row: StreamingRow


class _Window(NamedTuple):
    tenant: str
    start: int
    end: int
    ordinal: int
    closed: bool
    rows: Sequence[StreamingRow]


class StreamingOracle:
    """The expected results of a declared window. Rows may be given in any order: their offsets say how they
    count. `scales` are those of decimal fields."""

    def __init__(self, spec: WindowSpec, scales: Mapping[str, int] | None = None) -> None:
        self.spec = spec
        self.scales = scales or {}

    def standing(
        self, rows: Iterable[StreamingRow], watermark: int | None, *, flush: bool = False
    ) -> list[WindowResult]:
        """Results of all windows that are closed at this watermark (with `flush`, of all windows), by start,
        tenant, ordinal (among windows of one key that start at the same instant) and group, nulls first."""
        return [result for _, result in self.numbered(rows, watermark, flush=flush)]

    def numbered(
        self, rows: Iterable[StreamingRow], watermark: int | None, *, flush: bool = False
    ) -> list[tuple[int, WindowResult]]:
        """The same, each with the ordinal of its window."""
        used = [row for row in rows if self.fate(row).used]
        return self._results(
            self._windows(used, inf if flush else -inf if watermark is None else watermark, flush)
        )

    def complete(
        self, rows: Iterable[StreamingRow], built: Mapping[Interval, frozenset[str]]
    ) -> list[WindowResult]:
        """Results of a window that closes when it is complete: `built` are the aggregation windows of the
        stream that are built, each with the slices (as rows name them) that it was built from. A window has a
        result when all aggregation windows that it overlaps are built, and is made of those rows."""
        used = [
            row
            for row in rows
            if any(each.start <= row.time < each.end and row.slice in of for each, of in built.items())
        ]
        return [
            result
            for _, result in self._results(self._windows(used, inf, True))
            if _covered(result.start, result.end, sorted((each.start, each.end) for each in built))
        ]

    def fate(self, row: StreamingRow) -> Fate:
        if self.spec.close == "complete" or row.met is None or row.met < row.time:
            return Fate.ON_TIME
        if self.spec.late_by == "window":
            counted = [end for end in self._ends(row.time) if self._is_counted(row, end)]
            if any(end <= row.met for end in counted):
                return Fate.REEMITTED
            if counted:
                return Fate.ON_TIME
        if self.spec.late == "discard":
            return Fate.DISCARDED
        if self.spec.late == "next_window":
            return Fate.NEXT_WINDOW
        too_late = self.spec.late_by == "window" or row.time < row.met - self.spec.max_lateness
        return Fate.TOO_LATE if too_late else Fate.REEMITTED

    def _ends(self, time: int) -> list[int]:
        """The ends of the windows that a row of this time would be in if it came alone."""
        if self.spec.kind == "session":
            return [time + self.spec.gap]
        step = self.spec.size if self.spec.kind == "tumbling" else self.spec.step
        starts = range(time // step * step, time - self.spec.size, -step)
        return [start + self.spec.size for start in starts]

    def _is_counted(self, row: StreamingRow, end: int) -> bool:
        """For lateness by window: whether a window with this end was open, or may be published again, when
        the row arrived."""
        kept = self.spec.max_lateness if self.spec.late == "reemit" else 0
        return row.met is None or end + kept > row.met

    def fates(self, rows: Iterable[StreamingRow]) -> Counter[Fate]:
        return Counter(self.fate(row) for row in rows)

    def at(self, row: StreamingRow) -> int:
        """The instant at which a row counts."""
        if self.fate(row) is Fate.NEXT_WINDOW:
            assert row.met is not None
            sessions = self.spec.kind == "session" and self.spec.inclusive
            return row.met + 1 if sessions or self.spec.kind == "per_row" else row.met
        return row.time

    # -- windows

    def _windows(self, used: list[StreamingRow], upto: float, flush: bool) -> list[_Window]:
        by_key: dict[tuple[str, tuple[Value, ...]], list[_Positioned]] = {}
        for row in sorted(used, key=lambda row: (self.at(row), row.seq, row.line)):
            key = tuple(row.fields.get(column) for column in self.spec.key)
            by_key.setdefault((row.tenant, key), []).append(_Positioned(self.at(row), row))
        found: list[_Window] = []
        for (tenant, _), positioned in by_key.items():
            ordinals: Counter[int] = Counter()
            for start, end, closed, members in self._cut(positioned, upto):
                rows = [each.row for each in members]
                found.append(_Window(tenant, start, end, ordinals[start], closed or flush, rows))
                ordinals[start] += 1
        return found

    def _cut(self, rows: list[_Positioned], upto: float) -> list[tuple[int, int, bool, list[_Positioned]]]:
        """(start, end, closed, rows) of each window of one key."""
        spec = self.spec
        if spec.kind in ("tumbling", "sliding"):
            step = spec.size if spec.kind == "tumbling" else spec.step
            first, last = rows[0].at // step - spec.size // step - 1, rows[-1].at // step
            spans = ((number * step, number * step + spec.size) for number in range(first, last + 1))
            grid = [(a, z, [row for row in rows if self._is_in(row, a, z)]) for a, z in spans]
            return [(a, z, z <= upto, members) for a, z, members in grid if members]
        rows = [row for row in rows if row.at <= upto]
        if spec.kind == "per_row":
            return [self._around(row, rows, upto) for row in rows]
        if spec.kind == "session":
            spells = [(each[0].at, each[-1].at + spec.gap, each) for each in self._sessions(rows)]
            return [(a, z, z <= upto, members) for a, z, members in spells]
        if spec.kind == "count":
            n = spec.count
            pieces = [(rows[i : i + n], i + n <= len(rows)) for i in range(0, len(rows), n)]
        else:
            pieces = self._states(rows)
        return [(each[0].at, each[-1].at + 1, closed, each) for each, closed in pieces]

    def _is_in(self, positioned: _Positioned, start: int, end: int) -> bool:
        if self.spec.late_by == "window" and self.fate(positioned.row) is not Fate.NEXT_WINDOW:
            return start <= positioned.at < end and self._is_counted(positioned.row, end)
        return start <= positioned.at < end

    def _around(
        self, row: _Positioned, rows: list[_Positioned], upto: float
    ) -> tuple[int, int, bool, list[_Positioned]]:
        first, last = row.at - self.spec.size, row.at + self.spec.lookahead
        return first, last + 1, last <= upto, [each for each in rows if first <= each.at <= last]

    def _sessions(self, rows: list[_Positioned]) -> list[list[_Positioned]]:
        sessions: list[list[_Positioned]] = []
        for row in rows:
            quiet = row.at - sessions[-1][-1].at if sessions else self.spec.gap + 1
            if quiet < self.spec.gap or (self.spec.inclusive and quiet == self.spec.gap):
                sessions[-1].append(row)
            else:
                sessions.append([row])
        return sessions

    def _states(self, rows: list[_Positioned]) -> list[tuple[list[_Positioned], bool]]:
        assert self.spec.open is not None
        assert self.spec.emit is not None
        found: list[tuple[list[_Positioned], bool]] = []
        current: list[_Positioned] = []
        for each in rows:
            if current or self._true(self.spec.open, each.row):
                current.append(each)
                may_end = self.spec.emit_on_open or len(current) > 1
                if may_end and self._true(self.spec.emit, each.row):
                    found.append((current, True))
                    current = []
        return [*found, (current, False)] if current else found

    def _true(self, declared: DeclaredCondition, row: StreamingRow) -> bool:
        return condition_is(declared.condition, lambda column: self._value(row, column)) is True

    def _value(self, row: StreamingRow, column: str) -> RecordValue:
        value = row.fields.get(column)
        if value is None or isinstance(value, bool | str | float):
            return value
        return Fraction(value) / Fraction(10) ** self.scales.get(column, 0)

    # -- results

    def _results(self, windows: Iterable[_Window]) -> list[tuple[int, WindowResult]]:
        columns = list(dict.fromkeys([*self.spec.key, *self.spec.group_by]))
        found: list[tuple[int, WindowResult]] = []
        for window in windows:
            groups = {tuple(row.fields.get(column) for column in columns) for row in window.rows}
            for group in groups if window.closed else ():
                rows = [row for row in window.rows if tuple(row.fields.get(c) for c in columns) == group]
                result = self._result(window, group, rows)
                if self.spec.having is None or self._meets(self.spec.having, result, columns):
                    found.append((window.ordinal, result))
        return sorted(found, key=_order)

    def _meets(self, having: DeclaredCondition, result: WindowResult, columns: Sequence[str]) -> bool:
        """Whether a result meets the condition; its columns are aggregates or groups."""
        values = dict(zip(columns, result.group, strict=True)) | dict(result.values)
        rounded = ("count", "avg", "stddev")
        scales = {each.name: each.scale for each in self.spec.aggregates if each.function not in rounded}

        def value_of(name: str) -> RecordValue:
            value = values[name]
            if value is None or isinstance(value, bool | str | float):
                return value
            return Fraction(value) / Fraction(10) ** scales.get(name, 0)

        return condition_is(having.condition, value_of) is True

    def _result(
        self, window: _Window, group: tuple[Value, ...], rows: Sequence[StreamingRow]
    ) -> WindowResult:
        times = sorted(row.time for row in rows)
        return WindowResult(
            tenant=window.tenant,
            group=group,
            start=window.start,
            end=window.end,
            rows=len(rows),
            late_rows=len([row for row in rows if self.fate(row) is not Fate.ON_TIME]),
            first_time=times[0],
            last_time=times[-1],
            bytes=sum(row.size for row in rows),
            slices=frozenset(row.slice for row in rows),
            values={each.name: aggregated(each, rows) for each in self.spec.aggregates},
        )


def _order(numbered: tuple[int, WindowResult]) -> tuple[object, ...]:
    ordinal, result = numbered
    return result.start, result.tenant, ordinal, tuple((value is not None, value) for value in result.group)


def _covered(start: int, end: int, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether sorted spans that do not overlap cover all of [start, end)."""
    for a, z in spans:
        if a <= start < z:
            start = z
    return start >= end


# --- aggregates ------------------------------------------------------------------------------------


def aggregated(aggregate: Aggregate, rows: Sequence[StreamingRow]) -> Value:
    """The aggregates of rows, in the order in which they count, by exact fractions."""
    if aggregate.function == "count":
        return len([row for row in rows if aggregate.column is None or _has(row, aggregate.column)])
    assert aggregate.column is not None
    values = [row.fields[aggregate.column] for row in rows if _has(row, aggregate.column)]
    if not values:
        return None
    if aggregate.function in ("first", "last"):
        return values[0 if aggregate.function == "first" else -1]
    if aggregate.function in ("min", "max", "percentile"):
        return sorted(values, key=_rank)[_chosen(aggregate, len(values))]
    numbers = [value for value in values if isinstance(value, int | float)]
    return _measured(aggregate, numbers)


def _has(row: StreamingRow, column: str) -> bool:
    return row.fields.get(column) is not None


def _rank(value: Value) -> tuple[str, Fraction]:
    """The sort key of a value: strings by characters, numbers by size, infinities beyond all numbers."""
    if isinstance(value, str):
        return value, Fraction(0)
    assert value is not None
    return "", Fraction(value) if isfinite(value) else Fraction(10**400 if value > 0 else -(10**400))


def _chosen(aggregate: Aggregate, count: int) -> int:
    """The value at a percentile of sorted values: the first that enough of them do not exceed."""
    if aggregate.function != "percentile":
        return 0 if aggregate.function == "min" else count - 1
    assert aggregate.percent is not None
    return next(k for k in range(count) if Fraction(k + 1, count) >= Fraction(aggregate.percent) / 100)


def _measured(aggregate: Aggregate, numbers: Sequence[int | float]) -> int | float | None:
    floats = aggregate.type == "float"
    if aggregate.function == "stddev" and len(numbers) < 2:
        return None
    if not all(isfinite(number) for number in numbers):
        if aggregate.function == "stddev":
            return nan
        kinds = {number for number in numbers if not isfinite(number)}
        return kinds.pop() if len(kinds) == 1 else nan
    exact = [Fraction(number) for number in numbers]
    if aggregate.function == "sum":
        return nearest(sum(exact, Fraction(0))) if floats else int(sum(exact))
    if aggregate.function == "avg" and floats:
        return nearest(sum(exact, Fraction(0))) / len(exact)
    unscaled = [each / 10**aggregate.scale for each in exact]
    mean = sum(unscaled, Fraction(0)) / len(unscaled)
    if aggregate.function == "avg":
        return nearest(mean)
    return nearest_root(sum(((each - mean) ** 2 for each in unscaled), Fraction(0)) / (len(unscaled) - 1))


def nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return inf if exact > 0 else -inf


def nearest_root(exact: Fraction) -> float:
    """The double nearest to the square root: a guess, moved until it is nearer than its neighbours."""
    if not exact:
        return 0.0
    half = (exact.numerator.bit_length() - exact.denominator.bit_length()) // 2
    guess = ldexp(sqrt(exact / Fraction(4) ** half), half)
    while _middle_squared(guess, nextafter(guess, inf)) < exact:
        guess = nextafter(guess, inf)
    while _middle_squared(guess, nextafter(guess, 0)) > exact:
        guess = nextafter(guess, 0)
    return guess


def _middle_squared(one: float, other: float) -> Fraction:
    return ((Fraction(one) + Fraction(other)) / 2) ** 2


def same_results(spec: WindowSpec, some: Sequence[WindowResult], others: Sequence[WindowResult]) -> bool:
    """Whether results are equal, one by one. Averages and deviations of floats may differ in the last
    bits."""
    loose = {a.name for a in spec.aggregates if a.type == "float" and a.function in ("avg", "stddev")}
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        if _stiff(one, loose) != _stiff(other, loose):
            return False
        if not all(_close(one.values[name], other.values[name]) for name in loose):
            return False
    return True


def _stiff(result: WindowResult, loose: set[str]) -> tuple[object, ...]:
    values = {name: value for name, value in result.values.items() if name not in loose}
    return (
        *(result.tenant, result.group, result.start, result.end, result.rows, result.late_rows),
        *(result.first_time, result.last_time, result.bytes, result.slices, values),
    )


def _close(one: Value, other: Value) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-12, abs_tol=1e-12) or (one != one and other != other)
    return one == other


# --- watermarks ------------------------------------------------------------------------------------


class Met(NamedTuple):
    rows: list[StreamingRow]  # of all slices, in ledger order, each with the watermark that it met
    watermark: int | None  # after all of them arrived, and time passed until `now`
    released_early: int  # rows that left the buffer because it was full


def meet(
    slices: Sequence[StreamingSlice],
    tolerance: int,
    *,
    idle_timeout: int | None = None,
    max_bytes: int | None = None,
    now: int | None = None,
) -> Met:
    """The watermark that each slice met: the minimum over the sources that were not idle when the slice
    arrived, and never lower than before. Ledger offsets and lines count from 1."""
    rows: list[StreamingRow] = []
    watermark: int | None = None
    sources: dict[str, tuple[int, int]] = {}  # source -> (newest event time, last arrival)
    early = 0

    def moved(instant: int) -> int | None:
        if not sources:
            return watermark
        last = max(arrival for _, arrival in sources.values())
        active = [
            newest - tolerance
            for newest, arrival in sources.values()
            if idle_timeout is None or instant - arrival < idle_timeout or arrival == last
        ]
        # While one source is active, the one heard of last is too: including it changes nothing.
        return max(min(active), watermark) if watermark is not None else min(active)

    for seq, each in enumerate(slices, start=1):
        watermark = moved(each.arrival)
        if not each.rows:
            continue
        for line, (tenant, time, size, fields) in enumerate(each.rows, start=1):
            rows.append(StreamingRow(tenant, time, seq, line, each.name, size, fields, watermark))
        newest = max(time for _, time, _, _ in each.rows)
        before = sources.get(each.source, (newest, each.arrival))
        sources[each.source] = (max(before[0], newest), max(before[1], each.arrival))
        watermark = moved(each.arrival)
        assert watermark is not None
        if max_bytes is not None:
            kept = [row for row in rows if row.time > watermark and (row.met is None or row.time > row.met)]
            instants = [watermark, *sorted(row.time for row in kept)]
            fits = (t for t in instants if sum(row.size for row in kept if row.time > t) <= max_bytes)
            forced = next(fits)
            early += sum(row.time <= forced for row in kept)
            watermark = forced
    return Met(rows, moved(now) if now is not None else watermark, early)
