"""The metrics of a stream as declared in `tidemill.yaml`: counter, gauge, histogram, state and ratio.

Each metric is validated by itself here; `checks_metrics` checks its columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Final, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Discriminator, StrictInt, Tag, model_validator

from tidemill.config.schema import SECTION
from tidemill.config.values import Condition, SafeName, wrong
from tidemill.model.conditions.declared import DeclaredCondition, parse_condition
from tidemill.model.metrics import CHANGE, Bins, TransitionRule, bounded, log_scaled

DEFAULT_ACCURACY: Final = Decimal("0.01")
MIN_ACCURACY, MAX_ACCURACY = Decimal("0.0005"), Decimal("0.5")
MAX_BOUNDS: Final = 1_000
MAX_DIGITS: Final = 40  # digits of a bound
MAX_KEYS: Final = 1_000_000  # keys that a metric can be limited to


def _exact(value: object) -> object:
    """A number of the file, without rounding to a binary fraction."""
    if isinstance(value, bool):
        raise wrong(f"{str(value).lower()} is not a number", "use a number such as 0.5")
    return Decimal(str(value)) if isinstance(value, float) else value


def _short(value: Decimal) -> Decimal:
    """Refuse numbers with absurdly many digits, which would be slow to compute with."""
    if len(str(value)) > MAX_DIGITS or abs(value.adjusted()) > MAX_DIGITS:
        raise wrong(f"the number {str(value)[:MAX_DIGITS]}… is too long", f"use {MAX_DIGITS} digits at most")
    return value


def _accuracy(value: Decimal) -> Decimal:
    if not MIN_ACCURACY <= value <= MAX_ACCURACY:
        raise wrong(f"an accuracy of {value} is out of range", f"use {MIN_ACCURACY} to {MAX_ACCURACY}")
    return value


def _ascending(bounds: tuple[Decimal, ...]) -> tuple[Decimal, ...]:
    if any(a >= b for a, b in itertools.pairwise(bounds)):
        raise wrong("bounds do not ascend", "write them from the least to the greatest, each once")
    return bounds


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


def _rule_name(name: str) -> str:
    if name == CHANGE:
        raise wrong(f"{CHANGE!r} is reserved: those transitions are always counted", "use another name")
    return name


RuleName = Annotated[SafeName, AfterValidator(_rule_name)]
Number = Annotated[Decimal, BeforeValidator(_exact), AfterValidator(_short)]
Accuracy = Annotated[Number, AfterValidator(_accuracy)]
Bounds = Annotated[
    tuple[Number, ...], pydantic.Field(min_length=1, max_length=MAX_BOUNDS), AfterValidator(_ascending)
]
States = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), pydantic.Field(min_length=1)]
From = Annotated[
    Annotated[Literal["last", "any"], Tag("word")] | Annotated[States, Tag("states")],
    Discriminator(lambda value: "word" if value in ("last", "any") else "states"),
]
Limit = Annotated[StrictInt, pydantic.Field(ge=1, le=MAX_KEYS)]
Columns = tuple[str, ...]


class Counter(pydantic.BaseModel):
    """Counts events and sums measures exactly, for every combination of its dimensions."""

    model_config = SECTION

    kind: Literal["counter"]
    dimensions: Columns = ()
    measures: Columns = ()
    filter: Condition | None = None  # count only events for which this is true; None: all
    # Combinations of dimensions for each tenant; the rest is counted as __other__.
    max_cardinality: Limit | None = None

    @property
    def numbers(self) -> Columns:
        """The columns whose values it keeps."""
        return self.measures


class Gauge(pydantic.BaseModel):
    """Keeps count, sum, minimum, maximum, first and last of a value; `policy` says which one is shown."""

    model_config = SECTION

    kind: Literal["gauge"]
    value: str
    policy: Literal["avg", "min", "max", "first", "last"] = "last"
    dimensions: Columns = ()
    filter: Condition | None = None
    max_cardinality: Limit | None = None

    @property
    def numbers(self) -> Columns:
        return (self.value,)


class Histogram(pydantic.BaseModel):
    """Counts samples in declared bins, or in log-scale bins that give percentiles of known accuracy."""

    model_config = SECTION

    kind: Literal["histogram"]
    value: str
    bounds: Bounds | None = None
    accuracy: Accuracy | None = None  # relative; 0.01 without bounds
    dimensions: Columns = ()
    filter: Condition | None = None
    max_cardinality: Limit | None = None

    @model_validator(mode="after")
    def _bounds_or_accuracy(self) -> Histogram:
        if self.bounds is not None and self.accuracy is not None:
            raise wrong("bounds and accuracy cannot be combined", "use one of them")
        return self

    @property
    def numbers(self) -> Columns:
        return (self.value,)

    def bins(self, scale: int) -> Bins:
        """The bins for samples of this scale."""
        if self.bounds is not None:
            return bounded(self.bounds, scale)
        return log_scaled(self.accuracy or DEFAULT_ACCURACY)


class Transition(pydantic.BaseModel):
    """Changes of state that are counted under a name: from the state just left (`last`), from any earlier
    state, or from listed ones; to any state or to listed ones; of each object only until it first reaches one
    of `until`."""

    model_config = SECTION

    from_: Annotated[From, pydantic.Field(alias="from")] = "last"
    to: States | None = None  # None: any
    until: States | None = None  # None: without end

    def rule(self, name: str) -> TransitionRule:
        states = self.from_ if isinstance(self.from_, tuple) else None
        return TransitionRule(name, self.from_ == "last", states, self.to, self.until or ())


class StateMetric(pydantic.BaseModel):
    """Follows the state of each object in event time: how many objects are in each state, and changes."""

    model_config = SECTION

    kind: Literal["state"]
    object: str
    state: str
    dimensions: Columns = ()
    transitions: Mapping[RuleName, Transition] = {}
    filter: Condition | None = None
    max_cardinality: Limit | None = None

    @property
    def numbers(self) -> Columns:
        return ()

    @property
    def rules(self) -> tuple[TransitionRule, ...]:
        """What is counted: every change, and the declared transitions."""
        declared = (transition.rule(name) for name, transition in sorted(self.transitions.items()))
        return (TransitionRule(CHANGE), *declared)


class Term(pydantic.BaseModel):
    """A term of a ratio: a counter, or transitions of a state metric."""

    model_config = SECTION

    metric: str
    transition: str | None = None  # for a state metric: the transition; None: every change
    from_: Annotated[States | None, pydantic.Field(alias="from")] = None  # only from these states,
    to: States | None = None  # and to these

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return {"metric": data} if isinstance(data, str) else data


Terms = Annotated[tuple[Term, ...], BeforeValidator(_one_or_more), pydantic.Field(min_length=1)]


class Ratio(pydantic.BaseModel):
    """The counts of one side divided by the counts of the other; null if the divisor is zero. Stores nothing;
    it has the dimensions that all its metrics share."""

    model_config = SECTION

    kind: Literal["ratio"]
    numerator: Terms
    denominator: Terms

    @property
    def terms(self) -> tuple[Term, ...]:
        return (*self.numerator, *self.denominator)


Kept = Counter | Gauge | Histogram | StateMetric
"""The kinds that have rows in the rollups."""

Metric = Annotated[Counter | Gauge | Histogram | StateMetric | Ratio, pydantic.Field(discriminator="kind")]


def decisive_fields(metric: Kept) -> Columns:
    """The fields that decide whether the metric counts an event at all: those of its filter, and of a state
    metric the object and its state."""
    condition = filter_of(metric)
    followed = (metric.object, metric.state) if isinstance(metric, StateMetric) else ()
    return tuple(dict.fromkeys((*(condition.columns if condition is not None else ()), *followed)))


def fields_of(metric: Kept) -> Columns:
    """All fields without whose values a number of the metric is not right."""
    dimensions = () if isinstance(metric, StateMetric) else metric.dimensions
    return tuple(dict.fromkeys((*decisive_fields(metric), *metric.numbers, *dimensions)))


def keeps_keys(metric: Kept) -> bool:
    """Whether its rows have the dimensions of the events they count, so that they can be added up by them."""
    return metric.max_cardinality is None and not isinstance(metric, StateMetric)


def filter_of(metric: Kept) -> DeclaredCondition | None:
    return parse_condition(metric.filter) if metric.filter is not None else None
