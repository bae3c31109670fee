"""Metrics of all kinds as the oracle needs them, said in plain values.

They are deliberately not the configuration of the engine: `project.py` writes that from the same values.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, NamedTuple

from tidemill.model.metrics import CHANGE, Bins, TransitionRule, bounded, log_scaled

Columns = tuple[str, ...]


class OracleCounter(NamedTuple):
    dimensions: Columns = ()
    measures: Columns = ()
    filter: str | None = None
    limit: int | None = None  # of keys per tenant: `max_cardinality`


class OracleGauge(NamedTuple):
    value: str
    policy: Literal["avg", "min", "max", "first", "last"] = "last"
    dimensions: Columns = ()
    filter: str | None = None
    limit: int | None = None


class OracleHistogram(NamedTuple):
    value: str
    bounds: tuple[Decimal, ...] | None = None
    accuracy: Decimal = Decimal("0.01")  # when there are no bounds
    dimensions: Columns = ()
    filter: str | None = None
    limit: int | None = None

    def bins(self, scale: int) -> Bins:
        return log_scaled(self.accuracy) if self.bounds is None else bounded(self.bounds, scale)


class OracleState(NamedTuple):
    object: str
    state: str
    dimensions: Columns = ()
    named: tuple[TransitionRule, ...] = ()
    filter: str | None = None
    limit: int | None = None

    @property
    def rules(self) -> tuple[TransitionRule, ...]:
        return (TransitionRule(CHANGE), *self.named)


class OracleTerm(NamedTuple):
    """A counter, or transitions of a state metric."""

    metric: str
    transition: str | None = None
    from_: Columns | None = None
    to: Columns | None = None


class OracleRatio(NamedTuple):
    numerator: tuple[OracleTerm, ...]
    denominator: tuple[OracleTerm, ...]


OracleKept = OracleCounter | OracleGauge | OracleHistogram | OracleState
"""Those that have rows."""

OracleKind = OracleKept | OracleRatio


def measures_of(metric: OracleKept) -> Columns:
    """The columns whose numbers it keeps."""
    match metric:
        case OracleCounter():
            return metric.measures
        case OracleGauge() | OracleHistogram():
            return (metric.value,)
        case OracleState():
            return ()
