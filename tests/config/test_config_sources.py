"""Where slices come from, and what their JSON is: what can be set, and what is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import Stream, parse_project
from tidemill.config.stream import Json
from tidemill.model.errors import ConfigError

STREAM = """\
version: 1
streams:
  klines:
    schema: {open_time: {type: integer, required: true}, close: string, by.id: {type: string, required: true}}
    event_time: {column: open_time, type: unixtimestamp_ms}
    gate: none
"""


def load(*lines: str) -> Stream:
    text = STREAM + "".join(f"    {line}\n" for line in lines)
    return parse_project(text, Path("tidemill.yaml"), ("unixtimestamp_ms",), {}).stream("klines")


def test_by_default_nothing_is_watched_and_json_is_what_it_is() -> None:
    stream = load("json:", "manifests:")
    assert (stream.manifests.files, stream.json_rows) == ((), Json())
    assert (Json().columns, Json().path) == ((), None)


def test_all_of_it_can_be_set() -> None:
    stream = load(
        "format: json",
        "json: {columns: [open_time, close, by], path: result.list}",
        "manifests: ['data/*/manifest.json', /feeds/other/manifest.json]",
    )
    assert stream.json_rows == Json(columns=("open_time", "close", "by"), path="result.list")
    assert stream.manifests.files == ("data/*/manifest.json", "/feeds/other/manifest.json")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("json: {columns: [close]}", "the required column 'open_time' is not among them"),
        ("json: {columns: [open_time, close, close]}", "'close' is listed 2 times"),
        ("json: {columns: [open_time, by.id]}", "'by.id' is a path"),
        ("json: {columns: ['open time']}", "column name 'open time' is not allowed"),
        ("json: {path: data}", "an object on one line is a record of NDJSON"),
        ("json: {rows: [a]}", "rows"),
        ("json: {columns: [open_time]}\n    format: csv", "slices of format csv are not JSON"),
        ("manifests: ['']", "names no files"),
        ("manifests: ['s3://bucket/manifest.json']", "names no files"),
        ("manifests: [a, a]", "'a' is listed 2 times"),
        ("manifests: data/manifest.json", "list"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(line: str, what: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(line)
    assert what in str(raised.value)
    assert "tidemill.yaml:7" in str(raised.value)
