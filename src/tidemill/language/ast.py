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
SEARCH_ORDERS: Final = ("ts", "arrival")


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

    @property
    def argument(self) -> Path | None:
        """The only one, when it is a name."""
        found = self.arguments[0] if len(self.arguments) == 1 else None
        return found if isinstance(found, Path) else None

    @property
    def text(self) -> str:
        inside = ", ".join(str(a.value) if isinstance(a, Literally) else a.text for a in self.arguments)
        return f"{self.function.text}({inside})" if self.arguments else self.function.text

    @property
    def position(self) -> int:
        return self.function.position


@dataclass(frozen=True, slots=True)
class Item:
    value: Value
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


Condition = Compare | Among | Like | IsNull | Not | All | AnyOf


@dataclass(frozen=True, slots=True)
class Between:
    """`[start, end)` in microseconds."""

    start: int
    end: int
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Since:
    duration: int
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Rollup:
    level: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Every:
    """INTERVAL: one row for each `duration`."""

    duration: int
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OrderKey:
    value: Value
    descending: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The word given to EDGES, FILL or FORMAT."""

    word: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Query:
    items: tuple[Item, ...]
    source: Path
    explain: bool = False
    where: Condition | None = None
    time: Between | Since | None = None
    bucket: Rollup | Every | None = None
    groups: tuple[Path, ...] = ()
    edges: Choice | None = None
    fill: Choice | None = None
    order: tuple[OrderKey, ...] = ()
    limit: int | None = None
    format: Choice | None = None


@dataclass(frozen=True, slots=True)
class Search:
    where: Condition | None = None  # on what is indexed
    filter: Condition | None = None  # on the payload
    time: Between | Since | None = None
    order: tuple[tuple[str, bool], ...] = ()  # one of SEARCH_ORDERS, and whether the greatest comes first
    limit: int | None = None
    explain: bool = False
