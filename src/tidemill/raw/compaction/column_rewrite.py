"""Rewrites parts of raw whose columns were made by another declaration, or by none.

A part is written again with the same rows, in the same order and row groups, and with the same records in its
footer; only its columns, and the declaration that it names, change. The commit that replaces the old part is
the commit point. Until then readers take missing columns from the payload, so nothing waits for this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.formats.declared_columns import RawColumns
from tidemill.model.failpoints import failpoint
from tidemill.model.names import LARGE_PART
from tidemill.model.slices import set_hash
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT
from tidemill.raw.compaction.packing_folders import PackingFolder
from tidemill.raw.footers import PACKED, BatchFooter, PackedFooter, raw_footer
from tidemill.raw.part_names import is_large
from tidemill.raw.tables import show_columns, shows_all, stale_among
from tidemill.storage.tables.part_checksums import without_checksums

if TYPE_CHECKING:
    from tidemill.raw.accept.batch import Acceptor
    from tidemill.raw.compaction.pack_kernel import RewriteUnit
    from tidemill.storage.tables.snapshot import Part
    from tidemill.storage.tables.table import Table

# Imports inside functions keep start-up short: to count stale parts loads nothing that writes parts.

ROUND_BYTES: Final = 64 << 20  # bytes of parts that one commit replaces
_MADE: Final = re.compile(r"-c[0-9a-f]{8}$")  # ends the name of a part that was made again


@dataclass(frozen=True, slots=True)
class StaleColumns:
    """What has to be made again."""

    parts: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class RemadeColumns:
    """What was made again, and what is left."""

    parts: int
    rows: int
    left: StaleColumns

    @property
    def idle(self) -> bool:
        return not self.parts


def stale_parts(raw: Table, columns: RawColumns) -> list[Part]:
    """Parts whose columns are not those that would be made now, the newest events first."""
    snapshot = raw.snapshot()
    return sorted(stale_among(snapshot, snapshot.parts, columns), key=_newest, reverse=True)


def _newest(part: Part) -> tuple[int, str]:
    found = part.maxs.get("event_time")
    return found if isinstance(found, int) else MAX_INSTANT, part.path


def stale_columns(raw: Table, columns: RawColumns) -> StaleColumns:
    stale = stale_parts(raw, columns)
    return StaleColumns(len(stale), sum(part.rows for part in stale))


def is_up_to_date(raw: Table, columns: RawColumns) -> bool:
    """Whether all parts have the declared columns, and the table shows them."""
    return shows_all(raw, columns) and not stale_parts(raw, columns)


def remake_columns(acceptor: Acceptor, now: int) -> RemadeColumns:
    """Make again the parts with the newest events, about `ROUND_BYTES` of them, in one commit. The caller
    must hold the tick lock and have caught up, and no retraction may be in progress."""
    raw, columns = acceptor.raw, acceptor.columns
    raw.refresh()
    _show(acceptor, now)  # first: a new part must not have a type that the table does not show
    stale = stale_parts(raw, columns)
    chosen = _some(stale)
    if chosen:
        _replace(acceptor, chosen, now)
    left = stale[len(chosen) :]
    if not left:
        _show(acceptor, now)
    rest = StaleColumns(len(left), sum(part.rows for part in left))
    return RemadeColumns(len(chosen), sum(part.rows for part in chosen), rest)


def _show(acceptor: Acceptor, now: int) -> None:
    before = acceptor.raw.version
    show_columns(acceptor.raw, acceptor.columns, now)
    _record_version(acceptor, before)


def _record_version(acceptor: Acceptor, before: int) -> None:
    acceptor.state.record_seen(acceptor.stream.name, {"raw": acceptor.raw.version})
    acceptor.moved_on(before, acceptor.raw.version)


def _some(stale: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    size = 0
    for part in stale:
        if found and size + part.size > ROUND_BYTES:
            break
        found.append(part)
        size += part.size
    return found


def _replace(acceptor: Acceptor, parts: Sequence[Part], now: int) -> None:
    from tidemill.raw.compaction.pack_kernel import rewrite

    raw = acceptor.raw
    tag = set_hash([*(part.path for part in parts), acceptor.columns.id])[:24]
    packing_folder = PackingFolder(raw.root, tag)
    try:
        units = [_unit(raw, part, acceptor.columns, packing_folder.folder) for part in parts]
        size = sum(part.size for part in parts)
        done = acceptor.engine.run(rewrite, units, "columns", size)
        written = [
            replace(one.part, name=_named(one.part.name, part, acceptor.columns))
            for one, part in zip(done, parts, strict=True)
            if one.part is not None
        ]
        assert [one.rows for one in written] == [part.rows for part in parts], "no row is lost"
        failpoint("columns.after_build")
        before = raw.version
        published = raw.publish(written)
        failpoint("columns.before_commit")
        raw.commit(published, parts, info={PACKED: tag}, now=now, data_change=False)
        failpoint("columns.after_commit")
        _record_version(acceptor, before)
    finally:
        packing_folder.close()


def _unit(raw: Table, part: Part, columns: RawColumns, folder: Path) -> RewriteUnit:
    from tidemill.raw.compaction.pack_kernel import RewriteUnit

    path = str(raw.root / part.path)
    footer = raw_footer(path)
    assert isinstance(footer, BatchFooter | PackedFooter), part.path
    return RewriteUnit(
        inputs=[path],
        seqs=None,
        span=(MIN_INSTANT, MAX_INSTANT),
        partition=part.partition,
        folder=str(folder),
        name=f"{set_hash([part.path])[:24]}.parquet",  # parts of two folders may have the same name
        footer=footer,
        sort=False,
        columns=columns,
    )


def _named(made: str, part: Part, columns: RawColumns) -> str:
    """The name of the part that it replaces, which names its batch, with the declaration and checksums."""
    sums = made.removeprefix(without_checksums(made).removesuffix(".parquet"))
    stem = without_checksums(Path(part.path).name).removesuffix(".parquet")
    large = f"-{LARGE_PART}" if is_large(part) else ""
    plain = _MADE.sub("", stem.removesuffix(large) if large else stem)
    return f"{plain}-c{columns.id[:8]}{large}{sums}"
