"""All streams at a glance, cheap enough to be looked at every second: rates, lag, outcomes, queue, problems.

It reads the state alone, never a table, so it costs the same however long the history is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidemill.model.levels import BASE
from tidemill.model.slices import CountedAs, SliceStatus
from tidemill.model.time import MINUTE, SECOND
from tidemill.model.windows import Phase
from tidemill.pipeline.scrub_progress import scrub_status
from tidemill.storage.state.faults import WAREHOUSE, Fault, faults_of

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

OVER: Final = MINUTE  # that a rate is of
_LOOKED_AT: Final = 1_000  # newest slices that a rate is taken from, at most


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that needs somebody, and what to do."""

    what: str  # fault, failed_slices, failed_windows or damage
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class StreamOverview:
    """One stream as it is now."""

    stream: str
    description: str
    per_second: float  # accepted events, by arrival, of the last minute
    newest_arrival: int | None
    watermark: int | None
    outcomes: Mapping[str, int]
    rejects: Mapping[str, int]
    slices: Mapping[str, int]
    windows: Mapping[str, int]  # by phase; empty: it has none
    stale_tiles: int
    rollups_through: int | None  # events before this instant are in the rollups; None: there is none
    datasets_through: int | None  # end of the newest window that is built
    problems: Sequence[Problem] = field(default_factory=tuple)

    def lag(self, now: int) -> int | None:
        return None if self.watermark is None else now - self.watermark


def overview_of(workers: Workers, stream: str) -> StreamOverview:
    state, declared = workers.state, workers.project.stream(stream)
    totals, now = state.totals(stream), workers.warehouse.clock()
    newest = state.slices(stream, newest=True, limit=_LOOKED_AT)
    recent = [one for one in newest if one.slice.arrival > now - OVER]
    stale = [one.state.key.start for one in state.stale_tiles(stream)] if declared.metrics else []
    built = state.windows(stream, Phase.BUILT, newest=True, limit=1) if declared.aggregation_span else []
    windows = state.window_counts(stream) if declared.aggregation_span else {}
    seen = max((clock.max_seen for clock in state.clocks(stream)), default=None)
    rolled = None if seen is None or not declared.metrics else seen - seen % BASE.width + BASE.width
    return StreamOverview(
        stream=stream,
        description=declared.description,
        per_second=sum(one.counts.accepted for one in recent) * SECOND / OVER,
        newest_arrival=newest[0].slice.arrival if newest else None,
        watermark=workers.watermark(stream),
        outcomes={each.value: totals[each.value] for each in CountedAs},
        rejects={
            name.removeprefix("reject_"): count
            for name, count in sorted(totals.items())
            if name.startswith("reject_") and count
        },
        slices={each.value: totals[f"{each.value}_slices"] for each in SliceStatus},
        windows={phase.value: windows.get(phase, 0) for phase in Phase} if windows else {},
        stale_tiles=len(stale),
        rollups_through=min(stale, default=rolled),
        datasets_through=built[0].key.end if built else None,
        problems=list(_problems(workers, stream, totals, windows)),
    )


def problems_of_all(workers: Workers) -> list[Problem]:
    """What is not of one stream: faults of work for all, and damaged files."""
    found = [_of_fault(fault) for fault in faults_of(workers.state, WAREHOUSE)]
    damaged = len(scrub_status(workers.state).damages)
    if damaged:
        files = "file is" if damaged == 1 else "files are"
        found.append(
            Problem("damage", f"{damaged} {files} damaged", "`tidemill repair --explain` says which")
        )
    return found


def _problems(
    workers: Workers, stream: str, totals: Mapping[str, int], windows: Mapping[Phase, int]
) -> Iterator[Problem]:
    yield from (_of_fault(fault) for fault in faults_of(workers.state, stream))
    if failed := totals["failed_slices"]:
        said = f"{failed} slice{'s' if failed > 1 else ''} cannot be read"
        yield Problem("failed_slices", said, f"`tidemill ledger {stream} --status failed` says why")
    if failed := windows.get(Phase.FAILED, 0):
        said = f"{failed} window{'s' if failed > 1 else ''} could not be built"
        hint = f"`tidemill windows {stream} --state failed` says why; then `tidemill retry {stream}`"
        yield Problem("failed_windows", said, hint)


def _of_fault(fault: Fault) -> Problem:
    return Problem("fault", f"{fault.output}: {fault.message}", fault.hint)
