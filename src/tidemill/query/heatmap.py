"""The bins of histograms as rows: which bins a cell has, how many samples each holds, and their bounds. Works
on whole columns, independent of plans and files."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import QueryError
from tidemill.model.metrics import Bins
from tidemill.query.dimensions import BIN_COUNTS, BINS
from tidemill.query.groups import flat, group_numbers

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

BIN: Final = "\0bin"  # a column name that cannot be written in a query
MAX_ROWS: Final = 1_000_000
NOTHING: Final = -1  # the count of a bin without samples in a cell
_CONTEXT: Final = Context(prec=60)

Counted = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


def counted(
    bins: pa.Table, cells: pa.Table, keys: list[str], groups: list[str], filled: NDArray[np.bool_]
) -> Counted:
    """For each row of a heatmap its row in `cells`, its bin, and the number of samples.

    `bins` has lists of bins and of their counts by the same keys, several for a cell. A cell that is `filled`
    also has a row with `NOTHING` for each bin that its group has only in other cells.
    """
    import numpy as np

    numbers = group_numbers([cells, bins], keys)
    row_of = np.full(int(numbers.max(initial=-1)) + 1, -1, np.int64)
    row_of[numbers[: cells.num_rows]] = np.arange(cells.num_rows)
    lists, held = (flat(bins.column(name)) for name in (BINS, BIN_COUNTS))
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    at = np.repeat(row_of[numbers[cells.num_rows :]], lengths)
    which, counts = (each.flatten().to_numpy(zero_copy_only=False).astype(np.int64) for each in (lists, held))
    pairs, inverse = np.unique(np.stack([at, which], axis=1), axis=0, return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, inverse.reshape(-1), counts)
    empty, missing = _without_samples(cells, groups, pairs, filled)
    return (
        np.concatenate([pairs[:, 0], empty]),
        np.concatenate([pairs[:, 1], missing]),
        np.concatenate([sums, np.full(len(empty), NOTHING, np.int64)]),
    )


def _without_samples(
    cells: pa.Table, groups: list[str], pairs: NDArray[np.int64], filled: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `cells` that are filled, with the bins that their group has only in other cells."""
    import numpy as np

    of_cells = group_numbers([cells], groups)
    known = np.unique(np.stack([of_cells[pairs[:, 0]], pairs[:, 1]], axis=1), axis=0)
    wanted_cells, wanted_bins = list[int](), list[int]()
    has = set(map(tuple, pairs.tolist()))
    of_group: dict[int, list[int]] = {}
    for group, bin in known.tolist():
        of_group.setdefault(group, []).append(bin)
    for row in np.flatnonzero(filled).tolist():
        for bin in of_group.get(int(of_cells[row]), ()):
            if (row, bin) not in has:
                wanted_cells.append(row)
                wanted_bins.append(bin)
        if len(wanted_cells) > MAX_ROWS:
            raise QueryError(
                f"filling the bins of {cells.num_rows} cells makes more than {MAX_ROWS} rows",
                hint="use FILL drop, a longer INTERVAL, a shorter span or fewer groups",
            )
    return np.array(wanted_cells, np.int64), np.array(wanted_bins, np.int64)


def bounds_of(bins: Bins, numbers: NDArray[np.int64], scale: int) -> tuple[pa.Array, pa.Array]:
    """The bounds of these bins, spelled like samples; null if a bin has no bound.

    Declared bounds and positive bins: above `lower`, up to `upper`. Negative bins of a log scale are their
    mirror image; the bin of 0 alone has both at 0.
    """
    import pyarrow as pa

    kind = pa.decimal128(38, scale)
    known = {bin: ends_of(bins, bin) for bin in set(numbers.tolist())}
    sides = ([known[bin][side] for bin in numbers.tolist()] for side in (0, 1))
    lower, upper = (
        pa.array([None if end is None else Decimal(end).scaleb(-scale, _CONTEXT) for end in ends], type=kind)
        for ends in sides
    )
    return lower, upper


def ends_of(bins: Bins, bin: int) -> tuple[int | None, int | None]:
    """The bounds of a bin, scaled; None if it has no bound."""
    if bins.bounds is not None:
        low = bins.bounds[bin - 1] if bin > 0 else None
        return low, bins.bounds[bin] if bin < len(bins.bounds) else None
    assert bins.edges is not None
    if bin == 0:
        return 0, 0
    low, high = bins.edges[abs(bin) - 1], bins.edges[abs(bin)]
    return (low, high) if bin > 0 else (-high, -low)
