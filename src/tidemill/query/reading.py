"""What a plan reads: the pieces of its span, what tells the states before it, and what nothing has any more.
Pure: it knows from when on each source has its data, and never looks at data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidemill.model.completeness import Available, Missing, Outdated, not_built
from tidemill.model.levels import BASE, NAMES
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.query.cover import ALL_TIME, BEGINNING, RAW, Cover, ceil, cover, cover_cells, expired, joined
from tidemill.query.past import Past
from tidemill.query.plan import Plan


@dataclass(frozen=True, slots=True)
class QueryReading:
    """The pieces that are folded into the answer, and those that tell how many objects were in which state
    before them. A cell that meets a span of `lost` has no number, one that meets `unknown` no states."""

    cover: Cover
    opening: Cover = field(default_factory=Cover)
    lost: tuple[Interval, ...] = ()
    unknown: tuple[Interval, ...] = ()
    gone: tuple[Interval, ...] = ()  # what nothing has any more,
    missing: tuple[Missing, ...] = ()  # and why

    @property
    def level(self) -> str:
        """The coarsest that is read; of an empty span the finest that there is."""
        found = self.cover.coarsest or self.opening.coarsest
        if found is not None:
            return found.name
        return RAW if self.cover.pieces else BASE.name


def reading_of(plan: Plan, available: Available) -> QueryReading:
    """One rule for totals, intervals and states."""
    only_raw = Available(dict.fromkeys(NAMES, ALL_TIME.end), available.raw)
    if plan.past is not None:
        return _then(_with_missing(_read(plan, only_raw), _forgotten), plan.past)
    if plan.filter is not None:
        return _with_missing(_read(plan, only_raw), _unfiltered)
    outdated = available.not_built(plan.uses)
    if outdated is None:
        return _with_missing(_read(plan, available), lambda span: expired(span, available))
    made = _read(plan, available.after(outdated))
    return _with_missing(made, lambda span: _lacking(span, outdated, plan, available))


def _lacking(span: Interval, outdated: Outdated, plan: Plan, available: Available) -> Missing:
    if span.start < outdated.before:
        valid = Interval(max(span.start, MIN_INSTANT), min(span.end, MAX_INSTANT))
        return not_built(valid, outdated, plan.metric)
    return expired(span, available)


def _then(reading: QueryReading, past: Past) -> QueryReading:
    """Where a slice counted that was retracted since, there is no number."""
    gone = tuple(one.span for one in past.missing)
    unknown = (Interval(min(span.start for span in gone), ALL_TIME.end),) if gone else ()
    return replace(
        reading,
        lost=tuple(sorted({*reading.lost, *gone})),
        unknown=(*reading.unknown, *unknown),
        missing=(*reading.missing, *past.missing),
    )


def _forgotten(span: Interval) -> Missing:
    return Missing(
        Interval(max(span.start, MIN_INSTANT), min(span.end, MAX_INSTANT)),
        "expired",
        "AS OF looks at the events themselves, and raw of that time expired",
        "leave AS OF out, or let the span start later",
    )


def _unfiltered(span: Interval) -> Missing:
    return Missing(
        Interval(max(span.start, MIN_INSTANT), min(span.end, MAX_INSTANT)),
        "expired",
        "FILTER looks into the events themselves, and raw of that time expired",
        "leave FILTER out, or let the span start later",
    )


def _read(plan: Plan, available: Available) -> QueryReading:
    read = plan.read or ALL_TIME
    body = _body(plan, read, available)
    if plan.states is None:
        lost = () if _is_of_what_there_is(plan, body) else body.missing
        return QueryReading(body, lost=lost, gone=body.missing)
    opening = cover(Interval(BEGINNING, read.start), available)
    if not opening.missing and not _before_the_end(plan, body):
        return QueryReading(body, opening, body.missing, body.missing, body.missing)
    if plan.states_alone:
        return _from_where_known(plan, read, available)
    gone = (*opening.missing, *body.missing)
    unknown = Interval(gone[0].start, ALL_TIME.end)
    return QueryReading(body, opening, body.missing, (unknown,), tuple(joined(gone)))


def _is_of_what_there_is(plan: Plan, body: Cover) -> bool:
    """A total without a time clause is of all data that there is, if there is any time left to read."""
    some = any(piece.span.start < MAX_INSTANT for piece in body.pieces)
    return plan.span is None and not plan.is_bucketed and some


def _body(plan: Plan, span: Interval, available: Available) -> Cover:
    """What is folded into cells, or into one total."""
    if plan.level is not None:
        return cover(span, available, plan.level)
    if plan.grid is None:
        return cover(span, available)
    inner = (cell for cell in plan.grid.cells if span.start < cell < span.end)
    return cover_cells([span.start, *inner, span.end], available)


def _before_the_end(plan: Plan, body: Cover) -> tuple[Interval, ...]:
    """What is missing in cells other than the last: the states of all later ones build on it."""
    last = plan.grid.cells[-1] if plan.grid and plan.grid.cells else BEGINNING
    if plan.grid is None and plan.is_bucketed:
        last = ALL_TIME.end
    return tuple(span for span in body.missing if span.start < last)


def _from_where_known(plan: Plan, read: Interval, available: Available) -> QueryReading:
    """The states at the end of a cell are those of all changes before it, wherever the span starts. So where
    its start or its first cells cannot be read, the coarser buckets up to a later cell tell."""
    first = plan.grid.cells[0] if plan.grid and plan.grid.cells else read.start
    since = _known_from(plan, _body(plan, Interval(first, max(first, read.end)), available), first, read.end)
    opening = cover(Interval(BEGINNING, since), available)
    body = _body(plan, Interval(since, max(since, read.end)), available)
    before = [Interval(read.start, since)] if plan.is_bucketed and since > read.start else []
    unknown = (ALL_TIME,) if opening.missing else (*before, *body.missing)
    gone = (*opening.missing, *body.missing) if opening.missing else unknown
    return QueryReading(body, opening, unknown, unknown, tuple(gone))


def _known_from(plan: Plan, body: Cover, first: int, end: int) -> int:
    """The first edge of a cell after which nothing is missing but in the last one."""
    if not plan.is_bucketed:
        return end
    broken = _before_the_end(plan, body)
    if not broken:
        return first
    after = broken[-1].end
    if plan.grid is None:
        assert plan.interval is not None
        return ceil(after, plan.interval)
    return next((cell for cell in plan.grid.cells if cell >= after), plan.grid.end)


def without_raw(reading: QueryReading) -> QueryReading:
    """Where what raw says cannot be told yet: states and limited keys depend on what was before."""
    spans = tuple(joined([*reading.opening.raw, *reading.cover.raw]))
    lost = tuple(reading.cover.raw)
    unknown = (Interval(spans[0].start, ALL_TIME.end),)
    parts = (
        Missing(
            span,
            "not_built",
            f"what was before {span} is not remembered yet, and it decides what the events there count as",
            "the next round makes it: `tidemill run --once`",
        )
        for span in spans
    )
    return replace(
        reading,
        lost=tuple(sorted({*reading.lost, *lost})),
        unknown=unknown,
        missing=(*reading.missing, *parts),
    )


def _with_missing(reading: QueryReading, why: Callable[[Interval], Missing]) -> QueryReading:
    return replace(reading, missing=tuple(why(span) for span in reading.gone))
