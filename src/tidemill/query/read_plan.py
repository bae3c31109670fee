"""What a plan reads: the pieces of its span, those that give the states before it, and what has expired.
Pure: it knows from when on each source has data, and reads no data."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tidemill.model.completeness import PUT_BACK, Available, Missing, Outdated, damaged, not_built
from tidemill.model.levels import BASE, LEVELS, NAMES
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, cut, joined
from tidemill.query.as_of import Past
from tidemill.query.cover import ALL_TIME, BEGINNING, RAW, Cover, ceil, cover, cover_cells, gone_for_good
from tidemill.query.plan import Plan


@dataclass(frozen=True, slots=True)
class QueryReading:
    """The pieces that are folded into the answer, and those that give the number of objects in each state
    before them. A cell that overlaps `lost` has no number, one that overlaps `unknown` has no states."""

    cover: Cover
    opening: Cover = field(default_factory=Cover)
    lost: tuple[Interval, ...] = ()
    unknown: tuple[Interval, ...] = ()
    gone: tuple[Interval, ...] = ()  # what has expired everywhere,
    missing: tuple[Missing, ...] = ()  # and why

    @property
    def level(self) -> str:
        """The coarsest level that is read; for an empty span the finest that there is."""
        found = self.cover.coarsest or self.opening.coarsest
        if found is not None:
            return found.name
        return RAW if self.cover.pieces else BASE.name


def reading_of(plan: Plan, available: Available) -> QueryReading:
    """One rule for totals, intervals and states."""
    lost_raw = available.lost.get(RAW, ())
    only_raw = Available(dict.fromkeys(NAMES, ALL_TIME.end), available.raw, {RAW: lost_raw})
    if plan.past is not None:
        reading = _with_missing(_read(plan, only_raw), _of_raw(_forgotten, available))
        return _then(reading, plan.past, plan.follows_objects)
    if plan.filter is not None:
        return _with_missing(_read(plan, only_raw), _of_raw(_unfiltered, available))
    outdated = available.not_built(plan.uses)
    if outdated is None:
        return _with_missing(_read(plan, available), lambda span: gone_for_good(span, available))
    made = _read(plan, available.after(outdated))
    return _with_missing(made, lambda span: _lacking(span, outdated, plan, available))


def _lacking(span: Interval, outdated: Outdated, plan: Plan, available: Available) -> Iterator[Missing]:
    if span.start < outdated.before:
        valid = Interval(max(span.start, MIN_INSTANT), min(span.end, MAX_INSTANT))
        yield not_built(valid, outdated, plan.metric)
    else:
        yield from gone_for_good(span, available)


def _of_raw(
    why: Callable[[Interval], Missing], available: Available
) -> Callable[[Interval], Iterator[Missing]]:
    """For an answer that only raw can give: why it lacks a span that expired, or that a damaged part held."""

    def reasons(span: Interval) -> Iterator[Missing]:
        expired = [] if available.raw is None else [Interval(min(span.start, available.raw), available.raw)]
        for part, is_expired in cut(span, expired):
            yield why(part) if is_expired else damaged(part, RAW, PUT_BACK)

    return reasons


def _then(reading: QueryReading, past: Past, follows_objects: bool) -> QueryReading:
    """The reading of a past instant: no number where a slice counted then that was retracted since. Counts of
    objects are unknown from there on."""
    gone = tuple(one.span for one in past.missing)
    unknown = (Interval(min(span.start for span in gone), ALL_TIME.end),) if gone else ()
    gone = unknown if follows_objects else gone
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
        "AS OF reads the events themselves, and raw of that time has expired",
        "leave AS OF out, or let the span start later",
    )


def _unfiltered(span: Interval) -> Missing:
    return Missing(
        Interval(max(span.start, MIN_INSTANT), min(span.end, MAX_INSTANT)),
        "expired",
        "FILTER reads the events themselves, and raw of that time has expired",
        "leave FILTER out, or let the span start later",
    )


def _read(plan: Plan, available: Available) -> QueryReading:
    read = plan.read or ALL_TIME
    body = _body(plan, read, available)
    if plan.states is None:
        lost = () if _covers_existing_data(plan, body) else body.missing
        return QueryReading(body, lost=lost, gone=body.missing)
    opening = cover(Interval(BEGINNING, read.start), available)
    if not opening.missing and not _before_the_end(plan, body):
        return QueryReading(body, opening, body.missing, body.missing, body.missing)
    if plan.states_alone:
        return _from_where_known(plan, read, available)
    gone = (*opening.missing, *body.missing)
    unknown = Interval(gone[0].start, ALL_TIME.end)
    return QueryReading(body, opening, body.missing, (unknown,), tuple(joined(gone)))


def _covers_existing_data(plan: Plan, body: Cover) -> bool:
    """A total without a time clause covers all data that exist, if any time is left to read."""
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
    """What is missing in cells other than the last: the states of all later ones depend on it."""
    last = plan.grid.cells[-1] if plan.grid and plan.grid.cells else BEGINNING
    if plan.grid is None and plan.is_bucketed:
        last = ALL_TIME.end
    return tuple(span for span in body.missing if span.start < last)


def _from_where_known(plan: Plan, read: Interval, available: Available) -> QueryReading:
    """The states at the end of a cell depend on all changes before it, wherever the span starts. So if its
    start or its first cells cannot be read, coarser buckets up to a later cell are used."""
    first = plan.grid.cells[0] if plan.grid and plan.grid.cells else read.start
    found = _body(plan, Interval(first, max(first, read.end)), available)
    since, opening = _known_from(plan, found, Interval(first, max(first, read.end)), available)
    body = _body(plan, Interval(since, max(since, read.end)), available)
    before = [Interval(read.start, since)] if plan.is_bucketed and since > read.start else []
    if not opening.missing:
        unknown = (*before, *body.missing)
        return QueryReading(body, opening, unknown, unknown, unknown)
    after = [Interval(since, read.end)] if plan.is_bucketed and since < read.end else []
    parts = cut(ALL_TIME, [*opening.missing, *before, *after, *body.missing])
    gone = tuple(part for part, is_gone in parts if is_gone)
    return QueryReading(body, opening, (ALL_TIME,), (ALL_TIME,), gone)


def _known_from(plan: Plan, body: Cover, span: Interval, available: Available) -> tuple[int, Cover]:
    """The first edge of a cell after which nothing is missing except in the last one, and what all changes
    before it are read from. If those before it are not known, those before a later edge may be: up to the
    end of a coarser bucket that is kept while the finer ones inside of it have expired."""
    if not plan.is_bucketed:
        return span.end, cover(Interval(BEGINNING, span.end), available)
    broken = _before_the_end(plan, body)
    after = broken[-1].end if broken else span.start
    edges = [_edge_from(plan, at) for at in (after, *(ceil(after, level.width) for level in LEVELS))]
    found = [(edge, cover(Interval(BEGINNING, edge), available)) for edge in dict.fromkeys(edges)]
    return next((each for each in found if not each[1].missing), found[0])


def _edge_from(plan: Plan, at: int) -> int:
    """The first edge of a cell that is not before `at`, or else the last one."""
    if plan.grid is None:
        assert plan.interval is not None
        return ceil(at, plan.interval)
    cells = plan.grid.cells
    found = bisect_left(cells, at)
    return cells[found] if found < len(cells) else plan.grid.end


def without_raw(reading: QueryReading) -> QueryReading:
    """Where raw alone does not determine the answer: states and limited keys depend on earlier events."""
    spans = tuple(joined([*reading.opening.raw, *reading.cover.raw]))
    lost = tuple(reading.cover.raw)
    unknown = (Interval(spans[0].start, ALL_TIME.end),)
    parts = (
        Missing(
            span,
            "not_built",
            f"the state history before {span} is not built yet, and what its events count as depends on it",
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


def _with_missing(reading: QueryReading, why: Callable[[Interval], Iterator[Missing]]) -> QueryReading:
    return replace(reading, missing=tuple(one for span in reading.gone for one in why(span)))
