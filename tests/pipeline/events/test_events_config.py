"""Sinks as declared: every mistake says what is valid, and no message repeats what may be a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import Events, FileSink, RedisSink, WebhookSink, parse_project
from tidemill.model.errors import ConfigError
from tidemill.model.time import MINUTE, SECOND

PROJECT = """\
version: 1
events:
  {events}
streams:
  requests: {{schema: {{id: string}}, identity: id}}
"""


def parsed(events: str) -> Events:
    return parse_project(PROJECT.format(events=events), Path("tidemill.yaml"), (), {}).events


def refused(events: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parsed(events)
    assert caught.value.where in ("tidemill.yaml:2", "tidemill.yaml:3")
    return caught.value


def test_without_sinks_events_stay_in_the_outbox() -> None:
    assert parsed("{}") == Events()
    assert (Events().source, Events().retry_delay, Events().max_retry_delay) == (
        "tidemill",
        SECOND,
        5 * MINUTE,
    )
    assert Events().sinks == {}


def test_the_three_kinds() -> None:
    declared = parsed(
        "sinks: {a: {kind: file, path: e.ndjson}, b: {kind: webhook, url: 'https://example.com/x?y=1'},"
        " c: {kind: redis, url: 'unix:///run/redis.sock?db=2', secret_env: REDIS_PASSWORD}}"
    )
    assert declared.sinks == {
        "a": FileSink(kind="file", path="e.ndjson"),
        "b": WebhookSink(kind="webhook", url="https://example.com/x?y=1"),
        "c": RedisSink(kind="redis", url="unix:///run/redis.sock?db=2", secret_env="REDIS_PASSWORD"),
    }


@pytest.mark.parametrize(
    ("sink", "message", "hint"),
    [
        (
            "{kind: fil, path: x}",
            "a.kind: 'fil' is not a valid kind",
            "did you mean file? choices: file, webhook, redis",
        ),
        ("{path: x}", "a: kind is missing", "add kind: file | webhook | redis"),
        ("{kind: file}", "a: path is missing", "add path: …"),
        (
            "file",
            "a: 'file' should be a section of keys and values",
            "use key: value, indented, or {key: value}",
        ),
        (
            "{kind: file, path: logs/}",
            "a.path: 'logs/' does not name a file",
            "name a file, relative to tidemill.yaml or absolute",
        ),
        (
            "{kind: webhook, url: 'http://h', secret: x}",
            "a.secret: unknown key",
            "did you mean secret_env? keys: kind, url, secret_env, timeout",
        ),
        (
            "{kind: webhook, url: 'ftp://h'}",
            "a.url: the url is not a web address",
            "use https://… or http://…",
        ),
        (
            "{kind: webhook, url: 'http://h:99999/'}",
            "a.url: the url is not a web address",
            "use https://… or http://…",
        ),
        ("{kind: webhook, url: 'http:///x'}", "a.url: the url names no host", "use https://… or http://…"),
        (
            "{kind: webhook, url: 'http://h/#x'}",
            "a.url: the url has a fragment",
            "leave out # and what follows it: it is never sent",
        ),
        (
            "{kind: redis, url: 'http://h'}",
            "a.url: the url is not one of a Redis server",
            "use redis://… or rediss://… or unix://…",
        ),
        (
            "{kind: redis, url: 'redis://h/0?ssl=1'}",
            "a.url: the url has options",
            "of options only db=NUMBER is known; the others are keys of the sink",
        ),
        (
            "{kind: redis, url: 'redis://h', max_length: 0}",
            "a.max_length: 0 should be at least 1",
            "use a larger one",
        ),
    ],
)
def test_mistakes_say_what_is_valid(sink: str, message: str, hint: str) -> None:
    error = refused(f"sinks: {{a: {sink}}}")
    assert error.message == f"events.sinks.{message}"
    assert error.hint == hint


@pytest.mark.parametrize(
    "sink",
    [
        "{kind: webhook, url: 'https://me:hunter2@example.com/'}",
        "{kind: webhook, url: 'https://hunter2@example.com/'}",
        "{kind: webhook, url: 'https://example.com/ hunter2'}",
        "{kind: redis, url: 'redis://:hunter2@example.com/0'}",
        "{kind: redis, url: 'redis://example.com/0?password=hunter2'}",
        "{kind: webhook, url: 'https://example.com/', secret_env: 'hunter2!'}",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(sink: str) -> None:
    error = refused(f"sinks: {{a: {sink}}}")
    assert "hunter2" not in f"{error} {error.hint}"


def test_the_rest_of_the_section() -> None:
    assert "is not allowed" in refused("sinks: {A-1: {kind: file, path: x}}").message
    assert refused("source: 'a b'").message == "events.source: 'a b' is not a source"
    wrong = refused("{retry_delay: 1m, max_retry_delay: 1s}")
    assert wrong.message == "events: max_retry_delay is less than retry_delay"
