"""Exact aggregates of a handful of rows in plain Python: what one group of one window comes to.

No value depends on the order in which rows were added up; and nothing here knows why a window closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil, fsum, inf, isfinite, isqrt, nan

from tidemill.model.predicates import Given
from tidemill.model.streaming import Aggregate, Function, Value, WindowResult, WindowSpec


@dataclass(frozen=True, slots=True)
class StreamRow:
    """An accepted row as streaming windows see it."""

    tenant: str
    time: int  # event time
    seq: int  # place of its slice in the ledger
    line: int
    slice: str  # name of its slice
    size: int = 0  # of its payload, in bytes
    fields: Mapping[str, Value] = field(default_factory=dict)
    met: int | None = None  # the watermark of the stream that it met

    @property
    def late(self) -> bool:
        return self.met is not None and self.time <= self.met

    def values(self, columns: Sequence[str]) -> tuple[Value, ...]:
        return tuple(self.fields.get(column) for column in columns)


def result_of(
    spec: WindowSpec, group: tuple[Value, ...], start: int, end: int, rows: Sequence[StreamRow]
) -> WindowResult:
    """Of rows of one group, in the order in which they count; there is at least one."""
    return WindowResult(
        tenant=rows[0].tenant,
        group=group,
        start=start,
        end=end,
        rows=len(rows),
        late_rows=sum(row.late for row in rows),
        first_time=min(row.time for row in rows),
        last_time=max(row.time for row in rows),
        bytes=sum(row.size for row in rows),
        slices=frozenset(row.slice for row in rows),
        values={each.name: value_of(each, rows) for each in spec.aggregates},
    )


def value_of(aggregate: Aggregate, rows: Sequence[StreamRow]) -> Value:
    if aggregate.column is None:
        return len(rows)
    present = [value for row in rows if (value := row.fields.get(aggregate.column)) is not None]
    match aggregate.function:
        case Function.COUNT:
            return len(present)
        case Function.FIRST:
            return present[0] if present else None
        case Function.LAST:
            return present[-1] if present else None
        case Function.MIN:
            return min(present, default=None)
        case Function.MAX:
            return max(present, default=None)
        case Function.PERCENTILE:
            rank = max(1, ceil(aggregate.quantile * len(present)))
            return sorted(present)[rank - 1] if present else None
        case Function.SUM | Function.AVG | Function.STDDEV:
            numbers = [value for value in present if not isinstance(value, str)]
            return _measure(aggregate, numbers) if numbers else None


def _measure(aggregate: Aggregate, numbers: Sequence[int | float]) -> int | float | None:
    if aggregate.type == "float":
        return _of_floats(aggregate.function, numbers)
    scaled = [int(number) for number in numbers]
    total, count, unit = sum(scaled), len(scaled), 10**aggregate.scale
    match aggregate.function:
        case Function.SUM:
            return total
        case Function.AVG:
            quotient: float = total / (count * unit)  # of integers it is the nearest double
            return quotient
        case _:
            if count < 2:
                return None
            spread = count * sum(each * each for each in scaled) - total * total
            return root(spread, count * (count - 1) * unit * unit)


def _of_floats(function: Function, numbers: Sequence[float]) -> float | None:
    count = len(numbers)
    if function is Function.SUM:
        return _float_sum(numbers)
    if function is Function.AVG:
        return _float_sum(numbers) / count
    if count < 2:
        return None
    if not all(isfinite(each) for each in numbers):
        return nan
    # Doubles are integers over powers of two: with the largest of those for all, only the root is rounded.
    ratios = [float(each).as_integer_ratio() for each in numbers]
    unit = max(bottom for _, bottom in ratios)
    scaled = [top * (unit // bottom) for top, bottom in ratios]
    total = sum(scaled)
    return root(
        count * sum(each * each for each in scaled) - total * total, count * (count - 1) * unit * unit
    )


def _float_sum(numbers: Sequence[float]) -> float:
    endless = {each for each in numbers if not isfinite(each)}
    if endless:
        return endless.pop() if len(endless) == 1 else nan
    try:
        return fsum(numbers)
    except OverflowError:
        # on the way, or at the end: exact integers tell
        ratios = [float(each).as_integer_ratio() for each in numbers]
        unit = max(bottom for _, bottom in ratios)
        total = sum(top * (unit // bottom) for top, bottom in ratios)
        try:
            return total / unit
        except OverflowError:
            return inf if total > 0 else -inf


def root(top: int, bottom: int) -> float:
    """The double nearest to the square root of a fraction.

    The root is taken of an integer that has so many bits that the last one, set when something was cut off,
    only says on which side of a tie the rest lies; and rounding happens once.
    """
    assert top >= 0, top
    assert bottom > 0, bottom
    shift = (bottom.bit_length() - top.bit_length() + 130) // 2
    if shift >= 0:
        top <<= 2 * shift
    else:
        bottom <<= -2 * shift
    whole = isqrt(top // bottom)
    whole |= whole * whole * bottom != top
    try:
        return whole / (1 << shift) if shift >= 0 else float(whole << -shift)
    except OverflowError:
        return inf


def condition_value(row: StreamRow, column: str, scales: Mapping[str, int]) -> Given:
    """A field as conditions compare it: integers and decimals exactly, floats as they are."""
    value = row.fields.get(column)
    if value is None or isinstance(value, bool | str | float):
        return value
    return Decimal(value).scaleb(-scales.get(column, 0))
