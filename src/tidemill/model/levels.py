"""The five rollup levels, their tiles (the pieces that are rewritten as a whole), and which level answers
an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidemill.model.errors import QueryError
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, WEEK, align, format_duration


@dataclass(frozen=True, slots=True)
class Level:
    """Buckets of `width`, rewritten in tiles of `tile`; every tile holds whole tiles of the level below."""

    name: str
    width: int
    tile: int

    def tile_of(self, us: int) -> int:
        return align(us, self.tile)


LEVELS: Final[tuple[Level, ...]] = (
    Level("5s", 5 * SECOND, 15 * MINUTE),
    Level("1m", MINUTE, HOUR),
    Level("1h", HOUR, DAY),
    Level("1d", DAY, 28 * DAY),
    Level("7d", WEEK, 364 * DAY),
)
BASE: Final = LEVELS[0]
BY_NAME: Final = {level.name: level for level in LEVELS}
NAMES: Final = tuple(BY_NAME)
TO_BE_MADE: Final = ""  # the hash of a 5s tile that is made again for the sake of those above it


def below(level: Level) -> Level | None:
    index = LEVELS.index(level)
    return LEVELS[index - 1] if index else None


def level_named(name: str) -> Level:
    try:
        return BY_NAME[name]
    except KeyError:
        raise QueryError(f"there is no rollup level {name!r}", hint=f"levels: {', '.join(NAMES)}") from None


def level_for(interval: int) -> Level:
    """The largest level that divides `interval`."""
    for level in reversed(LEVELS):
        if interval > 0 and interval % level.width == 0:
            return level
    raise QueryError(
        f"no rollup level divides an interval of {format_duration(interval)}",
        hint=f"use a multiple of one of the levels {', '.join(NAMES)}",
    )


class TileKey(NamedTuple):
    """One tile of one level of a stream. A tuple, as what follows: there may be very many."""

    level: str
    start: int


class TileState(NamedTuple):
    """What a tile was last made of. `hash` is None before it was first built."""

    key: TileKey
    hash: str | None
    revision: int
    part: str | None  # path of the part that holds it, relative to the rollups table
    rows: int


class BaseTile(NamedTuple):
    """A tile of the 5s level with the slices it should be made of and was made of."""

    state: TileState
    desired: frozenset[str]
    observed: frozenset[str]
