"""What an answer lacks, and why: the types that every answer about data uses, from Python to the console.
Values only: it reads nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tidemill.model.errors import IncompleteError, Retry
from tidemill.model.levels import LEVELS
from tidemill.model.time import Interval, format_instant, open_span

Why = Literal["expired", "not_built", "retracted", "damaged", "unfit"]
What = Literal["landed", "failed", "retraction", "tiles", "windows", "results"]

ROUND: Final = "tidemill run --once"


@dataclass(frozen=True, slots=True)
class Missing:
    """A part of the span that the answer has no numbers for. They are null there, never zero."""

    span: Interval
    why: Why
    detail: str  # one plain sentence
    remedy: str  # what to type or change, or why nothing can be done

    def __str__(self) -> str:
        return f"Missing {open_span(self.span) or _bounded(self.span)}: {self.detail}"


def _bounded(span: Interval) -> str:
    return f"{format_instant(span.start)} to {format_instant(span.end)}"


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that is known but not in the answer yet, and what will add it."""

    what: What
    count: int | None  # slices, or tiles; None: unknown
    detail: str  # one plain sentence
    remedy: str
    records: int | None = None  # None: unknown
    bytes: int | None = None
    start: int | None = None  # the first instant that it can change; None: any

    def __str__(self) -> str:
        return f"Pending: {self.detail}"


@dataclass(frozen=True, slots=True)
class Outdated:
    """Rows of a metric before an instant that were made for an earlier declaration of it."""

    before: int
    lacks: frozenset[str] | None  # columns that they do not have; None: none of their numbers is right
    sealed: bool  # raw is gone for them, so they stay as they are

    def concerns(self, columns: frozenset[str]) -> bool:
        return self.lacks is None or bool(self.lacks & columns)


@dataclass(frozen=True, slots=True)
class Available:
    """From which instant on each source of an answer still has its data; what is not named has all of it."""

    levels: Mapping[str, int] = field(default_factory=dict)  # by the name of a rollup level
    raw: int | None = None
    lost: Mapping[str, Sequence[Interval]] = field(
        default_factory=dict
    )  # by level, or `raw`: with damaged files
    outdated: Mapping[str, Sequence[Outdated]] = field(default_factory=dict)  # by metric

    def level_from(self, level: str) -> int | None:
        return self.levels.get(level)

    def not_built(self, uses: Mapping[str, frozenset[str]]) -> Outdated | None:
        """The last rows that cannot be used by a query of these columns of these metrics, if any."""
        found = [
            one
            for metric, columns in uses.items()
            for one in self.outdated.get(metric, ())
            if one.concerns(columns)
        ]
        return max(found, key=lambda one: one.before, default=None)

    def after(self, gone: Outdated) -> Available:
        """The same for a query that cannot be answered before the end of `gone`."""
        levels = {level.name: max(gone.before, self.levels.get(level.name, gone.before)) for level in LEVELS}
        raw = gone.before if self.raw is None else max(gone.before, self.raw)
        return Available(levels, raw, self.lost, self.outdated)


PUT_BACK: Final = "Put the file back from a copy of the warehouse: `tidemill repair --explain` names it"
NOTHING_HELPS: Final = "Nothing makes it again: what it was made of has expired"


def damaged(span: Interval, what: str, remedy: str) -> Missing:
    """What an answer reports about a part of its span that was lost with a damaged file."""
    detail = f"{what} of {span} was lost with a damaged file, and cannot be made again"
    return Missing(span, "damaged", detail, remedy)


def unfit(
    span: Interval,
    count: int | None,
    name: str,
    kind: str,
    *,
    effect: str = "numbers that depend on it are not known",
    sealed: bool = False,
) -> Missing:
    """What an answer reports about events with a value that the type of its field cannot hold: mostly, it was
    declared so after they were accepted. `sealed`: raw of that time has expired."""
    many = "some events have" if count is None else "1 event has" if count == 1 else f"{count:,} events have"
    return Missing(
        span,
        "unfit",
        f"{many} a value of {name!r} that does not fit its type ({kind}): {effect}",
        "Nothing can be done: the events themselves have expired"
        if sealed
        else f"Declare a type of {name!r} that holds them all (of the 18 digits of a decimal, a smaller "
        f"`scale` leaves more before the point), then `{ROUND}`: their payloads have the values",
    )


def not_built(span: Interval, gone: Outdated, metric: str) -> Missing:
    """What an answer reports about a part of its span whose rows were made for an earlier declaration of the
    metric."""
    if not gone.sealed:
        return Missing(
            span,
            "not_built",
            f"{metric} was declared or changed since the last round and is not built yet",
            f"The next round builds it: `{ROUND}`",
        )
    return Missing(
        span,
        "not_built",
        f"{metric} counts from {format_instant(gone.before)} on, as it is declared now",
        "Nothing can be done: raw before that had expired when it was declared so",
    )


@dataclass(frozen=True, slots=True)
class Completeness:
    """How far an answer can be trusted.

    Up to `complete_through` nothing is expected to change: the watermark has passed it, and nothing that is
    pending can touch it. `as_of` is the newest arrival that the answer includes. `data` runs from the first
    to the end of the last bucket that there is inside the span, whatever WHERE says.
    """

    complete_through: int | None  # None: nothing is known to be complete
    complete: bool  # the whole span is, and nothing is missing or pending
    open: bool  # more data may still arrive for the span
    missing: tuple[Missing, ...] = ()
    pending: tuple[Pending, ...] = ()
    as_of: int | None = None  # None: nothing is included yet
    watermark: int | None = None
    data: Interval | None = None

    @property
    def lacks(self) -> list[Missing | Pending]:
        return [*self.missing, *self.pending]

    def lines(self) -> Iterator[str]:
        """Sentences for a person: how far it is complete, then each thing that is missing or pending."""
        yield self.sentence()
        for one in self.lacks:
            yield f"{one}. {one.remedy}."

    def sentence(self) -> str:
        if self.complete_through is None:
            why = "" if self.watermark is not None else ": the stream has no watermark yet"
            return f"Nothing is known to be complete{why}; more data may arrive."
        until = f"Complete through {format_instant(self.complete_through)}"
        if self.open:
            return f"{until}; later data may still arrive."
        return f"{until}, but for what is missing." if self.missing else f"{until}."

    def __str__(self) -> str:
        return " ".join(self.lines())

    def check(self) -> None:
        """For strict callers: IncompleteError if something is missing or pending."""
        if self.lacks:
            first, *rest = self.lacks
            more = f" (and {len(rest)} more)" if rest else ""
            retry = Retry.LATER if self.pending else Retry.NEVER
            raise IncompleteError(
                f"the answer is not complete. {first}{more}", hint=first.remedy, retry=retry
            )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Facts about a stream, besides its tables, at the time of a query."""

    watermark: int | None = None
    pending: tuple[Pending, ...] = ()
    as_of: int | None = None


def completeness(
    arrivals: Arrivals,
    span: Interval | None,
    data: Interval | None = None,
    missing: Sequence[Missing] = (),
) -> Completeness:
    """The completeness of an answer over `span` (None: all data)."""
    requested = span or data
    end = requested.end if requested is not None else arrivals.watermark
    through = min(end, arrivals.watermark) if end is not None and arrivals.watermark is not None else None
    for one in arrivals.pending:
        if one.start is None:
            through = None
        elif through is not None:
            through = min(through, one.start)
    return Completeness(
        complete_through=through,
        complete=through is not None and through == end and not missing and not arrivals.pending,
        open=through is None or through != end,
        missing=tuple(missing),
        pending=arrivals.pending,
        as_of=arrivals.as_of,
        watermark=arrivals.watermark,
        data=data,
    )
