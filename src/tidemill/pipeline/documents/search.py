"""Search results and the catalog as plain data with stable snake_case keys.

Payloads stay as they were sent, digit by digit; nothing is read into floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from tidemill.pipeline.documents.shapes import Document, Verbatim, completeness, interval

if TYPE_CHECKING:
    from tidemill.outputs.index.attributes import Attribute, Attributes
    from tidemill.query.catalog import MetricFacts, StreamFacts
    from tidemill.query.search.search import SearchPage, SearchPlan

_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e]")
_FAR: Final = 30  # digits before or after the point that are written out


def page(name: str, of: SearchPage) -> Document:
    return {
        "stream": name,
        "tenant": of.tenant,
        "rows": [{**row, "payload": payload(row["payload"])} for row in of.rows.to_pylist()],
        "total": of.total,
        "cursor": of.cursor,
        "span": interval(of.span),
        "completeness": completeness(of.completeness),
        "facts": asdict(of.facts),
    }


def payload(text: str | None) -> Verbatim | str | None:
    """The JSON that was sent, on one line and in ASCII; what is not JSON, as a string."""
    if text is None:
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refused)
    except (ValueError, RecursionError):
        return text
    # In JSON, line breaks occur only between values, and non-ASCII letters only in strings.
    return Verbatim(_NOT_PLAIN.sub(lambda one: " " if one[0] in "\t\r\n" else json.dumps(one[0])[1:-1], text))


def _refused(word: str) -> object:
    raise ValueError(word)


def plan(name: str, of: SearchPlan) -> Document:
    document = {"stream": name, "tenant": of.tenant, **asdict(of), "span": interval(of.span)}
    return {**document, "completeness": completeness(of.completeness)}


def catalog(streams: Sequence[StreamFacts]) -> Document:
    return {"streams": [stream(of) for of in streams]}


def stream(of: StreamFacts) -> Document:
    return {
        "stream": of.stream,
        "kind": of.kind,
        "description": of.description,
        "keywords": of.keywords,
        "source_links": of.source_links,
        "event_types": of.event_types,
        "fields": dict(of.fields),
        "field_metadata": {name: dict(notes) for name, notes in of.notes},
        "metrics": [_metric(metric) for metric in of.metrics],
        "attributes": None if of.attributes is None else _attributes(of.attributes),
        "windows": of.windows,
        "tenants": None if of.tenants is None else {"names": of.tenants.names, "more": of.tenants.more},
    }


def _metric(of: MetricFacts) -> Document:
    return {
        "metric": of.name,
        "kind": of.kind,
        "dimensions": of.dimensions,
        "values": of.values,
        "of": of.of,
        "filter": of.filter,
        "max_cardinality": of.max_cardinality,
        "detail": of.detail,
    }


def _attributes(of: Attributes) -> Document:
    return {
        "paths": [_attribute(one) for one in of.attributes],
        "events": of.events,
        "parts": of.parts,
        "left_out": of.left_out,
    }


def _attribute(of: Attribute) -> Document:
    return {
        "path": of.path,
        "kinds": of.kinds,
        "events": of.events,
        "distinct": of.distinct,
        "is_more": of.is_more,
        "top": [{"value": _value(value), "events": count} for value, count in of.top],
    }


def _value(of: str | bool | Decimal) -> object:
    return Verbatim(spelled(of)) if isinstance(of, Decimal) else of


def spelled(number: Decimal) -> str:
    """A number exactly, and no longer than necessary: 1e99999999 stays short."""
    if abs(number.adjusted()) > _FAR:
        return format(number, "E")
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
