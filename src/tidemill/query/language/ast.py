"""A query or a search as frozen values, each with the character it stands at. Says what was written, and
never whether the names in it exist: the plan decides that. Where a thing stands is no part of what it says:
two that say the same are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal

Edges = Literal["include", "exclude", "null"]
Fill = Literal["null", "zero", "drop", "carry"]
Format = Literal["rows", "series"]
Scalar = str | int | bool | Decimal
Unit = Literal["us", "week", "month", "quarter", "year"]  # of an interval
SEARCH_ORDERS: Final = ("ts", "arrival")
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Path:
    """A name, dots included: a stream, a metric, a dimension, a measure, a function, a place in a payload.

    `segments` are the steps of a place in a payload: cut at the dots, but not at those inside `backticks`.
    """

    text: str
    position: int = field(default=0, compare=False)
    segments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.segments:
            object.__setattr__(self, "segments", tuple(self.text.split(".")))


@dataclass(frozen=True, slots=True)
class Literally:
    """A value written out in a condition."""

    value: Scalar
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Value:
    """`count`, `sum(latency_ms)`, `ratio(failures, requests)`, `percentile(0.999)`: a function and what it
    is of."""

    function: Path
    arguments: tuple[Path | Literally, ...] = ()
    star: bool = False  # `count(*)`

    @property
    def argument(self) -> Path | None:
        """The only one, when it is a name."""
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
    """Two expressions joined: `+ - * /`, and in HAVING also a comparison, `and` or `or`."""

    operator: str
    left: Expression
    right: Expression

    @property
    def position(self) -> int:
        return self.left.position


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` of a number; in HAVING also `not`, `is null` and `is not null`."""

    operator: str
    term: Expression
    position: int = field(default=0, compare=False)


Expression = Value | Literally | Binary | Unary


def values_in(expression: Expression) -> tuple[Value, ...]:
    """The values that an expression is made of, in the order they are written."""
    match expression:
        case Value():
            return (expression,)
        case Binary(_, left, right):
            return (*values_in(left), *values_in(right))
        case Unary(_, term):
            return values_in(term)
        case Literally():
            return ()


@dataclass(frozen=True, slots=True)
class Item:
    value: Expression
    alias: Path | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    dimension: Path
    operator: str  # = != < <= > >=
    literal: Literally


@dataclass(frozen=True, slots=True)
class Among:
    dimension: Path
    literals: tuple[Literally, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    dimension: Path
    pattern: Literally
    negated: bool
    any_case: bool = False  # ILIKE


@dataclass(frozen=True, slots=True)
class Within:
    """`x BETWEEN low AND high`, both included."""

    dimension: Path
    low: Literally
    high: Literally
    negated: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    dimension: Path
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    term: Condition


@dataclass(frozen=True, slots=True)
class All:
    """Every term holds (AND)."""

    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one term holds (OR)."""

    terms: tuple[Condition, ...]


Condition = Compare | Among | Like | Within | IsNull | Not | All | AnyOf


@dataclass(frozen=True, slots=True)
class Now:
    """`now`, or so many microseconds after it (before it, when negative)."""

    offset: int = 0


@dataclass(frozen=True, slots=True)
class Wall:
    """What a clock shows, written without an offset: which instant that is depends on the time zone."""

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
    """The word given to EDGES, FILL, FORMAT, TIMEZONE or WEEK START."""

    word: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OriginClause:
    """ORIGIN: an instant at which a bucket starts."""

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
    having: Expression | None = None
    edges: Choice | None = None
    fill: Choice | None = None
    order: tuple[OrderKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    format: Choice | None = None


@dataclass(frozen=True, slots=True)
class Search:
    where: Condition | None = None  # on what is indexed
    filter: Condition | None = None  # on the payload
    time: Between | Since | None = None
    order: tuple[tuple[str, bool], ...] = ()  # one of SEARCH_ORDERS, and whether the greatest comes first
    limit: int | None = None
    explain: bool = False
