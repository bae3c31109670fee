"""An oracle's stream as a section of `tidemill.yaml`, so that a test can run both from one declaration.

It only spells; whether the configuration takes it is for the configuration to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.support.oracles.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleKept,
    OracleKind,
    OracleRatio,
    OracleState,
    OracleTerm,
)
from tests.support.oracles.stream import OracleStream

from tidemill.model.metrics import TransitionRule


def section(stream: OracleStream, *, gate: str = "event_id") -> dict[str, object]:
    """The section of one stream, as plain values."""
    column = stream.tenant_column
    found: dict[str, object] = {
        "schema": {
            name: {"type": field.type, "required": field.required}
            | ({"scale": field.scale} if field.scale is not None else {})
            for name, field in stream.fields.items()
        },
        "event_time": _event_time(stream),
        "identity": list(stream.identity),
        "gate": gate,
        "tenant": {"column": column} if column else {"value": stream.tenant_value},
        "skew": {"past": _duration(stream.skew_past), "future": _duration(stream.skew_future)},
        "metrics": {
            name: {"kind": "counter", "dimensions": list(m.dimensions), "measures": list(m.measures)}
            for name, m in stream.metrics.items()
        }
        | {name: metric_section(kind) for name, kind in stream.kinds.items()},
    }
    if stream.type_column is not None:
        found["event_type"] = {"column": stream.type_column, "allowed": sorted(stream.allowed_types)}
    if stream.messages is not None:
        column, _, name, body = stream.messages
        found["messages"] = {"column": column, "stream": name} | ({"body": body} if body else {})
    return found


def metric_section(kind: OracleKind) -> dict[str, object]:
    """The section of one metric."""
    match kind:
        case OracleCounter():
            return {"kind": "counter", "measures": list(kind.measures)} | _shared(kind)
        case OracleGauge():
            return {"kind": "gauge", "value": kind.value, "policy": kind.policy} | _shared(kind)
        case OracleHistogram():
            found = {"kind": "histogram", "value": kind.value} | _shared(kind)
            if kind.bounds is None:
                return found | {"accuracy": str(kind.accuracy)}
            return found | {"bounds": [str(bound) for bound in kind.bounds]}
        case OracleState():
            named = {rule.name: _transition(rule) for rule in kind.named}
            found = {"kind": "state", "object": kind.object, "state": kind.state} | _shared(kind)
            return found | ({"transitions": named} if named else {})
        case OracleRatio():
            sides = {"numerator": kind.numerator, "denominator": kind.denominator}
            return {"kind": "ratio"} | {
                side: [_term(term) for term in terms] for side, terms in sides.items()
            }


def _shared(kind: OracleKept) -> dict[str, object]:
    found: dict[str, object] = {"dimensions": list(kind.dimensions)}
    if kind.filter is not None:
        found["filter"] = kind.filter
    if kind.limit is not None:
        found["max_cardinality"] = kind.limit
    return found


def _transition(rule: TransitionRule) -> dict[str, object]:
    from_ = "last" if rule.from_last else "any" if rule.from_states is None else list(rule.from_states)
    found: dict[str, object] = {"from": from_}
    if rule.until:
        found["until"] = list(rule.until)
    return found | ({} if rule.to is None else {"to": list(rule.to)})


def _term(term: OracleTerm) -> dict[str, object]:
    found: dict[str, object] = {"metric": term.metric}
    if term.transition is not None:
        found["transition"] = term.transition
    for side, states in (("from", term.from_), ("to", term.to)):
        if states is not None:
            found[side] = list(states)
    return found


def project_text(streams: Iterable[OracleStream], **engine: int | str) -> str:
    """A `tidemill.yaml` (JSON is YAML). Limits on a record are the project's, so the streams must agree."""
    listed = list(streams)
    limits = {(stream.record_bytes, stream.depth) for stream in listed}
    assert len(limits) == 1, limits
    record_bytes, depth = limits.pop()
    return json.dumps(
        {
            "version": 1,
            "engine": engine,
            "limits": {"record_bytes": record_bytes, "depth": depth},
            "streams": {stream.name: section(stream) for stream in listed},
        },
        indent=1,
    )


def _event_time(stream: OracleStream) -> dict[str, object]:
    tolerance = _duration(stream.late_tolerance)
    if stream.time_column is None:
        return {"mode": "processing", "late_tolerance": tolerance}
    found: dict[str, object] = {
        "column": stream.time_column,
        "type": stream.time_type,
        "late_tolerance": tolerance,
        "idle_timeout": _duration(stream.idle_timeout),
    }
    if stream.max_buffer_bytes is not None:
        found["max_buffer_bytes"] = stream.max_buffer_bytes
    return found


def _duration(us: int | None) -> str | None:
    return None if us is None else f"{us}us"
