"""The rules of aggregation windows: which slices count, whether a window is ready, and why it is not.

Pure functions of what the ledger says and of `now`: no storage, no clock, and the order of the given slices
does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemill.config import Stream
from tidemill.model.slices import set_hash
from tidemill.model.time import DAY, MAX_INSTANT, SECOND, Interval, align, format_instant
from tidemill.model.windows import Evaluation, Member, Undecided, Window
from tidemill.outputs.datasets.dataset import columns_declared
from tidemill.outputs.datasets.pending_slices import NOTHING_PENDING, PendingSlices, pending_detail

CUTOFF: Final = "cutoff"
PENDING: Final = "pending"
COVERAGE: Final = "coverage"
GAP: Final = "gap"
WATERMARK: Final = "watermark"
EMPTY: Final = "empty"
SEALED: Final = "sealed"
REASONS: Final = (CUTOFF, PENDING, COVERAGE, GAP, WATERMARK, EMPTY, SEALED)  # docs list them all
OBSERVED: Final = "observed"
RULES: Final = "rules"  # triggers: the rules or the columns were declared differently
COLUMNS: Final = "columns"
LATE: Final = "late"  # why a slice is ignored; the other reason is that the window is sealed


@dataclass(frozen=True, slots=True)
class WindowRules:
    """What a stream declares about its windows."""

    span: int
    stc: int = 0  # subject to change: how long after its end a window waits for slices
    allow_incomplete: bool = False
    gap_tolerance: int = SECOND
    max_lateness: int = 0  # how long after the cutoff a slice still causes a new revision
    coverage: str = "observed"  # what covers besides declared bounds: nothing, runs of rows, the watermark
    watermark: int | None = None  # of the stream, if it covers
    columns: str | None = None  # identifies the columns of datasets; None: any
    future: int | None = None  # how far after its arrival an event may lie; None: no limit
    # Raw before this instant has expired: windows that begin before it are not built.
    raw_from: int | None = None
    kept_from: int | None = None  # datasets of windows that end by then have expired and are forgotten

    @property
    def name(self) -> str:
        """Identifies rules that evaluate every window alike. (What has expired and what may lie ahead are
        facts about the data, and not part of it.)"""
        parts = (
            self.span, self.stc, self.allow_incomplete, self.gap_tolerance, self.max_lateness, self.coverage
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def declared(self) -> str:
        """Identifies everything declared about windows and their datasets. The first word is for what slices
        without bounds cover."""
        runs = f"{self.coverage}:{self.gap_tolerance}" if self.coverage == OBSERVED else self.coverage
        return f"{runs} {self.name} {self.columns}"

    @property
    def by_watermark(self) -> bool:
        return self.coverage == WATERMARK

    def is_sealed(self, window: Interval) -> bool:
        """Whether what was built of it, if anything, no longer changes."""
        return self.raw_from is not None and window.start < self.raw_from

    def is_forgotten(self, start: int) -> bool:
        return self.kept_from is not None and start + self.span <= self.kept_from


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a window may be built; if not, why, and when time alone may change that."""

    ready: bool
    reason: str | None = None
    detail: str | None = None
    check_at: int | None = None
    blocked_by: int | None = None  # offset of the newest slice that it waits for


def rules_of(stream: Stream, gone: Mapping[str, int] | None = None) -> WindowRules | None:
    """The rules of a stream; None if it has no windows. `gone`: instants before which raw and datasets have
    expired."""
    if stream.aggregation_span is None:
        return None
    return WindowRules(
        span=stream.aggregation_span,
        stc=stream.subject_to_change_window,
        allow_incomplete=stream.allow_incomplete_windows,
        gap_tolerance=stream.hole,
        coverage=stream.coverage,
        max_lateness=stream.late_slices.max_lateness or 0,
        columns=columns_declared(stream),
        future=stream.skew.future if stream.in_event_time else 0,
        raw_from=(gone or {}).get("raw"),
        kept_from=(gone or {}).get("datasets"),
    )


def windows_of(bounds: Interval, span: int) -> range:
    """Starts of the windows that overlap the bounds."""
    return bounds.windows(span)


def cutoff(window: Interval, rules: WindowRules) -> int:
    """The instant from which the window is ready, if it is complete."""
    return window.end + rules.stc


def admit(
    window: Interval, members: Sequence[Member], rules: WindowRules, sealed: int | None
) -> tuple[list[Member], dict[str, str]]:
    """The members that count, by ledger offset, and why each of the others does not.

    Those that arrived by the cutoff count. If they alone do not allow a build, the window is a backfill and
    everything counts, until the build that first covered it seals it.
    """
    last = last_arrival(window, rules)
    on_time = [member for member in members if is_on_time(window, member, rules)]
    if sealed is not None:
        used = [member for member in members if member.arrival <= last or member.counts_as <= sealed]
    elif rules.by_watermark or serves(window, on_time, rules):
        used = on_time
    else:
        used = list(members)
    kept = {member.name for member in used}
    ignored = {member.name: LATE for member in members if member.name not in kept}
    return sorted(used, key=lambda member: member.seq), ignored


def is_on_time(window: Interval, member: Member, rules: WindowRules) -> bool:
    """Whether a slice arrived by the cutoff; by the watermark, also before that passed the window."""
    if member.arrival <= last_arrival(window, rules):
        return True
    return rules.by_watermark and (member.met is None or member.met < window.end)


def serves(window: Interval, members: Sequence[Member], rules: WindowRules) -> bool:
    """Whether these members alone allow the window to be built, once it is time."""
    if rules.allow_incomplete:
        return bool(members)
    return rules_cover(window, members, rules)


def rules_cover(window: Interval, members: Sequence[Member], rules: WindowRules) -> bool:
    """Whether the window is complete: by what its members cover, or by the watermark."""
    return has_passed(window, rules) or is_complete(window, members, rules.gap_tolerance)


def has_passed(window: Interval, rules: WindowRules) -> bool:
    """Whether the watermark covers and has reached the end of the window."""
    return rules.by_watermark and rules.watermark is not None and rules.watermark >= window.end


def is_complete(window: Interval, members: Iterable[Member], tolerance: int) -> bool:
    """Whether the bounds of the members cover the window, except for holes within the tolerance. A window
    without any coverage is not complete, however short it is."""
    return not _wide(window, members, tolerance)


def _wide(window: Interval, members: Iterable[Member], tolerance: int) -> list[Interval]:
    """The holes that are too long."""
    found = list(holes(window, members))
    return [hole for hole in found if hole.end - hole.start > tolerance or hole == window]


def holes(window: Interval, members: Iterable[Member]) -> Iterator[Interval]:
    """The stretches of the window that no member covers, in order."""
    covered = sorted(
        (max(run.start, window.start), min(run.end, window.end))
        for member in members
        for run in member.covers
        if run.overlaps(window) and run.start < run.end
    )
    reached = window.start
    for start, end in covered:
        if start > reached:
            yield Interval(reached, start)
        reached = max(reached, end)
    if reached < window.end:
        yield Interval(reached, window.end)


def readiness(
    window: Interval,
    used: Sequence[Member],
    rules: WindowRules,
    now: int,
    undecided: Sequence[Undecided] = (),
) -> Readiness:
    """Check the cutoff first, then undecided slices, coverage and gaps: the first that fails is the
    reason."""
    if not used:
        return Readiness(False, EMPTY, "no slice is left")
    at = cutoff(window, rules)
    if now < at and not rules.allow_incomplete:
        return Readiness(False, CUTOFF, f"cutoff at {format_instant(at)}", at)
    if undecided:
        return Readiness(False, PENDING, pending_detail(undecided), blocked_by=undecided[-1].seq)
    if rules.allow_incomplete:
        return Readiness(True)
    if has_passed(window, rules):
        return Readiness(True)
    wide = _wide(window, used, rules.gap_tolerance)
    if wide and rules.by_watermark:
        return Readiness(False, WATERMARK, _behind(rules.watermark))
    edges = [hole for hole in wide if hole.start == window.start or hole.end == window.end]
    if edges:
        return Readiness(False, COVERAGE, "coverage missing " + _edges(window, edges))
    if wide:
        return Readiness(
            False, GAP, "gap " + ", ".join(f"{_at(window, g.start)}-{_at(window, g.end)}" for g in wide)
        )
    return Readiness(True)


def evaluate(
    window: Window,
    members: Sequence[Member],
    rules: WindowRules,
    now: int,
    pending: PendingSlices = NOTHING_PENDING,
) -> Evaluation:
    """Everything that follows for a window from the slices that touch it or may touch it."""
    found = _evaluate(window, members, rules, now, pending)
    return _unchanged(window, members, rules, found) if rules.is_sealed(window.key.interval) else found


def _unchanged(
    window: Window, members: Sequence[Member], rules: WindowRules, found: Evaluation
) -> Evaluation:
    """The evaluation of a sealed window: what was built stays, and other slices are ignored."""
    built = window.file is not None
    if not built and not members:
        return replace(found, withdraw=False)
    used = frozenset(member.name for member in members if member.observed) if built else frozenset()
    is_current = set_hash(used) == window.observed
    late = admit(window.key.interval, members, rules, window.sealed)[1] if built else {}
    assert rules.raw_from is not None, rules
    return replace(
        found,
        used=used,
        ignored={m.name: late.get(m.name, SEALED) for m in members if m.name not in used},
        ready=is_current,
        desired=set_hash(used),
        reason=None if is_current else SEALED,
        detail=None if is_current else f"raw before {format_instant(rules.raw_from)} has expired",
        check_at=None,
        blocked_by=None,
        seal=window.sealed,
        withdraw=False,
        reshape=False,
        unseal=False,
    )


def _evaluate(
    window: Window, members: Sequence[Member], rules: WindowRules, now: int, pending: PendingSlices
) -> Evaluation:
    interval, changed = window.key.interval, has_other_rules(window, rules)
    unsure = changed or window.rules is None  # `recover` finds a dataset, not whether it was withdrawn
    sealed = window.sealed
    if changed and sealed is not None:
        sealed = sealed if _still_seals(interval, members, rules, sealed) else None
    used, ignored = admit(interval, members, rules, sealed)
    names = frozenset(member.name for member in used)
    state = readiness(interval, used, rules, now, undecided_of(window, members, rules, pending))
    keeps_waiting = state.reason == PENDING  # the other reasons are given when this one is over
    served = serves(interval, [m for m in used if is_on_time(interval, m, rules)], rules)
    covered = not served and state.ready and rules_cover(interval, used, rules)
    seals = bool(used) and (covered or sealed is not None)
    reshape = has_other_columns(window, rules) and not keeps_waiting
    return Evaluation(
        key=window.key,
        version=window.version,
        used=names,
        ignored=ignored,
        ready=state.ready,
        desired=set_hash(names),
        reason=state.reason,
        detail=state.detail,
        check_at=state.check_at,
        blocked_by=state.blocked_by,
        trigger=_trigger(window, names, members, rules),
        seal=seal_of(interval, used, rules) if seals else None,
        withdraw=not state.ready
        and not keeps_waiting
        and (_lost(window, members) or (window.file is not None and (unsure or state.reason == WATERMARK))),
        rules=window.rules if keeps_waiting and window.file is not None else rules.name,
        reshape=reshape,
        unseal=sealed is None and window.sealed is not None and not keeps_waiting,
    )


def has_other_rules(window: Window, rules: WindowRules) -> bool:
    """Whether the window was last evaluated by other rules."""
    return window.rules is not None and window.rules != rules.name


def has_other_columns(window: Window, rules: WindowRules) -> bool:
    """Whether its dataset has other columns than those declared now."""
    built = window.file is not None and window.columns is not None and rules.columns is not None
    return built and window.columns != rules.columns


def _still_seals(window: Interval, members: Sequence[Member], rules: WindowRules, sealed: int) -> bool:
    """Whether what counts by the seal still allows the window to be built; if not, the build that sealed it
    would not have happened."""
    used, _ = admit(window, members, rules, sealed)
    return serves(window, used, rules)


def undecided_of(
    window: Window, members: Sequence[Member], rules: WindowRules, pending: PendingSlices
) -> list[Undecided]:
    """The landed slices without an outcome that the window must wait for."""
    if not pending:
        return []
    interval = window.key.interval
    last = last_arrival(interval, rules)
    served = serves(interval, [member for member in members if is_on_time(interval, member, rules)], rules)
    return pending.blocking(
        interval,
        last if served or window.sealed is not None else None,
        built=window.file is not None,
        provisional=rules.allow_incomplete,
    )


def seal_of(window: Interval, used: Sequence[Member], rules: WindowRules) -> int:
    """The ledger offset up to which late slices count, if exactly these slices count."""
    late = [member.counts_as for member in used if member.arrival > last_arrival(window, rules)]
    return max(late, default=0)


def last_arrival(window: Interval, rules: WindowRules) -> int:
    """A slice that arrives later is late for the window, if the window was served by then."""
    return cutoff(window, rules) + rules.max_lateness


def has_one_on_time(window: Interval, first_arrival: int | None, rules: WindowRules) -> bool:
    """`was_served` for a window that may be incomplete, by the first arrival of its members alone."""
    assert rules.allow_incomplete, rules
    assert not rules.by_watermark, rules
    return first_arrival is not None and first_arrival <= last_arrival(window, rules)


def was_served(window: Window, members: Sequence[Member], rules: WindowRules) -> bool:
    """Whether slices that arrived in time completed it, so that later ones do not count."""
    interval = window.key.interval
    on_time = [member for member in members if is_on_time(interval, member, rules)]
    return window.sealed is not None or serves(interval, on_time, rules)


def _trigger(window: Window, used: frozenset[str], members: Sequence[Member], rules: WindowRules) -> str:
    """Why it would be built now."""
    if has_other_columns(window, rules):
        return COLUMNS
    if has_other_rules(window, rules):
        return RULES
    if window.revision == 0:
        return CUTOFF if window.reason == CUTOFF else "complete"
    if window.observed is None:
        return window.trigger or "slices"
    if _lost(window, members):
        return "retraction"
    observed = {member.name for member in members if member.observed}
    return "slices" if used != observed else (window.trigger or "slices")


def _lost(window: Window, members: Sequence[Member]) -> bool:
    """Whether the build holds a slice that is no longer a member: it was retracted, or decided again."""
    if window.observed is None:  # there is no build, or a rebuild was asked for and is no longer possible
        return window.file is not None
    return set_hash(member.name for member in members if member.observed) != window.observed


def _behind(watermark: int | None) -> str:
    where = "there is none yet" if watermark is None else f"at {format_instant(watermark)}"
    return f"watermark not past its end: {where}"


def _edges(window: Interval, edges: Sequence[Interval]) -> str:
    if len(edges) == 1 and edges[0] == window:
        return f"between {_at(window, window.start)} and {_at(window, window.end)}"
    reasons = [
        f"before {_at(window, edge.end)}"
        if edge.start == window.start
        else f"after {_at(window, edge.start)}"
        for edge in edges
    ]
    return " and ".join(reasons)


def _at(window: Interval, instant: int) -> str:
    """The time of day if the window lies within one day, else the whole instant."""
    text = format_instant(instant)
    if align(window.start, DAY) != align(window.end - 1, DAY) or instant >= MAX_INSTANT:
        return text
    time = text[11:].removesuffix("Z")
    return time.removesuffix(":00") if len(time) == len("00:00:00") else time
