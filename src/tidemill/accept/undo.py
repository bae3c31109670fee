"""Takes whole batches out of raw and quarantine again, and says what is left behind them.

It only ever removes parts by a commit; the files stay until they are vacuumed, and no row is rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow.parquet as pq

from tidemill.accept.clocks import TimeRules, all_again, recorded, settled
from tidemill.accept.recall import clocks_told, footers
from tidemill.lake.parts import read_footer
from tidemill.lake.table import Table
from tidemill.model.slices import SliceEntry
from tidemill.state.protocol import ClockState, Progress


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
        for told in (clock for footer in footers(path) for clock in clocks_told(footer)):
            known = found.get(told.source, told)
            found[told.source] = ClockState(
                told.source,
                max(known.max_seen, told.max_seen),
                max(known.watermark, told.watermark),
                max(known.arrival, told.arrival),
            )
    return [found[source] for source in sorted(found)]


def progress_left(raw: Table, rules: TimeRules, entries: Sequence[SliceEntry]) -> Progress:
    """How far a stream has come by the slices that its ledger holds as accepted, and raw with it. What a
    batch said of it does not hold once another one was undone."""
    return all_again(rules, recorded(settled(entries)), raw)[0].progress


def quarantined_rows(quarantine: Table | None) -> dict[str, int]:
    """How many rows of each slice are in quarantine."""
    counts: dict[str, int] = {}
    for path in quarantine.snapshot().paths() if quarantine is not None else ():
        for name in pq.read_table(path, partitioning=None, columns=["slice"]).column("slice").to_pylist():
            counts[name] = counts.get(name, 0) + 1
    return counts
