"""How far from its arrival an event may lie when the stream says nothing, and what it is rejected as."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill import eventtime
from tidemill.config import parse_project
from tidemill.formats.decide import DecidedRecord, RefusedRecord, decide
from tidemill.formats.read_plan import plan_for
from tidemill.model.time import parse_instant

STREAM = """
version: 1
streams:
  s:
    schema: {id: {type: string, required: true}, at: {type: string, required: true}}
    identity: id
    event_time: {column: at, type: iso8601}
    tenant: {value: t}
"""
ARRIVAL = parse_instant("2024-01-15T12:00:00Z")


def reason(at: str, more: str = "") -> str | None:
    project = parse_project(STREAM + more, Path("tidemill.yaml"), eventtime.registered(), {})
    verdict = decide(
        json.dumps({"id": "a", "at": at}).encode(), plan_for(project.stream("s"), project.limits), ARRIVAL
    )
    assert isinstance(verdict, DecidedRecord | RefusedRecord)
    return verdict.reason.value if isinstance(verdict, RefusedRecord) else None


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("0001-01-01T00:00:00Z", "too_old"),  # the zero time of Go and .NET
        ("1900-01-01T00:00:00Z", "too_old"),  # of a spreadsheet
        ("1924-01-15T11:59:59Z", "too_old"),  # 36525 days before the arrival, and a second
        ("1924-01-15T12:00:00Z", None),
        ("1970-01-01T00:00:00Z", None),
        ("2024-01-16T12:00:00Z", None),
        ("2024-01-16T12:00:01Z", "skew"),
    ],
)
def test_without_a_declaration(at, expected):
    assert reason(at) == expected


def test_a_stream_may_take_any_time():
    assert reason("0001-01-01T00:00:00Z", "    skew: {past: null}\n") is None
    assert reason("2024-01-13T12:00:00Z", "    skew: {past: 1d}\n") == "too_old"
