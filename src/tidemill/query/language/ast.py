"""A query or a search as frozen values, each with its position in the text, which is ignored in comparisons.
The plan checks whether names exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from tidemill.model.conditions.ast import (
    AnyCondition,
    Condition,
    Literally,
    Path,
    tests_in,
    values_of_test,
)

Edges = Literal["include", "exclude", "null"]
Fill = Literal["null", "zero", "drop", "carry"]
Format = Literal["rows", "series"]
Unit = Literal["us", "week", "month", "quarter", "year"]  # of an interval
SEARCH_ORDERS: Final = ("ts", "arrival")
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(frozen=True, slots=True)
class Value:
    """`count`, `sum(latency_ms)`, `ratio(failures, requests)`, `percentile(0.999)`: a function with
    arguments."""

    function: Path
    arguments: tuple[Path | Literally, ...] = ()
    star: bool = False  # `count(*)`

    @property
    def argument(self) -> Path | None:
        """The only argument, if it is a name."""
        found = self.arguments[0] if len(self.arguments) == 1 else None
        return found if isinstance(found, Path) else None

    @property
    def text(self) -> str:
        inside = ", ".join(str(a.value) if isinstance(a, Literally) else a.text for a in self.arguments)
        inside = "*" if self.star else inside
        return f"{self.function.text}({inside})" if inside else self.function.text

    @property
    def position(self) -> int:
        return self.function.position


@dataclass(frozen=True, slots=True)
class Binary:
    """Two expressions joined by `+ - * /`."""

    operator: str
    left: Expression
    right: Expression

    @property
    def position(self) -> int:
        return self.left.position


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` of a number."""

    operator: str
    term: Expression
    position: int = field(default=0, compare=False)


Expression = Value | Literally | Binary | Unary
Having = AnyCondition[Expression, Expression]
"""A condition on the values of an answer."""


def values_in(expression: Expression) -> tuple[Value, ...]:
    """The values of an expression, in the order they are written."""
    match expression:
        case Value():
            return (expression,)
        case Binary(_, left, right):
            return (*values_in(left), *values_in(right))
        case Unary(_, term):
            return values_in(term)
        case Literally():
            return ()


def values_in_having(having: Having | None) -> tuple[Value, ...]:
    return tuple(
        value
        for test in tests_in(having)
        for expression in (test.operand, *values_of_test(test))
        for value in values_in(expression)
    )


@dataclass(frozen=True, slots=True)
class Item:
    value: Expression
    alias: Path | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """`now`, or so many microseconds after it (negative: before it)."""

    offset: int = 0


@dataclass(frozen=True, slots=True)
class Wall:
    """A local time, written without an offset: the instant depends on the time zone."""

    micros: int  # as if it were UTC


Moment = int | Now | Wall  # an int is an instant in UTC microseconds


@dataclass(frozen=True, slots=True)
class Between:
    """`[start, end)`."""

    start: Moment
    end: Moment
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Since:
    """From so long before now up to now."""

    duration: int
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Rollup:
    level: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Every:
    """INTERVAL: one row for each `count` of `unit`. Durations of a fixed length count microseconds."""

    count: int
    unit: Unit = "us"
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OrderKey:
    value: Expression
    descending: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The argument of EDGES, FILL, FORMAT, TIMEZONE or WEEK START."""

    word: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OriginClause:
    """ORIGIN: an instant at which a bucket starts."""

    moment: Moment
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AsOfClause:
    """AS OF: the answer as it was at this instant of arrival."""

    moment: Moment
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Query:
    items: tuple[Item, ...]
    source: Path
    explain: bool = False
    where: Condition | None = None  # on dimensions
    filter: Condition | None = None  # on the payload
    time: Between | Since | None = None
    bucket: Rollup | Every | None = None
    timezone: Choice | None = None
    week_start: Choice | None = None
    origin: OriginClause | None = None
    groups: tuple[Path, ...] = ()
    having: Having | None = None
    edges: Choice | None = None
    fill: Choice | None = None
    order: tuple[OrderKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    format: Choice | None = None
    as_of: AsOfClause | None = None


@dataclass(frozen=True, slots=True)
class Search:
    where: Condition | None = None  # on what is indexed
    filter: Condition | None = None  # on the payload
    time: Between | Since | None = None
    order: tuple[tuple[str, bool], ...] = ()  # one of SEARCH_ORDERS, and whether the greatest comes first
    limit: int | None = None
    explain: bool = False
