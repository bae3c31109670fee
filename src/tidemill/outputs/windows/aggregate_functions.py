"""Computes aggregate functions over runs of rows: one value for each run, null if nothing counts.

A column is prepared once for all functions. Windows and tables do not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask
from tidemill.model.streaming import Aggregate, Function
from tidemill.outputs.windows.codes import Ranked, decimals, doubles, plain, ranked, stable_order, validity
from tidemill.outputs.windows.exact_arithmetic import (
    Doubles,
    Sums,
    ValueRuns,
    averages,
    deviations,
    float_averages,
    float_deviations,
    float_sums,
    sums,
)

_MOST: Final = np.iinfo(np.int64).max
_LEAST: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Picked:
    """Rows sorted by run, and the runs."""

    rows: Ints | None  # indices into the columns; None: all of them as they are
    runs: ValueRuns

    def of(self, values: Ints) -> Ints:
        return values if self.rows is None else values[self.rows]

    def rows_at(self, positions: Ints) -> Ints:
        return positions if self.rows is None else self.rows[positions]

    def where(self, mask: Mask | None) -> Mask | None:
        return mask if mask is None or self.rows is None else mask[self.rows]


class Measured:
    """One column of the picked rows."""

    def __init__(self, column: pa.Array, picked: Picked) -> None:
        self.column = column
        self.picked = picked
        self.runs = picked.runs

    @cached_property
    def valid(self) -> Mask | None:
        return self.picked.where(validity(self.column))

    @cached_property
    def counts(self) -> Ints:
        return self.runs.lengths if self.valid is None else self.runs.sum(self.valid.astype(np.int64))

    @cached_property
    def there(self) -> Mask | None:
        """Runs that have a value; None: all do."""
        return None if self.valid is None else self.counts > 0

    @cached_property
    def _ranked(self) -> Ranked:
        return ranked(self.column)

    @cached_property
    def values(self) -> Ints:
        """Integers in the order of the values, zero at nulls."""
        return self.picked.of(self._ranked.values)

    def restored(self, values: Ints) -> pa.Array:
        """One such integer for each run as a value of the column."""
        clean = values if self.there is None else np.where(self.there, values, 0)
        return self._ranked.restore(clean, self.there)

    @cached_property
    def doubles(self) -> Doubles:
        found = doubles(self.column)
        return found if self.picked.rows is None else found[self.picked.rows]

    @cached_property
    def sums(self) -> Sums:
        return sums(self.runs, self.values)

    @cached_property
    def sorted(self) -> Ints:
        """The values that are present, sorted within each run."""
        values = self.values if self.valid is None else self.values[self.valid]
        if not values.size:
            return values
        run = np.repeat(np.arange(self.counts.size), self.counts)
        least = int(values.min())
        bits = (int(values.max()) - least).bit_length()
        if (self.counts.size - 1).bit_length() + bits <= 63:
            packed = run << bits
            packed |= values - least
            packed.sort()
            packed &= (1 << bits) - 1
            packed += least
            within: Ints = packed
            return within
        by_value = np.argsort(values)
        return values[by_value][stable_order(run[by_value], self.counts.size)]


def folded(aggregate: Aggregate, measured: Measured) -> pa.Array:
    """The values of one aggregate of a column."""
    match aggregate.function:
        case Function.COUNT:
            return pa.array(measured.counts)
        case Function.SUM | Function.AVG | Function.STDDEV:
            if pa.types.is_floating(measured.column.type):
                return _of_floats(aggregate.function, measured)
            return _of_integers(aggregate, measured)
        case Function.MIN | Function.MAX:
            return _extreme(measured, least=aggregate.function is Function.MIN)
        case Function.FIRST | Function.LAST:
            return _at_edge(measured, first=aggregate.function is Function.FIRST)
        case Function.PERCENTILE:
            return _percentile(measured, aggregate.quantile)


def _of_floats(function: Function, measured: Measured) -> pa.Array:
    fold = {Function.SUM: float_sums, Function.AVG: float_averages, Function.STDDEV: float_deviations}[
        function
    ]
    return pa.array(fold(measured.runs, measured.doubles, measured.valid), pa.float64())


def _of_integers(aggregate: Aggregate, measured: Measured) -> pa.Array:
    """For integers, and decimals as integers."""
    total, counts, scale = measured.sums, measured.counts, aggregate.scale
    if aggregate.function is Function.SUM:
        return decimals(total.low, total.high, pa.decimal128(38, scale), measured.there)
    if aggregate.function is Function.AVG:
        missing = None if measured.there is None else ~measured.there
        return pa.array(averages(total, counts, scale), mask=missing)
    found = deviations(measured.runs, measured.values, measured.valid, counts, scale)
    return pa.array(found, mask=counts < 2)


def _extreme(measured: Measured, *, least: bool) -> pa.Array:
    values, valid = measured.values, measured.valid
    if valid is not None:
        values = np.where(valid, values, _MOST if least else _LEAST)
    return measured.restored(measured.runs.least(values) if least else measured.runs.greatest(values))


def _at_edge(measured: Measured, *, first: bool) -> pa.Array:
    runs, valid = measured.runs, measured.valid
    if valid is None:
        positions = runs.starts if first else runs.stops - 1
    else:
        everywhere = np.arange(runs.total)
        positions = (
            runs.least(np.where(valid, everywhere, _MOST))
            if first
            else runs.greatest(np.where(valid, everywhere, -1))
        )
    there = measured.there
    missing = None
    if there is not None:
        positions, missing = np.where(there, positions, 0), ~there
    return plain(measured.column.take(pa.array(measured.picked.rows_at(positions), mask=missing)))


def _percentile(measured: Measured, quantile: Fraction) -> pa.Array:
    """The least value that at least this share of the values does not exceed."""
    counts = measured.counts
    sizes, which = np.unique(counts, return_inverse=True)
    ranks = np.array(
        [max(1, -(-quantile.numerator * n // quantile.denominator)) for n in sizes.tolist()], np.int64
    )
    positions = np.cumsum(counts) - counts + ranks[which] - 1
    if measured.there is not None:
        positions = np.where(measured.there, positions, 0)
    values = measured.sorted
    return measured.restored(values[positions] if values.size else np.zeros(counts.size, np.int64))
