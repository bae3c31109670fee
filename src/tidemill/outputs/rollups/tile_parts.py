"""The parts of the rollups table: each holds many tiles of one level, and its footer names them.

A level is cut into parts by size, at the borders of tiles, independent of days. A tile is in exactly one
part. Which tiles are written together is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.model.levels import BASE, Level, TileKey
from tidemill.model.metrics import MetricKind
from tidemill.model.slices import hash_of, set_hash
from tidemill.outputs.rollups.cells import Cells
from tidemill.outputs.rollups.rows import to_rows
from tidemill.outputs.rollups.spec import STATS, RollupSpec
from tidemill.storage.state.protocol import TileBuild
from tidemill.storage.tables.footers import (
    Footer,
    as_fields,
    fields_in,
    invalid_footer,
    items_in,
    number_in,
    text_in,
    texts_in,
)
from tidemill.storage.tables.parts import StagedPart, read_footer, write_part
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

T = TypeVar("T")

PART_ROWS: Final = 32_768  # rows of a part, about; a tile with more is a part of its own
BINS_PER_ROW: Final = 16  # so many bins of a histogram take the space of a row
_REPEATED: Final = ("bucket", "count")  # suffixes of columns with few values: faster by dictionary


class Tile(NamedTuple):
    """A tile as the footer of its part describes it. A tuple, since there may be very many."""

    start: int
    hash: str
    revision: int
    declared: str  # hash of the declarations that it was made for
    slices: frozenset[str] = frozenset()  # for a 5s tile: its slices
    rows: int = 0


@dataclass(frozen=True, slots=True)
class TilePart:
    """A staged part with its tiles."""

    level: str
    part: StagedPart
    tiles: Sequence[Tile]
    carried: bool = False  # its tiles are the same as before, in another part


# -- footers


@dataclass(frozen=True, slots=True)
class TilesFooter:
    """The footer of a part: its tiles, all of one level."""

    stream: str
    level: str
    tiles: Sequence[Tile]

    def to_footer(self) -> dict[str, object]:
        """By column, and each name once: a part may hold thousands of tiles. The hash of a 5s tile is that of
        its slices."""
        tiles = self.tiles
        declared = sorted({tile.declared for tile in tiles})
        columns: dict[str, object] = {
            "start": [tile.start for tile in tiles],
            "revision": [tile.revision for tile in tiles],
            "rows": [tile.rows for tile in tiles],
        }
        footer: dict[str, object] = {
            "kind": "tiles",
            "stream": self.stream,
            "level": self.level,
            "declared": declared,
        }
        if len(declared) > 1:
            columns["declared"] = [declared.index(tile.declared) for tile in tiles]
        if self.level == BASE.name:
            distinct = {tile.slices for tile in tiles}
            names = sorted({name for slices in distinct for name in slices})
            at = {name: i for i, name in enumerate(names)}
            places = {slices: sorted(at[name] for name in slices) for slices in distinct}
            columns["slices"] = [places[tile.slices] for tile in tiles]
            footer["slices"] = names
        else:
            columns["hash"] = [tile.hash for tile in tiles]
        return footer | {"tiles": columns}

    @staticmethod
    def from_footer(footer: Footer) -> TilesFooter:
        """Read a footer. Parts of earlier versions name their tiles one by one."""
        by_column = isinstance(footer.get("tiles"), dict)
        tiles = _by_column(footer) if by_column else _one_by_one(footer)
        return TilesFooter(text_in(footer, "stream", ""), text_in(footer, "level"), tiles)


def _by_column(footer: Footer) -> list[Tile]:
    columns, declared = fields_in(footer, "tiles"), texts_in(footer, "declared")
    names = texts_in(footer, "slices") if "slices" in footer else ()
    starts = _numbers(columns, "start")
    chosen = items_in(columns, "slices") if "slices" in columns else [[]] * len(starts)
    try:
        sets = [frozenset(names[i] for i in _checked(which, int, "slices")) for which in chosen]
        return [
            Tile(start, digest, revision, declared[of], slices, rows)
            for start, digest, revision, of, slices, rows in zip(
                starts,
                _checked(columns["hash"], str, "hash") if "hash" in columns else map(hash_of, sets),
                _numbers(columns, "revision"),
                _numbers(columns, "declared") if "declared" in columns else [0] * len(starts),
                sets,
                _numbers(columns, "rows"),
                strict=True,
            )
        ]
    except (ValueError, IndexError) as error:  # columns of different lengths, or an invalid number
        raise invalid_footer("tiles") from error


def _numbers(columns: Footer, key: str) -> list[int]:
    return _checked(columns.get(key), int, key)


def _checked(values: object, kind: type[T], key: str) -> list[T]:
    """Checked without a loop in Python: there may be very many values."""
    if not isinstance(values, list) or not set(map(type, values)) <= {kind}:
        raise invalid_footer(key)
    return values


def _one_by_one(footer: Footer) -> list[Tile]:
    declared = text_in(footer, "declared", "")
    return [
        Tile(
            start=number_in(tile, "start"),
            hash=text_in(tile, "hash"),
            revision=number_in(tile, "revision"),
            declared=declared,
            slices=frozenset(texts_in(tile, "slices")),
            rows=number_in(tile, "rows"),
        )
        for tile in (as_fields(one, "tiles") for one in items_in(footer, "tiles"))
    ]


# -- writing


def write_tiles(
    spec: RollupSpec, level: Level, tiles: Sequence[Tile], cells: Cells, folder: Path
) -> Iterator[TilePart]:
    """Write the tiles of one level, with their cells, in as many parts as needed."""
    if not tiles:
        return
    tiles = sorted(tiles, key=attrgetter("start"))
    starts = np.array([tile.start for tile in tiles], np.int64)
    positions = {name: _positions(table, starts, level) for name, table in cells.items()}
    rows = _counted(positions.values(), starts.size)
    groups = cut_by_weight(_weights(spec, cells, positions, rows), -(-int(rows.sum()) // PART_ROWS) or 1)
    divided = _divided(cells, positions, groups, starts.size)
    for group, its in zip(groups, divided, strict=True):
        named = [
            Tile(start, digest, revision, declared, slices, count)
            for (start, digest, revision, declared, slices, _), count in zip(
                tiles[group], rows[group].tolist(), strict=True
            )
        ]
        yield TilePart(level.name, _write(spec, level, named, its, folder), named)


def _positions(table: pa.Table, starts: Ints, level: Level) -> Ints:
    """The position of each row's tile."""
    bucket = one(table.column("bucket")).to_numpy()
    found: Ints = np.searchsorted(starts, bucket, side="right") - 1
    assert not bucket.size or (found.min() >= 0 and bool((bucket < starts[found] + level.tile).all()))
    return found


def _counted(positions: Iterable[Ints], size: int) -> Ints:
    total = np.zeros(size, np.int64)
    for position in positions:
        total += np.bincount(position, minlength=size)
    return total


def _weights(spec: RollupSpec, cells: Cells, positions: Mapping[str, Ints], rows: Ints) -> Ints:
    """The size of each tile, in rows."""
    weights = rows.copy()
    for metric in spec.metrics:
        table = cells.get(metric.name)
        if metric.kind is MetricKind.HISTOGRAM and table is not None and table.num_rows:
            offsets = one(table.column("bins")).offsets.to_numpy()
            bins = np.bincount(positions[metric.name], np.diff(offsets), minlength=rows.size)
            weights += bins.astype(np.int64) // BINS_PER_ROW
    return weights


def cut_by_weight(weights: Ints, most: int) -> list[slice]:
    """Runs of neighbouring tiles, at most so many, of about the same weight: as `spread` does it, but a step
    for each run, not for each tile."""
    target = max(1, -(-int(weights.sum()) // max(1, most)))
    middles = np.cumsum(weights) - weights / 2
    begins = [0]
    while len(begins) < most:
        end = max(int(np.searchsorted(middles, target * len(begins), "right")), begins[-1] + 1)
        if end >= weights.size:
            break
        begins.append(end)
    return [slice(begin, end) for begin, end in pairwise([*begins, weights.size])]


def _divided(
    cells: Cells, positions: Mapping[str, Ints], groups: Sequence[slice], tiles: int
) -> Iterator[Cells]:
    """The cells of each group of tiles, in their order."""
    if len(groups) == 1:
        yield cells
        return
    group_of = np.empty(tiles, np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    sorted_by_group: dict[str, tuple[pa.Table, Ints]] = {}
    for name, table in cells.items():
        of_row = group_of[positions[name]]
        order = np.argsort(of_row, kind="stable")
        ends = np.searchsorted(of_row[order], np.arange(len(groups) + 1))
        sorted_by_group[name] = (table.take(pa.array(order)), ends)
    for number in range(len(groups)):
        yield {
            name: table.slice(int(ends[number]), int(ends[number + 1] - ends[number]))
            for name, (table, ends) in sorted_by_group.items()
        }


def _write(spec: RollupSpec, level: Level, tiles: Sequence[Tile], cells: Cells, folder: Path) -> StagedPart:
    name = set_hash(f"{tile.start}:{tile.revision}:{tile.hash}" for tile in tiles)[:24]
    table = to_rows(spec, cells)
    return write_part(
        folder,
        f"{level.name}-{tiles[0].start}-{name}.parquet",
        table,
        partition={"level": level.name},
        footer=TilesFooter(spec.stream, level.name, tiles).to_footer(),
        stats_columns=STATS,
        dictionary=[each for each in table.column_names if each.endswith(_REPEATED)],
    )


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
