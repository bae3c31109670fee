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
        slices = footer["slices"]
        assert isinstance(slices, list)
        builds.append(
            TileBuild(
                key=TileKey(str(footer["level"]), int(str(footer["start"]))),
                hash=str(footer["hash"]),
                revision=int(str(footer["revision"])),
                part=part.path,
                rows=part.rows,
                slices=frozenset(str(name) for name in slices),
            )
        )
    return sorted(builds, key=lambda build: build.key)
