"""The operations on a vector, and a delta. Values only; `outputs/vectors` applies them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Op(StrEnum):
    """With `indices`, only those components are meant (sparse); without, all of them (dense).

    A vector that does not exist counts as zeros, except for `delete`, which has no effect on it.
    """

    REPLACE = "replace"  # becomes `values`; dense only
    SET = "set"  # v[i] = x
    ADD = "add"  # v[i] = v[i] + x
    SCALE = "scale"  # v[i] = v[i] * x; one value without indices: all of them by it
    OFFSET = "offset"  # v[i] = v[i] + x, with one value x for all components (or for `indices`)
    DELETE = "delete"  # the vector does not exist any more, until another delta creates it


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of one vector. Deltas of a vector are applied in order of (ts, delta_id)."""

    vector_id: str
    delta_id: str
    ts: int
    op: Op
    values: tuple[float, ...] = ()
    indices: tuple[int, ...] | None = None  # ascending, each once; None: dense
