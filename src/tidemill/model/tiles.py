"""Tiles: the pieces of a rollup level that are rewritten as a whole, and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TileKey:
    """One tile of one level of a stream."""

    level: str
    start: int


@dataclass(frozen=True, slots=True)
class TileState:
    """What a tile was last made of. `hash` is None before it was first built."""

    key: TileKey
    hash: str | None
    revision: int
    part: str | None  # path of the part that holds it, relative to the rollups table
    rows: int


@dataclass(frozen=True, slots=True)
class BaseTile:
    """A tile of the 5s level with the slices it should be made of and was made of."""

    state: TileState
    desired: frozenset[str]
    observed: frozenset[str]
