"""A command to ingest: an object in storage, its bounds and its dataset metadata, read and checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill import eventtime
from tidemill.config import Stream, load_project
from tidemill.ingest.arguments import MAX_WINDOWS, TooManyWindowsError, check_bounds
from tidemill.ingest.ingest_command import IngestCommand, read_command
from tidemill.ingest.landing import Landing
from tidemill.ingest.landing_log import LandingLog, as_fields, from_fields
from tidemill.model.errors import InputError
from tidemill.model.slices import Format
from tidemill.model.time import DAY, HOUR, Interval, parse_instant
from tidemill.storage.state.sqlite import open_state

TEN = parse_instant("2024-01-15T10:00:00Z")
HOURLY = """
version: 1
streams:
  weather_stations:
    schema: {station: string, ts: {type: integer, required: true}}
    event_time: {column: ts, type: unixtimestamp_ms}
    identity: station
    aggregation_span: PT1H
    subject_to_change_window: PT6H
  plain: {schema: {a: string}, identity: a}
"""
DATASET = {
    "name": "weather_stations",
    "aggregation_span": "PT1H",
    "subject_to_change_window": "PT6H",
    "description": "Ground weather station observations",
    "source_links": [],
    "keywords": ["weather", "temperature"],
}


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, Stream]:
    (tmp_path / "tidemill.yaml").write_text(HOURLY)
    return dict(load_project(tmp_path, eventtime.registered()).streams)


def command(dataset: dict[str, object] | None = None, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "id": "7f1b",
        "metadata": {"dataset": DATASET if dataset is None else dataset},
        "payload_location": "a.ndjson",
        "start_time": "2024-01-15T10:00:00Z",
        "end_time": "2024-01-15T11:00:00Z",
    }
    return json.dumps(fields | changes).encode()


def read(text: bytes, folder: Path) -> IngestCommand:
    return read_command(text, "command.json", folder)


def test_a_command_names_its_stream_bounds_payload_and_metadata(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"{}\n")
    found = read(command(), tmp_path)
    assert (found.stream, found.id, found.name) == ("weather_stations", "7f1b", "a.ndjson")
    assert found.declared == Interval(TEN, TEN + HOUR)
    assert found.payload == tmp_path / "a.ndjson"
    assert (found.aggregation_span, found.subject_to_change_window) == (HOUR, 6 * HOUR)
    assert json.loads(found.metadata) == {"dataset": DATASET}


def test_metadata_is_kept_in_one_spelling_with_what_else_the_sender_put_there(tmp_path: Path) -> None:
    one = {"dataset": {"name": "s", "keywords": ["é"]}, "version": 1}
    two = {"version": 1, "dataset": {"keywords": ["é"], "name": "s"}}
    texts = [read(command(metadata=m, payload_location=None), tmp_path).metadata for m in (one, two)]
    assert texts == ['{"dataset":{"keywords":["é"],"name":"s"},"version":1}'] * 2


@pytest.mark.parametrize("prefix", ["file://", "file://localhost", ""])
def test_the_payload_is_a_path_or_a_file_uri(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "with space.csv"
    path.write_bytes(b"a\n")
    spelled = str(path).replace(" ", "%20") if prefix else str(path)
    assert read(command(payload_location=prefix + spelled), Path("/elsewhere")).payload == path


@pytest.mark.parametrize("gone", [{"payload_location": None}, {}])
def test_without_a_payload_nothing_happened_in_its_bounds(tmp_path: Path, gone: dict[str, object]) -> None:
    fields = json.loads(command()) | gone
    if not gone:
        del fields["payload_location"]
    found = read(json.dumps(fields).encode(), tmp_path)
    assert (found.payload, found.name) == (None, "nothing (7f1b)")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (b"{", "is not JSON", "payload_location"),
        (b"[]", "is not a JSON object", "payload_location"),
        (b"\xff", "is not JSON", "payload_location"),
        (b'{"id": NaN}', "NaN is not a number", "payload_location"),
        (b'{"id": "\\ud800"}', "is not JSON", "payload_location"),
        (b"[" * 100_000, "is not JSON", "payload_location"),
        (b" " * (2 << 20), "which is too large for a command", "payload_location"),
        (command(payload="a"), "payload is not a known field", "payload_location"),
        (command(metadata=None), "metadata is missing", '"dataset"'),
        (command(metadata=[]), "metadata is not an object", '"dataset"'),
        (command(metadata={}), "metadata.dataset is missing", '"dataset"'),
        (command({}), "metadata.dataset.name is missing", "which stream"),
        (command({"name": 1}), "metadata.dataset.name is not a string", "text"),
        (
            command({"name": "s", "span": "1h"}),
            "metadata.dataset.span is not a known field",
            "aggregation_span",
        ),
        (command({"name": "s", "keywords": "a"}), "metadata.dataset.keywords is not a list", "leave it out"),
        (command({"name": "s", "aggregation_span": "hour"}), "aggregation_span is wrong", "PT1H"),
        (command({"name": "s", "aggregation_span": 3600}), "aggregation_span is not a string", "text"),
        (command(start_time=None), "start_time is missing", "end_time"),
        (command(start_time="soon"), "start_time is wrong: 'soon'", "RFC 3339"),
        (command(end_time="2024-01-15T10:00:00Z"), "end_time is not after start_time", "half-open"),
        (command(payload_location="s3://b/k"), "cannot be read: s3://", "file:///"),
        (command(payload_location="file://host/k"), "is on another machine: host", "file:///"),
        (command(payload_location="file://["), "is not an address", "file:///"),
        (command(payload_location="x" * 300), "cannot be read: File name too long", "relative"),
        (command(payload_location="gone.csv"), "does not exist", "relative"),
        (command(payload_location="."), "is a folder", "relative"),
        (command(payload_location="a\0b"), "payload_location is not a string", "text"),
    ],
)
def test_every_mistake_is_told_with_its_place(tmp_path: Path, text: bytes, message: str, hint: str) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"{}\n")
    with pytest.raises(InputError) as caught:
        read(text, tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == "command.json"


def test_what_the_stream_declares_is_not_overruled(streams: dict[str, Stream], tmp_path: Path) -> None:
    found = read(command(payload_location=None), tmp_path)
    found.check(streams["weather_stations"])
    replace(found, aggregation_span=None, subject_to_change_window=None).check(streams["plain"])
    with pytest.raises(InputError, match=r"aggregation_span is PT2H; stream weather_stations declares PT1H"):
        replace(found, aggregation_span=2 * HOUR).check(streams["weather_stations"])
    with pytest.raises(InputError, match=r"subject_to_change_window is PT0S; .* declares PT6H"):
        replace(found, subject_to_change_window=0).check(streams["weather_stations"])
    with pytest.raises(InputError, match=r"aggregation_span is PT1H; stream plain declares none"):
        found.check(streams["plain"])


def test_metadata_lands_with_the_slice_and_stays_in_the_log(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state.db")
    landing = Landing(tmp_path, state)
    said = landing.land_bytes("s", b"{}\n", arrival=TEN, format=Format.NDJSON, metadata='{"a":"é"}')
    none = landing.land_bytes("s", b"[]\n", arrival=TEN, format=Format.NDJSON)
    assert [line.slice.metadata for line in LandingLog(tmp_path).lines()] == ['{"a":"é"}', None]
    assert state.slices() == [said.entry, none.entry]
    for entry in (said.entry, none.entry):
        assert from_fields(as_fields(entry.slice)) == entry.slice
    assert "metadata" not in as_fields(none.entry.slice)  # as lines were before there was any
    state.close()


def test_bounds_that_span_too_many_windows_are_a_typing_mistake(streams: dict[str, Stream]) -> None:
    hourly, plain = streams["weather_stations"], streams["plain"]
    check_bounds(hourly, Interval(TEN, TEN + 10_000 * HOUR))
    check_bounds(hourly, Interval(TEN, TEN + MAX_WINDOWS * HOUR), many=True)
    check_bounds(plain, Interval(0, 5000 * 365 * DAY))
    with pytest.raises(TooManyWindowsError, match=r"span 10,001 windows of 1h") as caught:
        check_bounds(hourly, Interval(TEN, TEN + 10_000 * HOUR + 1))
    assert "--yes" in caught.value.hint
    assert "streams.weather_stations.max_slice_windows" in caught.value.hint
    with pytest.raises(TooManyWindowsError, match=r"span 100,001 windows of 1h") as caught:
        check_bounds(hourly, Interval(TEN, TEN + MAX_WINDOWS * HOUR + 1), many=True)
    assert "--yes" not in caught.value.hint
