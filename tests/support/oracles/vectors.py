"""What a vector is at an instant, said as simply as it can be: every delta up to it, one after the other.

It never imports the engine and keeps every delta; the bits of what it answers are the definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tidemill.model.deltas import Delta, Op


class VectorOracle:
    """All deltas of a stream, in any order of arrival. Each delta_id is given once. When vectors stay
    `finite`, a delta after which a component would not be is left out."""

    def __init__(self, dimension: int, deltas: Iterable[Delta] = (), *, finite: bool = False) -> None:
        self.dimension = dimension
        self.finite = finite
        self.deltas: list[Delta] = list(deltas)

    def add(self, *deltas: Delta) -> None:
        self.deltas.extend(deltas)

    @property
    def ids(self) -> list[str]:
        """Every vector that a delta was ever about, in order."""
        return sorted({delta.vector_id for delta in self.deltas})

    def chain(self, vector_id: str, instant: int | None = None) -> list[Delta]:
        """Its deltas up to an instant (None: all of them), in the order in which they count."""
        own = [d for d in self.deltas if d.vector_id == vector_id and (instant is None or d.ts <= instant)]
        return sorted(own, key=lambda delta: (delta.ts, delta.delta_id))

    def at(self, vector_id: str, instant: int | None = None) -> list[float] | None:
        """The vector at an instant (None: after all there is); None when it is not there."""
        vector: list[float] | None = None
        for delta in self.chain(vector_id, instant):
            after = self._after(vector, delta)
            if not (self.finite and after is not None and not all(map(math.isfinite, after))):
                vector = after
        return vector

    def _after(self, vector: list[float] | None, delta: Delta) -> list[float] | None:
        if delta.op == Op.DELETE:
            return None
        if delta.op == Op.REPLACE:
            return list(delta.values)
        after = [0.0] * self.dimension if vector is None else list(vector)
        positions = list(range(self.dimension)) if delta.indices is None else list(delta.indices)
        values = list(delta.values)
        if delta.op == Op.OFFSET or (delta.op == Op.SCALE and delta.indices is None and len(values) == 1):
            values = values * len(positions)  # one for all of them
        for position, value in zip(positions, values, strict=True):
            if delta.op == Op.SET:
                after[position] = value
            elif delta.op == Op.SCALE:
                after[position] = after[position] * value
            else:
                after[position] = after[position] + value
        return after


__all__ = ["VectorOracle"]
