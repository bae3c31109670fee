"""What the parts of the rollups table say of themselves: the tiles they are, as the state would have it."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.lake.parts import read_footer
from tidemill.lake.snapshot import Part
from tidemill.lake.table import Table
from tidemill.model.tiles import TileKey
from tidemill.state.protocol import TileBuild


def tile_builds(table: Table, parts: Iterable[Part]) -> list[TileBuild]:
    builds = []
    for part in parts:
        footer = read_footer(table.root / part.path)
        tiles = footer["tiles"]
        assert isinstance(tiles, list)
        builds += [
            TileBuild(
                key=TileKey(str(footer["level"]), int(tile["start"])),
                hash=str(tile["hash"]),
                revision=int(tile["revision"]),
                part=part.path,
                rows=int(tile["rows"]),
                slices=frozenset(str(name) for name in tile["slices"]),
            )
            for tile in tiles
        ]
    return sorted(builds, key=lambda build: build.key)


def declarations(table: Table) -> dict[TileKey, str]:
    """For each tile that the table holds, the hash of the declarations that it was made for."""
    found: dict[TileKey, str] = {}
    for part in table.snapshot().parts:
        footer = read_footer(table.root / part.path)
        tiles = footer["tiles"]
        assert isinstance(tiles, list)
        level, declared = str(footer["level"]), str(footer.get("declared", ""))
        found |= {TileKey(level, int(tile["start"])): declared for tile in tiles}
    return found
