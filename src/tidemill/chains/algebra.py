"""What a delta does to a vector, as a value: applied, composed with others, taken back.

Pure, and in plain Python: the kernel in `fold` is the fast form of `apply`. It never decides in which order
deltas are applied. `compose` is not for where bits count: what floats add up to depends on their grouping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidemill.model.deltas import Delta, Op

Vector = tuple[float, ...]


def apply(vector: Vector | None, delta: Delta, dimension: int) -> Vector | None:
    """The vector after the delta; None is one that is not there. One operation per component, in float64."""
    if delta.op is Op.DELETE:
        return None
    out = list(vector) if vector is not None else [0.0] * dimension
    places = range(dimension) if delta.indices is None else delta.indices
    for at, i in enumerate(places):
        x = delta.values[at if len(delta.values) > 1 else 0]
        match delta.op:
            case Op.REPLACE | Op.SET:
                out[i] = x
            case Op.ADD | Op.OFFSET:
                out[i] = out[i] + x
            case Op.SCALE:
                out[i] = out[i] * x
    return tuple(out)


def apply_all(vector: Vector | None, deltas: Iterable[Delta], dimension: int) -> Vector | None:
    """One delta after the other, from the left."""
    for delta in deltas:
        vector = apply(vector, delta, dimension)
    return vector


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The identity: also what is not there stays so."""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no vector afterwards, whatever was there before."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Component i becomes v[i] * factor[i] + shift[i]; with factor 0 it is the constant shift[i].

    What is not there counts as zeros, and is there afterwards.
    """

    factor: Vector
    shift: Vector


Change = Unchanged | Affine | Gone

IDENTITY: Final = Unchanged()


def change_of(delta: Delta, dimension: int) -> Change:
    """What the delta does to any vector."""
    if delta.op is Op.DELETE:
        return Gone()
    factor, shift = [1.0] * dimension, [0.0] * dimension
    places = range(dimension) if delta.indices is None else delta.indices
    for at, i in enumerate(places):
        x = delta.values[at if len(delta.values) > 1 else 0]
        match delta.op:
            case Op.REPLACE | Op.SET:
                factor[i], shift[i] = 0.0, x
            case Op.ADD | Op.OFFSET:
                shift[i] = x
            case Op.SCALE:
                factor[i] = x
    return Affine(tuple(factor), tuple(shift))


def changed(change: Change, vector: Vector | None) -> Vector | None:
    """The vector after the change."""
    match change:
        case Unchanged():
            return vector
        case Gone():
            return None
        case Affine(factor, shift):
            before = vector if vector is not None else (0.0,) * len(shift)
            return tuple(s if f == 0.0 else v * f + s for v, f, s in zip(before, factor, shift, strict=True))


def compose(first: Change, then: Change) -> Change:
    """The one change that does what both do, one after the other.

    Equal to applying both wherever their arithmetic is exact; otherwise as close as one rounding each.
    """
    if isinstance(first, Unchanged) or isinstance(then, Gone):
        return then
    if isinstance(then, Unchanged):
        return first
    if isinstance(first, Gone):
        made = changed(then, None)
        assert made is not None
        return Affine((0.0,) * len(made), made)
    shift = changed(then, first.shift)
    assert shift is not None
    factor = tuple(a * b for a, b in zip(first.factor, then.factor, strict=True))
    return Affine(factor, shift)


def inverse(change: Change) -> Change | None:
    """What takes the change back from every vector that was there; None where there is no such change.

    Adding and offsetting have one, and scaling by what is not zero; what sets or deletes forgets.
    """
    match change:
        case Unchanged():
            return change
        case Affine(factor, shift) if all(f != 0.0 for f in factor):
            back = tuple(1.0 / f for f in factor)
            return Affine(back, tuple(0.0 - s / f for s, f in zip(shift, factor, strict=True)))
    return None


__all__ = [
    "IDENTITY",
    "Affine",
    "Change",
    "Gone",
    "Unchanged",
    "Vector",
    "apply",
    "apply_all",
    "change_of",
    "changed",
    "compose",
    "inverse",
]
