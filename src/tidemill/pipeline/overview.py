"""All streams at a glance, cheap enough for every second: rates, lag, outcomes, queue, problems.

It reads only the state, never a table, so its cost does not depend on the length of the history.
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
from tidemill.pipeline.status import quarantined
from tidemill.raw.tenant_clock import own_rows, own_watermark
from tidemill.storage.state.faults import WAREHOUSE, Fault, faults_of

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

OVER: Final = MINUTE  # the time over which a rate is taken
_NEWEST_SLICES: Final = 1_000  # newest slices that a rate is taken from, at most


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """Something that an operator has to handle, and how."""

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
    rollups_through: int | None  # events before this instant are in the rollups; None: no rollups
    datasets_through: int | None  # end of the newest window that is built
    problems: Sequence[StreamProblem] = field(default_factory=tuple)

    def lag(self, now: int) -> int | None:
        return None if self.watermark is None else now - self.watermark


def overview_of(workers: Workers, stream: str) -> StreamOverview:
    state, declared = workers.state, workers.project.stream(stream)
    totals, now = state.totals(stream), workers.warehouse.clock()
    newest = state.slices(stream, newest=True, limit=_NEWEST_SLICES)
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


@dataclass(frozen=True, slots=True)
class TenantOverview:
    """What one tenant of a shared stream can know of it: of its own events, and nothing of others."""

    stream: str
    description: str
    per_second: float  # accepted events, by arrival, of the last minute
    newest_arrival: int | None
    watermark: int | None  # as if the stream had no other events
    outcomes: Mapping[str, int]  # accepted: those that raw still has; conflict, rejected: in quarantine
    rollups_through: int | None  # None: there is none, or it is not known while tiles are to be made again
    problems: Sequence[StreamProblem]

    def lag(self, now: int) -> int | None:
        return None if self.watermark is None else now - self.watermark


class TenantRefusals:
    """How many records of a tenant are in quarantine, by outcome; read again when the quarantine changed."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._known: dict[tuple[str, str], tuple[int, Mapping[str, int]]] = {}

    def of(self, stream: str, tenant: str) -> Mapping[str, int]:
        held = self._workers.warehouse.snapshot("quarantine", stream)
        version = -1 if held is None else held.version
        known = self._known.get((stream, tenant))
        if known is None or known[0] != version:
            rows = quarantined(self._workers, stream, None, None, None, None, tenant)
            refused = rows.column("outcome").to_pylist()
            counts = {
                name.value: refused.count(name.value) for name in (CountedAs.CONFLICT, CountedAs.REJECTED)
            }
            known = self._known[stream, tenant] = (version, counts)
        return known[1]


def tenant_overview_of(
    workers: Workers, refusals: TenantRefusals, stream: str, tenant: str
) -> TenantOverview:
    """One tenant's view of a stream. Each part of raw is read once for the rows of the tenant."""
    warehouse, declared = workers.warehouse, workers.project.stream(stream)
    now, own = warehouse.clock(), own_rows(warehouse.snapshot("raw", stream), tenant)
    recent = sum(one.rows for one in own.values() if one.arrival > now - OVER)
    newest = max((one.newest for one in own.values()), default=None)
    rolled = None if newest is None or not declared.metrics else newest - newest % BASE.width + BASE.width
    accepted = {CountedAs.ACCEPTED.value: sum(one.rows for one in own.values())}
    failing = StreamProblem(
        "fault",
        "this stream cannot be worked on at the moment",
        "ask the operator of the server: the status says why",
    )
    return TenantOverview(
        stream=stream,
        description=declared.description,
        per_second=recent * SECOND / OVER,
        newest_arrival=max((one.arrival for one in own.values()), default=None),
        watermark=own_watermark(declared, own, warehouse.source_of, now) if own else None,
        outcomes={**accepted, **refusals.of(stream, tenant)},
        rollups_through=None if workers.state.stale_tiles(stream) else rolled,
        problems=[failing] if faults_of(workers.state, stream) else [],
    )


def problems_of_all(workers: Workers) -> list[StreamProblem]:
    """Problems that concern all streams: faults of shared work, and damaged files."""
    found = [_of_fault(fault) for fault in faults_of(workers.state, WAREHOUSE)]
    damaged = len(scrub_status(workers.state).damages)
    if damaged:
        files = "file is" if damaged == 1 else "files are"
        found.append(
            StreamProblem("damage", f"{damaged} {files} damaged", "`tidemill repair --explain` says which")
        )
    return found


def _problems(
    workers: Workers, stream: str, totals: Mapping[str, int], windows: Mapping[Phase, int]
) -> Iterator[StreamProblem]:
    yield from (_of_fault(fault) for fault in faults_of(workers.state, stream))
    if failed := totals["failed_slices"]:
        message = f"{failed} slice{'s' if failed > 1 else ''} cannot be read"
        yield StreamProblem("failed_slices", message, f"`tidemill ledger {stream} --status failed` says why")
    if failed := windows.get(Phase.FAILED, 0):
        message = f"{failed} window{'s' if failed > 1 else ''} could not be built"
        hint = f"`tidemill windows {stream} --state failed` says why; then `tidemill retry {stream}`"
        yield StreamProblem("failed_windows", message, hint)


def _of_fault(fault: Fault) -> StreamProblem:
    return StreamProblem("fault", f"{fault.output}: {fault.message}", fault.hint)
