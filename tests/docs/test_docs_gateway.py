"""The tables of the page on the gateway say what the code says, and its client is as short as it claims."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.config.gateway import AdaptiveWindow, Memory, Requests
from tidemill.formats.bodies.media_types import MEDIA_TYPES
from tidemill.ingest.gateway.memory import level
from tidemill.ingest.gateway.window_durations import duration_of
from tidemill.model.errors import (
    AuthError,
    BusyError,
    ConflictError,
    DamageError,
    ForbiddenError,
    InputError,
    MediaTypeError,
    NotFoundError,
    OverloadedError,
    QueryError,
    RateLimitError,
    RetractedError,
    StorageError,
    TooLargeError,
    TooSpreadError,
)
from tidemill.model.gateway import CUSTOM, CloseTrigger
from tidemill.model.slices import RecordOutcome
from tidemill.model.time import SECOND, format_duration
from tidemill.server.problems import status_of

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def section(heading: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found.group(1)


def tables(heading: str) -> list[list[list[str]]]:
    """The tables of a section, each without its head."""
    found = re.findall(r"(?:^\|.*\n)+", section(heading), re.MULTILINE)
    return [[[c.strip() for c in line.split("|")[1:-1]] for line in one.splitlines()[2:]] for one in found]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_media_types_are_those_that_are_read():
    _, media = tables("Sending events")
    assert sorted(name for row in media for name in code(row[0])) == sorted(MEDIA_TYPES)


def test_outcomes_are_those_of_the_gate():
    (shown,) = tables("Outcomes")
    assert [name for row in shown for name in code(row[0])] == [one.value for one in RecordOutcome]


def test_errors_have_the_status_that_is_told():
    (shown,) = tables("Errors")
    reported = {
        name: {int(status) for status in row[0].split(", ")} for row in shown for name in code(row[1])
    }
    refused, waiting = OverloadedError("m", refused=True), OverloadedError("m")
    assert reported.pop("overloaded") == {status_of(refused), status_of(waiting)}
    kinds = (InputError, QueryError, AuthError, ForbiddenError, NotFoundError, ConflictError, TooLargeError,
             MediaTypeError, RateLimitError, BusyError, StorageError, RetractedError,
             TooSpreadError)  # fmt: skip
    assert reported == {
        **{kind.code: {status_of(kind("m"))} for kind in kinds},
        "damaged": {status_of(DamageError("m", where="f"))},
        "method": {405}, "timeout": {408}, "rejected": {422}, "internal": {500},
    }  # fmt: skip


def test_limits_are_those_of_the_configuration():
    (shown,) = tables("Limits")
    assert {code(row[0])[0]: Requests.model_validate({code(row[0])[0]: _value(row[1])}) for row in shown} == {
        name: Requests() for name in Requests.model_fields
    }


def _value(cell: str) -> object:
    (text,) = code(cell)
    return int(text) if text.isdigit() else text


def test_d1_the_adaptive_window_lasts_as_long_as_shown():
    shown = tables("Windows and memory")[0]
    window = AdaptiveWindow()
    for rate, lasts, events in shown:
        number = int(rate.replace(",", ""))
        duration = duration_of(window, number)
        assert (format_duration(duration), duration * number // SECOND) == (lasts, int(events))


def test_triggers_are_those_there_are():
    shown = tables("Windows and memory")[1]
    assert {name for row in shown for name in code(row[0])} == {*CloseTrigger, f"{CUSTOM}NAME"}


def test_d3_pressure_rises_where_shown():
    memory = Memory()
    marks: dict[str, float] = {}
    for share, pressure, _ in tables("Windows and memory")[2]:
        found = re.search(r"\d+", share)
        marks[code(pressure)[0]] = int(found.group()) / 100 if found else 1.0
    least = 0.0
    for name, most in marks.items():
        for used in (least + 0.001, most):
            at = level(round(used * memory.max), memory.max, memory.high_water, memory.emergency)
            assert at.value == name, used
        least = most


def test_the_client_has_15_lines():
    block = re.search(r"^```python\n(.*?)^```$", section("A client in 15 lines"), re.MULTILINE | re.DOTALL)
    assert block
    lines = [line for line in block.group(1).splitlines() if line.strip() and not line.startswith("#>")]
    assert len(lines) == 15
    imported = {name for line in lines if line.startswith("import ") for name in line[7:].split(", ")}
    assert imported == {"json", "time", "urllib.error", "urllib.request", "uuid"}
