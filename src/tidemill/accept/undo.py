"""Takes whole batches out of raw and quarantine again, and says what is left behind them.

It only ever removes parts by a commit; the files stay until they are vacuumed, and no row is rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow.parquet as pq

from tidemill.lake.parts import read_footer
from tidemill.lake.table import Table
from tidemill.state.protocol import ClockState


def remove_batches(table: Table, batches: Collection[str], info: Mapping[str, str], now: int) -> int:
    """Remove the parts of these batches in one commit; how many there were. To do it again does nothing."""
    table.refresh()
    gone = [
        part for part in table.snapshot().parts if read_footer(table.root / part.path)["batch"] in batches
    ]
    if gone:
        table.commit([], gone, info=info, now=now)
    return len(gone)


def clocks_left(raw: Table) -> list[ClockState]:
    """The clocks of all sources as the batches that raw holds left them."""
    found: dict[str, ClockState] = {}
    for path in raw.snapshot().paths():
        clocks = read_footer(path)["clocks"]
        assert isinstance(clocks, list), path
        for told in clocks:
            source, seen, watermark = str(told["source"]), int(told["max_seen"]), int(told["watermark"])
            known = found.get(source, ClockState(source, seen, watermark))
            found[source] = ClockState(source, max(known.max_seen, seen), max(known.watermark, watermark))
    return [found[source] for source in sorted(found)]


def quarantined_rows(quarantine: Table | None) -> dict[str, int]:
    """How many rows of each slice are in quarantine."""
    counts: dict[str, int] = {}
    for path in quarantine.snapshot().paths() if quarantine is not None else ():
        for name in pq.read_table(path, partitioning=None, columns=["slice"]).column("slice").to_pylist():
            counts[name] = counts.get(name, 0) + 1
    return counts
