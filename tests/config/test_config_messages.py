"""Streams whose records hold several messages: what they declare, what they are told of the other streams,
and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tidemill.config import Project, parse_project
from tidemill.config.stream_sections import Messages, MessageTime
from tidemill.formats.read_plan import plan_for
from tidemill.model.errors import ConfigError
from tidemill.model.time import SECOND

FILE = Path("tidemill.yaml")
TYPES = ("iso8601", "unixtimestamp_ms")

STREAMS = """\
version: 1
streams:
  bundles:
    schema: {bundle: string, at: string, messages: array}
    messages: {column: messages}
    identity: bundle
  clicks:
    schema: {id: string, ts: integer}
    event_time: {column: ts, type: unixtimestamp_ms}
    identity: id
  errors:
    schema: {id: string, meta.at: string}
    event_time: {column: meta.at, type: iso8601}
    identity: id
  pings:
    schema: {id: string, at: string}
    event_time: {column: at, type: iso8601, mode: processing}
    identity: id
"""


def load(text: str) -> Project:
    return parse_project(text, FILE, TYPES, {})


def changed(*pairs: tuple[str, str]) -> str:
    text = STREAMS
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value


def test_a_message_names_its_stream_under_stream_and_holds_its_fields_itself() -> None:
    messages = load(STREAMS).stream("bundles").messages
    assert messages is not None
    assert (messages.column, messages.stream, messages.body) == ("messages", "stream", None)


def test_keys_of_a_message_may_have_other_names_and_lie_deeper() -> None:
    text = changed(("{column: messages}", "{column: messages, stream: head.of, body: data}"))
    messages = load(text).stream("bundles").messages
    assert messages is not None
    assert (messages.stream, messages.body) == ("head.of", "data")


def test_it_is_told_of_every_event_time_that_is_in_use_and_of_no_other() -> None:
    messages = load(STREAMS).stream("bundles").messages
    assert messages is not None
    assert messages.times == {
        "clicks": MessageTime("ts", "unixtimestamp_ms"),
        "errors": MessageTime("meta.at", "iso8601"),
    }


def test_its_own_event_time_is_one_of_them() -> None:
    text = changed(("identity: bundle", "event_time: {column: at, type: iso8601}\n    identity: bundle"))
    stream = load(text).stream("bundles")
    assert stream.messages is not None
    assert stream.messages.times["bundles"] == MessageTime("at", "iso8601")
    assert stream.time_column == "at"


def test_what_it_was_told_travels_to_other_processes() -> None:
    stream = load(STREAMS).stream("bundles")
    again = pickle.loads(pickle.dumps(stream))  # noqa: S301
    assert again == stream
    assert again.messages.times == stream.messages.times  # type: ignore[union-attr]


def test_a_section_that_was_told_nothing_yet_is_another_one() -> None:
    assert Messages(column="m").times == {}
    assert Messages(column="m") != Messages(column="m").among({"clicks": MessageTime("ts", "iso8601")})


def test_it_is_in_event_time_without_a_column_of_its_own() -> None:
    project = load(STREAMS)
    assert {name: s.in_event_time for name, s in project.streams.items()} == {
        "bundles": True, "clicks": True, "errors": True, "pings": False,
    }  # fmt: skip
    assert project.stream("bundles").time_column is None


def test_its_tolerance_needs_no_column() -> None:
    text = changed(("identity: bundle", "event_time: {late_tolerance: 5s}\n    identity: bundle"))
    stream = load(text).stream("bundles")
    assert (stream.event_time.late_tolerance, stream.time_column) == (5 * SECOND, None)
    assert stream.in_event_time


def test_an_event_time_that_is_not_enabled_asks_no_messages() -> None:
    text = changed(("identity: bundle", "event_time: {enabled: false}\n    identity: bundle"))
    project = load(text)
    stream = project.stream("bundles")
    assert not stream.in_event_time
    assert plan_for(stream, project.limits).messages is None
    assert any("streams.bundles.messages" in warning for warning in project.warnings)


def test_a_stream_that_is_not_enabled_tells_messages_nothing() -> None:
    text = changed(
        ("column: ts, type: unixtimestamp_ms", "column: ts, type: unixtimestamp_ms, enabled: false")
    )
    messages = load(text).stream("bundles").messages
    assert messages is not None
    assert list(messages.times) == ["errors"]


def test_without_messages_an_event_time_needs_its_column() -> None:
    text = changed(("event_time: {column: ts, type: unixtimestamp_ms}", "event_time: {late_tolerance: 5s}"))
    assert "streams.clicks.event_time: column is missing" in str(refused(text))


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("{column: messages}", "{column: mesages}", "column 'mesages' is not in the schema", "messages"),
        ("{column: messages}", "{column: bundle}", "column 'bundle' is of type string", "in an array"),
        ("{column: messages}", "{stream: s}", "streams.bundles.messages: column is missing", "add column"),
        ("{column: messages}", "{column: messages, at: x}", "messages.at: unknown key", "stream, body"),
        ("{column: messages}", "{column: messages, body: ''}", "column name '' is not allowed", "letters"),
        ("    identity: bundle", "    identity: bundle\n    format: csv", "is never an array", "ndjson"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(old: str, new: str, message: str, hint: str) -> None:
    error = refused(changed((old, new)))
    assert message in str(error)
    assert hint in str(error) + str(error.hint)


def test_messages_of_streams_without_event_times_cannot_tell_one() -> None:
    text = changed(
        ("    event_time: {column: ts, type: unixtimestamp_ms}\n", ""),
        ("    event_time: {column: meta.at, type: iso8601}\n", ""),
    )
    error = refused(text)
    assert "streams.bundles.messages: no stream of the project has an event time in use" in str(error)


def test_an_event_time_that_is_broken_is_not_also_missed() -> None:
    text = changed(
        ("event_time: {column: ts, type", "event_time: {column: t, type"),
        ("    event_time: {column: meta.at, type: iso8601}\n", ""),
    )
    error = refused(text)
    assert "column 't' is not in the schema" in str(error)
    assert "no stream of the project" not in str(error)


def test_a_dataset_has_the_event_time_of_the_messages_not_that_of_a_field() -> None:
    text = changed(
        ("at: string, messages", "event_time: string, messages"),
        ("identity: bundle", "event_time: {column: event_time, type: iso8601}\n    identity: bundle"),
        ("    identity: bundle", "    aggregation_span: 1h\n    identity: bundle"),
    )
    error = refused(text)
    assert "a dataset has a column event_time of its own, and this is not what it is made of" in str(error)
