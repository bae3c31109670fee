"""What expired 5s tiles were made of, for a new state: only the levels above them still show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from tidemill.model.levels import BASE, BY_NAME, LEVELS, BaseTile, Level, TileKey, below
from tidemill.model.slices import contribution_of, hash_of
from tidemill.outputs.rollups.planning import is_made_of, tiles_hash
from tidemill.storage.state.protocol import TileBuild

MOST: Final = 1000  # slices that had not reached the levels above: as many are tried
Sets = Mapping[int, frozenset[str]]  # by 5s tile


@dataclass(slots=True)
class BuiltTiles:
    """The hashes of the tiles that a table holds."""

    hashes: Mapping[str, Mapping[int, str]]  # by level and start
    _below: dict[TileKey, dict[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for level in LEVELS[1:]:
            under = below(level)
            assert under is not None
            for start, digest in self.hashes.get(under.name, {}).items():
                self._below.setdefault(TileKey(level.name, level.tile_of(start)), {})[start] = digest

    def above(self, start: int) -> TileKey | None:
        """The finest tile above a 5s tile that the table holds."""
        keys = (TileKey(level.name, level.tile_of(start)) for level in LEVELS[1:])
        return next((key for key in keys if key.start in self.hashes.get(key.level, {})), None)

    def is_made_of(self, key: TileKey, sets: Sets) -> bool:
        """Whether a tile of the table was made of these 5s tiles, beside those below it in the table."""
        digest = self.hashes[key.level][key.start]
        return is_made_of(digest, self._made_of(BY_NAME[key.level], key.start, sets))

    def _made_of(self, level: Level, start: int, sets: Sets) -> dict[int, str]:
        under = below(level)
        assert under is not None
        found = dict(self._below.get(TileKey(level.name, start), {}))
        if under is BASE:
            return found | {one: hash_of(names) for one, names in sets.items()}
        groups: dict[int, dict[int, frozenset[str]]] = {}
        for one, names in sets.items():
            groups.setdefault(under.tile_of(one), {})[one] = names
        return {one: tiles_hash(self._made_of(under, one, of)) for one, of in groups.items()} | found


def expired_tiles(
    tiles: Sequence[BaseTile], built: BuiltTiles, offsets: Mapping[str, int]
) -> list[TileBuild]:
    """The 5s tiles that are no longer kept, as they were last built. That is of all their slices, or, if the
    tile above says otherwise, without the last ones of the ledger: it had not got them yet when the state was
    lost. `offsets`: those of slices in the ledger."""
    groups: dict[TileKey | None, dict[int, frozenset[str]]] = {}
    for tile in tiles:
        start = tile.state.key.start
        groups.setdefault(built.above(start), {})[start] = tile.desired
    found: list[TileBuild] = []
    for key, sets in groups.items():
        made_of = sets if key is None else _as_built(key, sets, built, offsets)
        found += [
            TileBuild(TileKey(BASE.name, start), hash_of(names), 0, None, 0, names)
            for start, names in made_of.items()
            if names
        ]
    return found


def _as_built(key: TileKey, sets: Sets, built: BuiltTiles, offsets: Mapping[str, int]) -> Sets:
    if built.is_made_of(key, sets):
        return sets
    by_name = {name: offsets[contribution_of(name)[0]] for names in sets.values() for name in names}
    for last in islice(sorted(set(by_name.values()), reverse=True), MOST):
        before = {
            start: frozenset(name for name in names if by_name[name] < last) for start, names in sets.items()
        }
        if built.is_made_of(key, before):
            return before
    return sets
