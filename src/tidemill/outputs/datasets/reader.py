"""Answers questions about windows: lists them, says why one is not ready, and what a rebuild would do.

It reads the state and the dataset files and starts no JVM. Only `rebuild` and `retry` change anything: they
queue windows, and the builders do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tidemill.config import Stream
from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.time import Interval, align, format_duration, format_instant
from tidemill.model.windows import (
    Dataset,
    Evaluation,
    Member,
    MemberCounts,
    Phase,
    Window,
    WindowGlance,
    WindowKey,
    WindowStatus,
)
from tidemill.outputs.datasets.as_of import PastDataset, dataset_at, kept_revisions
from tidemill.outputs.datasets.catalog import datasets_of
from tidemill.outputs.datasets.pending_slices import PendingSlices
from tidemill.outputs.datasets.rules import (
    COLUMNS,
    CUTOFF,
    RULES,
    WindowRules,
    evaluate,
    has_other_columns,
    has_other_rules,
    last_arrival,
    rules_of,
)
from tidemill.outputs.datasets.window_status import StatusRule, remedy
from tidemill.storage.state.protocol import State

REBUILD = "rebuild"


@dataclass(frozen=True, slots=True)
class WindowView:
    """A window in a list."""

    window: Window
    status: WindowStatus
    reason: str | None  # a code, if it waits or failed
    detail: str | None  # the reason as text
    desired: int  # how many slices it should be made of …
    observed: int  # … was made of …
    ignored: int  # … and how many were too late for it
    rejected: int  # records of the desired slices that were not accepted
    age: int  # time since its end, by the caller's clock

    @property
    def current(self) -> bool:
        return self.window.observed is not None and self.window.observed == self.window.desired

    @property
    def remedy(self) -> str | None:
        """What would end the wait: a command or a key. None if it waits for nothing."""
        return remedy(self.reason, self.window.key) if self.reason is not None else None


@dataclass(frozen=True, slots=True)
class WindowStory:
    """Everything about one window."""

    view: WindowView
    rules: WindowRules
    cutoff: int
    members: Sequence[Member]
    revisions: Sequence[Dataset]  # in the warehouse, by revision


@dataclass(frozen=True, slots=True)
class RebuildStep:
    """One window that a rebuild builds again."""

    key: WindowKey
    action: str  # "build", "wait", or "withdraw" if the rules allow no dataset
    revision: int  # the newest, 0 if there is none
    next_revision: int
    slices: int
    hash: str | None
    reason: str
    late: int = 0  # slices that count from now on although they were late


class WindowReader:
    """Answers about the windows of all streams."""

    def __init__(
        self,
        warehouse: Path,
        streams: Mapping[str, Stream],
        state: State,
        clock: Callable[[], int],
        expired: Callable[[str], Mapping[str, int]] = lambda _stream: {},
        watermark: Callable[[str], int | None] = lambda _stream: None,
    ) -> None:
        self._warehouse = warehouse
        self._streams = streams
        self._state = state
        self._clock = clock
        self._watermark = watermark
        self._expired = expired  # instants before which raw and datasets of a stream have expired

    # -- looking

    def windows(
        self,
        stream: str | None = None,
        status: WindowStatus | None = None,
        *,
        span: Interval | None = None,
        newest: bool = True,
        limit: int | None = None,
    ) -> list[WindowView]:
        """Windows, newest first (or oldest), of one stream, state or span if named, at most `limit`."""
        now = self._clock()
        if stream is not None:
            self._rules(stream)
        phase = _PHASES.get(status) if status is not None else None
        exact = status is None or status.value in {Phase.QUEUED, Phase.BUILDING, Phase.FAILED}
        found = self._state.windows(stream, phase, span, newest=newest, limit=limit if exact else None)
        known = [window for window in found if self._declared(window.key)]
        statuses = self._statuses(known, now)
        chosen = [w for w in known if status is None or statuses[w.key] is status]
        return self._views(chosen[:limit], statuses, now)

    def window(self, stream: str, at: int) -> WindowStory:
        """The window that holds the instant `at`, with its slices, its revisions and the reason if it
        waits."""
        rules = self._rules(stream)
        key = WindowKey(stream, align(at, rules.span), rules.span)
        found = self._state.window(key)
        if found is None:
            self._check_kept(rules, key)
            raise NotFoundError(
                f"no slice touches the window {key.interval} of {stream}",
                hint=f"`tidemill windows {stream}` lists those that there are",
            )
        window, members = found
        now = self._clock()
        view = self._views([window], self._statuses([window], now), now)[0]
        revisions = datasets_of(self._warehouse, stream, key)
        return WindowStory(view, rules, last_arrival(key.interval, rules), members, revisions)

    def as_of(self, stream: str, start: int, at: int) -> PastDataset:
        """What the dataset of the window that holds `start` was at the instant of arrival `at`."""
        details = self.window(stream, start)
        kept = kept_revisions(details.revisions, details.members, self._state.slice)
        return dataset_at(kept, details.members, at, details.view.window.revision)

    def _check_kept(self, rules: WindowRules, key: WindowKey) -> None:
        if rules.is_forgotten(key.start):
            raise NotFoundError(
                f"the window {key.interval} of {key.stream} has expired, with its datasets",
                hint="retention.datasets of the stream says how long they are kept; raw is read by `tail`",
            )

    def datasets(self, stream: str | None = None, span: Interval | None = None) -> list[Window]:
        """The windows that have a dataset, oldest first."""
        if stream is not None:
            self._rules(stream)
        return [w for w in self._state.windows(stream, None, span) if w.file and self._declared(w.key)]

    def dataset(self, stream: str, at: int, revision: int | None = None) -> Dataset:
        """The dataset of the window that holds the instant `at`: a revision of it, by default the newest."""
        details = self.window(stream, at)
        window, status = details.view.window, {one.revision: one for one in details.revisions}
        number = revision if revision is not None else window.revision if window.file is not None else None
        if number is None or number not in status:
            what = f"no revision {revision}" if revision is not None else "no dataset yet"
            have = ", ".join(map(str, status)) or "none"
            shown = f"tidemill window {stream} {format_instant(window.key.start)}"
            raise NotFoundError(
                f"window {window.key.interval} of {window.key.stream} has {what}",
                hint=f"revisions in the warehouse: {have}; `{shown}` shows its state",
            )
        found = status[number]
        return replace(found, checksum=window.checksum) if found.file == window.file else found

    def outdated(self, stream: str) -> int:
        """How many windows the next round evaluates again because their rules or columns have changed."""
        rules, known = self._rules(stream), self._state.layout(stream)
        if known is None or known[0] != rules.span or known[1] == rules.declared:
            return 0
        return sum(self._state.window_counts(stream).values())

    def touched(self, slice_id: str, limit: int | None = None) -> list[tuple[Window, Member]]:
        """The windows that a slice touches (at most `limit`), each with whether the slice counts in it."""
        return [pair for pair in self._state.windows_of(slice_id, limit) if self._declared(pair[0].key)]

    def _declared(self, key: WindowKey) -> bool:
        stream = self._streams.get(key.stream)
        return stream is not None and stream.aggregation_span == key.span

    def _rules(self, stream: str) -> WindowRules:
        declared = self._streams.get(stream)
        if declared is None:
            raise NotFoundError(f"there is no stream {stream!r}", hint=f"streams: {', '.join(self._streams)}")
        rules = rules_of(declared, self._expired(stream))
        if rules is None:
            having = [name for name, s in self._streams.items() if s.aggregation_span is not None]
            raise InputError(
                f"stream {stream} declares no windows",
                hint="give it an aggregation_span"
                + (f"; those that have one: {', '.join(having)}" if having else ""),
            )
        return replace(rules, watermark=self._watermark(stream)) if rules.by_watermark else rules

    def _statuses(self, windows: Sequence[Window], now: int) -> dict[WindowKey, WindowStatus]:
        rule = {name: self._status_rule(name, now) for name in {window.key.stream for window in windows}}
        return {
            window.key: rule[window.key.stream].of(
                WindowGlance.of(window), partial(self._state.window, window.key)
            )
            for window in windows
        }

    def _status_rule(self, stream: str, now: int) -> StatusRule:
        rules = self._rules(stream)
        return StatusRule(rules, self._pending(stream, rules), now)

    def _pending(self, stream: str, rules: WindowRules) -> PendingSlices:
        return PendingSlices(self._state.undecided(stream), rules.future)

    def statuses(self, stream: str, glances: Sequence[WindowGlance]) -> list[WindowStatus]:
        """The state of each of very many windows of a stream, by start. Members are read only where they
        decide the state, all together."""
        rule = self._status_rule(stream, self._clock())
        needing = {one.start for one in glances if rule.needs_members(one)}
        if not needing:
            return [rule.of(one, lambda: None) for one in glances]
        reach = Interval(min(needing), max(needing) + 1)
        built = not self._rules(stream).by_watermark and {
            one.start for one in glances if one.phase is Phase.BUILT
        }
        first_arrivals = self._state.first_arrivals(stream, reach) if built else None
        whole = needing - built if built else needing
        kept: dict[int, tuple[Window, Sequence[Member]]] = {}
        if whole:
            for window, members in self._state.each_window(stream, Interval(min(whole), max(whole) + 1)):
                kept[window.key.start] = (window, members)
        return [rule.of(one, partial(kept.get, one.start), first_arrivals) for one in glances]

    def counts(
        self, stream: str, width: int, within: Interval, stretch: int
    ) -> dict[int, dict[WindowStatus, int]]:
        """How many windows of each state start in each stretch of `within`. Windows are looked at one by one
        only where those of a stretch are not alike."""
        now = self._clock()
        rule = self._status_rule(stream, now)
        found: dict[int, dict[WindowStatus, int]] = {}
        unlike: list[Interval] = []
        for group in self._state.window_groups(stream, width, within, stretch, CUTOFF, now):
            counts = found.setdefault(group.at, {})
            status = rule.of_all(group)
            if status is not None:
                counts[status] = counts.get(status, 0) + group.windows
            elif unlike and group.at <= unlike[-1].end:
                unlike[-1] = Interval(unlike[-1].start, group.at + stretch)
            else:
                unlike.append(Interval(group.at, group.at + stretch))
        for span in unlike:
            reach = Interval(max(span.start, within.start), min(span.end, within.end))
            found |= self._counted(stream, self._state.window_glances(stream, width, reach), stretch)
        return found

    def _counted(
        self, stream: str, glances: Sequence[WindowGlance], stretch: int
    ) -> dict[int, dict[WindowStatus, int]]:
        found: dict[int, dict[WindowStatus, int]] = {}
        for glance, status in zip(glances, self.statuses(stream, glances), strict=True):
            counts = found.setdefault(align(glance.start, stretch), {})
            counts[status] = counts.get(status, 0) + 1
        return found

    def _views(
        self, windows: Sequence[Window], statuses: Mapping[WindowKey, WindowStatus], now: int
    ) -> list[WindowView]:
        counts = self._state.member_counts([window.key for window in windows])
        views = []
        for window in windows:
            of_slices = counts.get(window.key, MemberCounts())
            status = statuses[window.key]
            reason, detail = window.reason, window.detail
            if status is WindowStatus.FAILED:
                reason, detail = "failed", window.error
            elif status is not WindowStatus.WAITING:
                reason = detail = None
            views.append(
                WindowView(window, status, reason, detail, *of_slices, age=max(0, now - window.key.end))
            )
        return views

    # -- changing

    def plan_rebuild(
        self, stream: str, span: Interval | None = None, *, include_late: bool = False
    ) -> list[RebuildStep]:
        """The steps of a rebuild of the windows that start in `span` (None: all), oldest first. Changes
        nothing."""
        rules = self._rules(stream)
        now, pending = self._clock(), self._pending(stream, rules)
        steps = [
            _step(window, evaluate(window, members, rules, now, pending), rules, include_late=include_late)
            for window, members in self._state.each_window(stream, span)
            if window.key.span == rules.span
        ]
        if not steps and span is not None:
            self._check_kept(rules, WindowKey(stream, align(span.end - 1, rules.span), rules.span))
            raise NotFoundError(
                f"{stream} has no window that starts in {span}",
                hint=f"they are {format_duration(rules.span)} long and aligned, one starts at "
                f"{format_instant(align(span.start, rules.span))}; `tidemill windows {stream}` lists them",
            )
        return steps

    def rebuild(self, steps: Iterable[RebuildStep]) -> list[WindowKey]:
        """Queue what the plan builds; the next round evaluates and builds it."""
        chosen = [step for step in steps if step.action == "build"]
        done = self._state.force([step.key for step in chosen if not step.late], REBUILD)
        late = [step.key for step in chosen if step.late]
        return [*done, *(self._state.force(late, REBUILD, reopen=True) if late else [])]

    def retry(self, stream: str, at: int | None = None) -> int:
        """Queue failed windows again, all or the one that holds the instant `at`. Returns how many."""
        rules = self._rules(stream)
        return self._state.retry(stream, None if at is None else align(at, rules.span))


def _step(window: Window, evaluation: Evaluation, rules: WindowRules, *, include_late: bool) -> RebuildStep:
    """Decide the step by the current rules (`evaluation`), whichever rules the window was evaluated by
    last."""
    late = len(evaluation.ignored) if include_late else 0
    sealed = rules.is_sealed(window.key.interval)
    builds = (evaluation.ready or late > 0) and not sealed
    action = "build" if builds else "withdraw" if evaluation.withdraw else "wait"
    return RebuildStep(
        key=window.key,
        action=action,
        revision=window.revision,
        next_revision=window.revision + 1 if builds else window.revision,
        slices=len(evaluation.used) + late,
        hash=evaluation.desired,
        reason=_why(window, rules) if builds else _why_not(evaluation, rules, sealed=sealed),
        late=late if builds else 0,
    )


def _why(window: Window, rules: WindowRules) -> str:
    if has_other_columns(window, rules):
        return COLUMNS
    return RULES if has_other_rules(window, rules) else REBUILD


def _why_not(evaluation: Evaluation, rules: WindowRules, *, sealed: bool) -> str:
    if sealed and rules.raw_from is not None:
        return f"sealed: raw before {format_instant(rules.raw_from)} has expired"
    return evaluation.detail or evaluation.reason or "not evaluated yet"


_PHASES = {
    WindowStatus.WAITING: Phase.WAITING,
    WindowStatus.READY: Phase.WAITING,
    WindowStatus.QUEUED: Phase.QUEUED,
    WindowStatus.BUILDING: Phase.BUILDING,
    WindowStatus.BUILT: Phase.BUILT,
    WindowStatus.FAILED: Phase.FAILED,
    WindowStatus.FINAL: Phase.BUILT,
}
