"""Whether a declared event time is used, and the word that is said when it is not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tidemill.config import Project, Stream, load_project, parse_project
from tidemill.eventtime import registered
from tidemill.formats.read_plan import plan_for
from tidemill.model.errors import ConfigError
from tidemill.model.time import MINUTE, SECOND

FILE = Path("tidemill.yaml")
TIME = "{column: ts, type: unixtimestamp_ms, late_tolerance: 2s}"
STREAM = """\
version: 1
streams:
  clicks:
    schema: {id: string, ts: integer}
    identity: id
    event_time: TIME
"""


def load(time: str, **environ: str) -> Project:
    return parse_project(STREAM.replace("TIME", time), FILE, registered(), environ)


def stream(time: str, **environ: str) -> Stream:
    return load(time, **environ).stream("clicks")


def refused(time: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(time)
    return caught.value


def test_defaults() -> None:
    time = stream(TIME).event_time
    assert (time.column, time.type, time.late_tolerance) == ("ts", "unixtimestamp_ms", 2 * SECOND)
    assert time.mode == "event"
    assert (time.enabled, time.idle_timeout, time.max_buffer_bytes) == (True, None, 256 * 1024 * 1024)


def test_declared() -> None:
    time = stream(TIME[:-1] + ", idle_timeout: 5m, max_buffer_bytes: 64KiB}").event_time
    assert (time.idle_timeout, time.max_buffer_bytes) == (5 * MINUTE, 65536)


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("idle_timeout: 0s", "idle_timeout: a duration of 0 is too short", "longer"),
        ("idle_timeout: 5", "idle_timeout: duration 5 has no unit", "5s"),
        ("max_buffer_bytes: 0", "max_buffer_bytes: 0 should be at least 1", "larger"),
        ("max_buffer_bytes: lots", "max_buffer_bytes: 'lots' is not a size", "64KiB"),
        ("enabled: 'yes'", "enabled: 'yes' should be true or false", "true or false"),
        ("idle: 5s", "idle: unknown key", "idle_timeout"),
    ],
)
def test_mistake(setting: str, message: str, hint: str) -> None:
    error = refused(f"{TIME[:-1]}, {setting}}}")
    assert error.where == "tidemill.yaml:6"
    assert error.message == f"streams.clicks.event_time.{message}"
    assert hint in error.hint


@pytest.mark.parametrize(
    ("time", "column"),
    [
        (TIME, "ts"),
        (f"{TIME[:-1]}, enabled: true}}", "ts"),
        (f"{TIME[:-1]}, enabled: false}}", None),
        (f"{TIME[:-1]}, mode: processing}}", None),
        (f"{TIME[:-1]}, mode: processing, enabled: false}}", None),
        ("{enabled: false}", None),
        ("{mode: processing}", None),
    ],
)
def test_event_time_is_used_when_it_is_enabled_and_the_mode_is_event(time: str, column: str | None) -> None:
    project = load(time)
    declared = project.stream("clicks")
    plan = plan_for(declared, project.limits)
    assert declared.time_column == column
    assert declared.in_event_time is (column is not None)
    assert (plan.time_column, plan.time_type) == (column, "unixtimestamp_ms" if column else "")


def test_it_is_switched_off_from_the_environment() -> None:
    project = load(TIME, TIDEMILL__STREAMS__CLICKS__EVENT_TIME__ENABLED="false")
    assert not project.stream("clicks").in_event_time
    (warning,) = project.warnings
    assert "streams.clicks.event_time" in warning


@pytest.mark.parametrize(
    ("time", "warning", "hint"),
    [
        (
            f"{TIME[:-1]}, enabled: false}}",
            "column and type are declared and not used, since enabled is false",
            "set enabled: true to use the event time, or leave column and type out",
        ),
        (
            "{column: ts, mode: processing}",
            "column is declared and not used, since mode is processing",
            "set mode: event to use the event time, or leave column out",
        ),
        (
            "{type: iso8601, enabled: false}",
            "type is declared and not used, since enabled is false",
            "set enabled: true to use the event time, or leave type out",
        ),
    ],
)
def test_a_declared_but_unused_event_time_is_warned_about(time: str, warning: str, hint: str) -> None:
    assert load(time).warnings == (f"tidemill.yaml:6: streams.clicks.event_time: {warning} ({hint})",)


@pytest.mark.parametrize("time", [TIME, "{enabled: false}", "{mode: processing, late_tolerance: 1s}"])
def test_nothing_is_said_about_what_is_used_or_not_declared(time: str) -> None:
    assert load(time).warnings == ()


def test_warnings_are_logged_once_when_a_project_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tidemill.yaml"
    file.write_text(STREAM.replace("TIME", f"{TIME[:-1]}, enabled: false}}"))
    with caplog.at_level(logging.WARNING, "tidemill"):
        project = load_project(tmp_path, registered(), {})
    assert [record.getMessage() for record in caplog.records] == list(project.warnings)
    assert project.warnings[0].startswith(f"{file}:6: streams.clicks.event_time: ")


@pytest.mark.parametrize("unused", ["", ", enabled: false", ", mode: processing"])
def test_v29_column_that_is_not_in_the_schema_is_refused_even_if_unused(unused: str) -> None:
    error = refused(f"{{column: tz, type: unixtimestamp_ms{unused}}}")
    assert error.where == "tidemill.yaml:6"
    assert error.message == "streams.clicks.event_time.column: column 'tz' is not in the schema"
    assert error.hint == "did you mean ts? columns that can be used here: id, ts"


@pytest.mark.parametrize("unused", ["", ", enabled: false", ", mode: processing"])
def test_v28_v29_unknown_type_is_refused_and_lists_the_registered_ones(unused: str) -> None:
    error = refused(f"{{column: ts, type: missing{unused}}}")
    assert error.where == "tidemill.yaml:6"
    assert error.message == "streams.clicks.event_time.type: there is no event-time type 'missing'"
    assert error.hint == f"types: {', '.join(sorted(registered()))}"


def test_messages_tell_no_time_when_it_is_not_enabled() -> None:
    text = STREAM.replace("TIME", TIME) + (
        "  bundles:\n    schema: {id: string, parts: array}\n    identity: id\n"
        "    messages: {column: parts}\n    event_time: {enabled: false}\n"
    )
    project = parse_project(text, FILE, registered(), {})
    bundles = project.stream("bundles")
    assert not bundles.in_event_time
    assert plan_for(bundles, project.limits).messages is None
    (warning,) = project.warnings
    assert warning.startswith(
        "tidemill.yaml:10: streams.bundles.messages: the times of messages are not used, "
    )
    assert warning.endswith("(set enabled: true there to use them, or leave messages out)")


def test_a_timestamp_is_read_as_iso8601_and_by_no_type_of_numbers() -> None:
    text = STREAM.replace("ts: integer", "ts: timestamp").replace("TIME", "{column: ts, type: %s}")
    made = parse_project(text % "iso8601", FILE, registered(), {}).stream("clicks")
    assert made.time_column == "ts"
    with pytest.raises(
        ConfigError, match="unixtimestamp_ms reads numbers, and column 'ts' is of type"
    ) as caught:
        parse_project(text % "unixtimestamp_ms", FILE, registered(), {})
    assert "type: iso8601" in str(caught.value.hint)
