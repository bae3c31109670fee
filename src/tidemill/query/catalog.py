"""The catalog: streams, event types, attributes with their most frequent values, metrics.

It only reads, and starts no JVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.config import Gauge, Histogram, Kept, Ratio, StateMetric, Stream
from tidemill.config.metrics import DEFAULT_ACCURACY, Term

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.outputs.index.attributes import Attributes
    from tidemill.query.tenants import Tenants

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.


@dataclass(frozen=True, slots=True)
class MetricFacts:
    """A metric as declared, in terms of queries."""

    name: str
    kind: str
    dimensions: Sequence[str]
    values: Sequence[str]  # what can be selected
    of: Sequence[str] = ()  # columns whose values it keeps, or the metrics of a ratio
    filter: str | None = None
    max_cardinality: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    stream: str
    description: str
    keywords: Sequence[str]
    source_links: Sequence[str]
    event_types: Sequence[str]
    fields: Sequence[tuple[str, str]]  # name and type
    metrics: Sequence[MetricFacts]
    attributes: Attributes | None = None  # None: nothing is indexed
    windows: Sequence[str] = field(default=())
    tenants: Tenants | None = None  # None: the stream declares one tenant for all its events
    kind: str = "events"  # or delta: its records change vectors
    notes: Sequence[tuple[str, Mapping[str, str]]] = ()  # field, with its unit and other documentation


def catalog(
    warehouse: Warehouse, stream: str | None = None, tenant: str | None = None, *, values: bool = True
) -> list[StreamFacts]:
    """The catalog of all streams or one; without `values` the index is not read."""
    names = [warehouse.project.stream(stream).name] if stream is not None else list(warehouse.project.streams)
    return [_facts(warehouse, warehouse.project.stream(name), tenant, values=values) for name in names]


def _facts(warehouse: Warehouse, stream: Stream, tenant: str | None, *, values: bool) -> StreamFacts:
    return StreamFacts(
        stream=stream.name,
        description=stream.description,
        keywords=stream.keywords,
        source_links=[link.href for link in stream.source_links],
        event_types=stream.event_type.allowed if stream.event_type is not None else (),
        fields=[(name, declared.type) for name, declared in stream.fields.items()],
        metrics=[
            _ratio(stream, name, metric) if isinstance(metric, Ratio) else _metric(name, metric)
            for name, metric in stream.metrics.items()
        ],
        attributes=_attributes(warehouse, stream, tenant) if values else None,
        windows=tuple(stream.windows),
        tenants=_tenants(warehouse, stream, tenant),
        kind=stream.kind,
        notes=[(name, declared.notes) for name, declared in stream.fields.items() if declared.notes],
    )


def _tenants(warehouse: Warehouse, stream: Stream, tenant: str | None) -> Tenants | None:
    if stream.tenant.value is not None:
        return None
    from tidemill.query.service import tables_with_tenants
    from tidemill.query.tenants import known_tenants

    return known_tenants(tables_with_tenants(warehouse, stream.name), tenant)


def _attributes(warehouse: Warehouse, stream: Stream, tenant: str | None) -> Attributes | None:
    if not stream.indexed:
        return None
    index, raw = warehouse.snapshot("index", stream.name), warehouse.snapshot("raw", stream.name)
    if index is None or raw is None:
        return None
    from tidemill.outputs.index.attributes import attributes

    return attributes(raw, index, stream.indexed, tenant=tenant)


def _metric(name: str, metric: Kept) -> MetricFacts:
    return MetricFacts(
        name=name,
        kind=metric.kind,
        dimensions=metric.dimensions,
        values=_values(metric),
        of=(metric.object, metric.state) if isinstance(metric, StateMetric) else metric.numbers,
        filter=metric.filter,
        max_cardinality=metric.max_cardinality,
        detail=_detail(metric),
    )


def _values(metric: Kept) -> tuple[str, ...]:
    match metric:
        case Gauge():
            return ("value", "avg", "min", "max", "first", "last", "sum", "count", "rate")
        case Histogram():
            return ("count", "rate", "sum", "avg", "min", "max", "p50", "p99.9")
        case StateMetric():
            return ("states", "transitions", *(f"transitions({rule})" for rule in sorted(metric.transitions)))
        case _:
            of = (f"{each}({m})" for m in metric.measures for each in ("sum", "avg", "min", "max"))
            return ("count", "rate", *of)


def _detail(metric: Kept) -> str:
    match metric:
        case Gauge():
            return f"value is the {metric.policy}"
        case Histogram(bounds=None):
            return f"percentiles within {metric.accuracy or DEFAULT_ACCURACY} of the value"
        case Histogram():
            return f"{len(metric.bounds or ()) + 1} declared bins"
        case _:
            return ""


def _ratio(stream: Stream, name: str, metric: Ratio) -> MetricFacts:
    of = [stream.kept_metrics[term.metric] for term in metric.terms]
    shared = [d for d in of[0].dimensions if all(d in other.dimensions for other in of)]
    names = list(dict.fromkeys(term.metric for term in metric.terms))
    text = f"{_sum(metric.numerator)} / {_sum(metric.denominator)}"
    return MetricFacts(name, "ratio", shared, ("ratio",), names, detail=text)


def _sum(terms: Sequence[Term]) -> str:
    text = " + ".join(_term(term) for term in terms)
    return f"({text})" if len(terms) > 1 else text


def _term(term: Term) -> str:
    """A counter by name; for a state metric also the transitions."""
    rule = f".{term.transition}" if term.transition is not None else ""
    left = f" from {' or '.join(term.from_)}" if term.from_ is not None else ""
    reached = f" to {' or '.join(term.to)}" if term.to is not None else ""
    return f"{term.metric}{rule}{left}{reached}"
