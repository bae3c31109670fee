"""Finds what is lost for good with a damaged part of rollups or of streaming results, from the log of its
table: for `recover`, which has no state that knows the contents of the part. It only reads.
"""

from __future__ import annotations

from pathlib import Path

from tidemill.ingest.expiry_log import WINDOWS, Loss
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.damage import Damage, FileKind
from tidemill.model.levels import BY_NAME, LEVELS, Level, TileKey
from tidemill.model.names import ROLLUPS
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.outputs.rollups.planning import horizons_of
from tidemill.outputs.windows.damage import lost_span, sealed_before
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table


def lost_with(warehouse: Warehouse, damage: Damage, now: int) -> list[Loss]:
    """The losses; none if everything in the part can be made again."""
    if damage.kind not in (FileKind.ROLLUP, FileKind.RESULT):
        return []
    part = _part(warehouse.root, damage)
    if part is None or not part.rows:
        return []
    if damage.kind is FileKind.RESULT:
        return _results(warehouse, damage, part, now)
    level = BY_NAME[part.partition["level"]]
    until = _gone_before(warehouse, damage.stream, level)
    if until is None:
        return []
    span = _tiles(level, part, until)
    if span.start == span.end:
        return []
    above = LEVELS[LEVELS.index(level) + 1 :]
    changing = [one for one in above if one.tile_of(span.end - 1) + one.tile > until]
    spans = [(level, span), *((one, _around(one, span)) for one in changing)]
    return [Loss(damage.stream, f"{ROLLUPS}{one.name}", of, damage.file, now) for one, of in spans]


def _part(root: Path, damage: Damage) -> Part | None:
    folder = root / Path(*Path(damage.file).parts[: 3 if damage.kind is FileKind.RESULT else 2])
    table = Table.existing(folder)
    path = (root / damage.file).relative_to(folder).as_posix()
    return None if table is None else table.snapshot().by_path.get(path)


def _gone_before(warehouse: Warehouse, stream: str, level: Level) -> int | None:
    """The instant before which tiles cannot be made again from raw. Whether the tiles below are intact is not
    known yet; what a finer level still has is read from there."""
    horizons = horizons_of(warehouse, stream)
    if horizons.raw is None:
        return None
    # A tile that has expired, and that raw has a part of, cannot be made again: nor can those below it.
    above = (TileKey(one.name, one.tile_of(horizons.raw)) for one in LEVELS[LEVELS.index(level) + 1 :])
    unkept = (
        key.start + BY_NAME[key.level].tile for key in above if horizons.let_go(key) and horizons.sealed(key)
    )
    return max((horizons.raw, *unkept)) if level != LEVELS[0] else horizons.raw


def _tiles(level: Level, part: Part, until: int) -> Interval:
    """The tiles from the first to the last one that the part can have held, and that cannot be made again."""
    first, last = part.mins.get("bucket"), part.maxs.get("bucket")
    start = level.tile_of(first) if isinstance(first, int) else level.tile_of(MIN_INSTANT) + level.tile
    end = level.tile_of(min(last, until - 1) if isinstance(last, int) else until - 1) + level.tile
    return Interval(start, max(start, end) if start < until else start)


def _around(level: Level, span: Interval) -> Interval:
    return Interval(level.tile_of(span.start), level.tile_of(span.end - 1) + level.tile)


def _results(warehouse: Warehouse, damage: Damage, part: Part, now: int) -> list[Loss]:
    window = Path(damage.file).parts[2]
    specs = {spec.name: spec for spec in warehouse.project.stream(damage.stream).window_specs}
    if window not in specs:
        return []
    sealed = sealed_before(specs[window], warehouse.expiries.horizons(damage.stream))
    span = None if sealed is None else lost_span(part, sealed)
    return [] if span is None else [Loss(damage.stream, f"{WINDOWS}{window}", span, damage.file, now)]
