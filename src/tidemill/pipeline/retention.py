"""`expire`: deletes what is older than the retention of its stream, and reports what holds the rest back.

The plan is a list of steps, and the run does exactly those. Nothing is deleted that is still needed to make
something; what was made from it and cannot be made again is sealed, which the log of expiries records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.ingest.expiry_log import QUARANTINE, RAW, Expiry
from tidemill.ingest.interrupted_landings import adopt_for
from tidemill.model.expiry import ExpiryStep
from tidemill.model.streaming import LatePolicy
from tidemill.model.time import DAY, HOUR, MIN_INSTANT, align, format_instant
from tidemill.raw.compaction.packing import split_parts
from tidemill.raw.expiry import Expirable, expirable, expire_quarantine, expire_raw, rows_before
from tidemill.raw.retract import finish_retractions
from tidemill.storage import layout
from tidemill.storage.state.faults import Guard, one_by_one
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

log = logging.getLogger(__name__)

LOOK_EVERY: Final = HOUR  # a round sooner after the last check does not check again


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What expires, in order."""

    now: int
    steps: Sequence[ExpiryStep]

    @property
    def due(self) -> list[ExpiryStep]:
        return [step for step in self.steps if step.due]


class Retention:
    """What a warehouse keeps and lets go."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._checked_at: int | None = None

    def plan(self, stream: str | None = None) -> ExpiryPlan:
        """What is older than its retention allows, and what keeps it from expiring. Changes nothing."""
        names = [self._workers.project.stream(stream).name] if stream is not None else None
        return plan_expiry(self._workers, self._workers.warehouse.clock(), names)

    def expire(self, plan: ExpiryPlan) -> list[ExpiryStep]:
        """Expire what the plan says. Returns the steps that were done."""
        with self._workers.warehouse.working("expire"):
            streams, done = sorted({step.stream for step in plan.steps}), list[ExpiryStep]()
            adopt_for(self._workers.root, self._workers.state, streams)

            def work(stream: str) -> None:
                finish_retractions(self._workers.warehouse, self._workers.acceptor, stream)
                done.extend(_expire_stream(self._workers, stream, plan.now))

            one_by_one(streams, work)
            return done

    def expire_due(self, now: int, streams: Sequence[str], guard: Guard) -> list[ExpiryStep]:
        """At the end of a round, which holds the lock: expire what is due for these streams, if it is time to
        check again."""
        if self._checked_at is not None and self._checked_at <= now < self._checked_at + LOOK_EVERY:
            return []
        self._checked_at = now
        done = (guard.attempt(name, "retention", partial(self._expire_due, name, now)) for name in streams)
        return [step for steps in done for step in steps or ()]

    def _expire_due(self, stream: str, now: int) -> list[ExpiryStep]:
        plan = plan_expiry(self._workers, now, [stream])
        return expire(self._workers, plan) if plan.due else []


def plan_expiry(workers: Workers, now: int, streams: Sequence[str] | None = None) -> ExpiryPlan:
    """What the retention of these streams (None: all) expires at `now`. Nothing is changed."""
    declared = workers.project.streams
    chosen = [declared[name] for name in (streams if streams is not None else declared)]
    return ExpiryPlan(now, [step for stream in chosen for step in _steps(workers, stream, now)])


def _steps(workers: Workers, stream: Stream, now: int) -> Iterator[ExpiryStep]:
    kept = stream.retention
    if kept.quarantine is not None:
        parts = _quarantined(workers, stream.name, now - kept.quarantine)
        yield _step(stream, QUARANTINE, kept.quarantine, now - kept.quarantine, parts)
    for output in workers.outputs(stream.name):
        yield from output.expiring(now)
    if kept.raw is not None:
        yield _raw_step(workers, stream, kept.raw, align(now - kept.raw, DAY))


def _step(
    stream: Stream, what: str, keep: int, before: int, parts: Sequence[Part], held_by: str | None = None
) -> ExpiryStep:
    rows, size = sum(part.rows for part in parts), sum(part.size for part in parts)
    return ExpiryStep(stream.name, what, keep, before, len(parts), rows, size, held_by=held_by)


def _quarantined(workers: Workers, stream: str, before: int) -> list[Part]:
    """Parts whose newest record arrived before."""
    table = workers.warehouse.existing("quarantine", stream)
    found = table.snapshot().parts if table is not None else ()
    newest = [(part, part.maxs.get("arrival")) for part in found]
    return [part for part, arrival in newest if isinstance(arrival, int) and arrival < before]


# -- raw


def _raw_step(workers: Workers, stream: Stream, keep: int, before: int) -> ExpiryStep:
    table = workers.warehouse.existing("raw", stream.name)
    if table is None:
        return ExpiryStep(stream.name, RAW, keep, before)
    expirable_parts = _expirable(workers, stream, table, before)
    if not expirable_parts.whole and not expirable_parts.straddling:
        return ExpiryStep(stream.name, RAW, keep, before)
    limit = min(_limits(workers, stream, before, table.version), key=lambda one: one[0], default=None)
    if limit is None or limit[0] >= before:
        return _removal_step(stream, keep, before, expirable_parts, table)
    before = align(limit[0], DAY)
    return _removal_step(stream, keep, before, _expirable(workers, stream, table, before), table, limit[1])


def _expirable(workers: Workers, stream: Stream, raw: Table, before: int) -> Expirable:
    """What can expire. A lost part stays until it is restored: its records of slices cannot be read."""
    late = any(spec.late is LatePolicy.NEXT_WINDOW for spec in stream.window_specs)
    whole = workers.warehouse.without_lost("raw", stream.name, raw.snapshot())
    return expirable(whole, before, counted_late=late)


def _removal_step(
    stream: Stream, keep: int, before: int, found: Expirable, table: Table, held_by: str | None = None
) -> ExpiryStep:
    """The step that removes these parts, and of those that straddle the instant what lies before it."""
    step = _step(stream, RAW, keep, before, found.whole, held_by)
    for part in found.straddling:
        rows = rows_before(table.snapshot(), part, before)
        size = part.size * rows // part.rows
        step = replace(step, files=step.files + 1, rows=step.rows + rows, bytes=step.bytes + size)
    return step


def _limits(workers: Workers, stream: Stream, before: int, raw: int) -> Iterator[tuple[int, str]]:
    """Instants from which on raw is still needed, each with what needs it."""
    state, name = workers.state, stream.name
    if pending := state.pending(name, 1):
        yield MIN_INSTANT, f"slice {pending[0].id[:12]}, which is not accepted yet"
    if stream.in_event_time:
        watermark = state.progress(name).watermark
        if watermark is None or watermark < before:
            shown = format_instant(watermark) if watermark is not None else "nowhere yet"
            yield watermark if watermark is not None else MIN_INSTANT, f"the watermark, which is at {shown}"
    for output in workers.outputs(name):
        for need in output.needs_raw_from(before, raw):
            yield need.start, need.why


# -- doing it


def expire(workers: Workers, plan: ExpiryPlan) -> list[ExpiryStep]:
    """Carry out the plan, made again for the current contents; returns the steps that were done. The caller
    must hold the tick lock. What a crash left is finished by doing it again."""
    done: list[ExpiryStep] = []
    for name in dict.fromkeys(step.stream for step in plan.steps):
        done += _expire_stream(workers, name, plan.now)
    return done


def _expire_stream(workers: Workers, name: str, now: int) -> list[ExpiryStep]:
    stream = workers.project.stream(name)
    if layout.raw(workers.root, name).is_dir():
        workers.catch_up(name)
    steps = [step for step in _steps(workers, stream, now) if step.due]
    if steps:
        workers.warehouse.expiries.append([Expiry(name, step.what, step.before, now) for step in steps])
    for step in steps:
        _carry_out(workers, stream, step, now)
        log.info("expired: %s", step, extra={"stream": name})
    return steps


def _carry_out(workers: Workers, stream: Stream, step: ExpiryStep, now: int) -> None:
    if step.what not in (QUARANTINE, RAW):
        workers.output(stream.name, step.what.partition(":")[0]).expire(step, now)
        return
    keep = workers.project.engine.keep_replaced
    acceptor = workers.acceptor(stream.name)
    if step.what == QUARANTINE:
        acceptor.quarantine.refresh()
        parts = _quarantined(workers, stream.name, step.before)
        expire_quarantine(acceptor, parts, step.before, now)
        acceptor.quarantine.vacuum(keep, now)
        return
    acceptor.raw.refresh()
    found = _expirable(workers, stream, acceptor.raw, step.before)
    if found.straddling:
        split_parts(acceptor, found.straddling, step.before, now)
        found = _expirable(workers, stream, acceptor.raw, step.before)
    expire_raw(acceptor, found.whole, step.before, now)
    acceptor.raw.vacuum(keep, now)
