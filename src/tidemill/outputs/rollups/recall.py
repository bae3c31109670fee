"""Reads the tiles from the footers of the rollups table, as the state would record them."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.model.levels import TileKey
from tidemill.outputs.rollups.tile_parts import TilesFooter
from tidemill.storage.state.protocol import TileBuild
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table


def tile_builds(table: Table, parts: Iterable[Part]) -> list[TileBuild]:
    builds = []
    for part in parts:
        footer = TilesFooter.from_footer(read_footer(table.root / part.path))
        level = footer.level
        builds += [
            TileBuild(TileKey(level, tile.start), tile.hash, tile.revision, part.path, tile.rows, tile.slices)
            for tile in footer.tiles
        ]
    return sorted(builds, key=lambda build: build.key)


def declarations(table: Table) -> dict[TileKey, str]:
    """For each tile in the table, the hash of the declarations that it was made for."""
    found: dict[TileKey, str] = {}
    for part in table.snapshot().parts:
        footer = TilesFooter.from_footer(read_footer(table.root / part.path))
        level = footer.level
        found |= {TileKey(level, tile.start): tile.declared for tile in footer.tiles}
    return found
