"""`ingest`: a line for each file, refused ones beside, and the exit code that sums it up."""

from __future__ import annotations

import os
import re

import pytest


def test_a_line_for_each_file_with_the_start_of_its_id(cli, project):
    done = cli("ingest", "requests", "data/requests-1.ndjson", "data/requests-late.ndjson")
    assert done.code == 0
    first, second = done.out.splitlines()
    assert re.fullmatch(r"landed  [0-9a-f]{12}\s+27\.\d KiB  requests-1\.ndjson", first)
    assert re.fullmatch(r"landed  [0-9a-f]{12}\s+5\.\d KiB  requests-late\.ndjson", second)


def test_the_same_file_again_is_the_same_slice(cli, landed):
    done = cli("ingest", "requests", "data/requests-1.ndjson")
    assert done.code == 0
    assert re.match(r"again   [0-9a-f]{12} .*landed 2 times", done.out)
    again = cli("ingest", "requests", "data/requests-1.ndjson", "--output", "json").json
    assert [(one["new"], one["landings"], one["seq"]) for one in again["landed"]] == [(False, 3, 1)]


def test_a_file_that_was_retracted_is_refused_and_says_what_to_do(cli, project):
    (one,) = cli("ingest", "requests", "data/requests-1.ndjson", "--output", "json").json["landed"]
    assert cli("retract", one["id"], "--reason", "sent by mistake").code == 0
    done = cli("ingest", "requests", "data/requests-1.ndjson")
    assert done.code == 2
    first, hint = done.err.splitlines()[:2]
    assert first.startswith(f"error[retracted]: requests-1.ndjson: these bytes are slice {one['id'][:12]}")
    assert "(sent by mistake): they do not count" in first
    assert "one more empty line is enough" in hint
    with (project / "data" / "requests-1.ndjson").open("a") as file:
        file.write("\n")
    assert cli("ingest", "requests", "data/requests-1.ndjson").out.startswith("landed ")
    totals = [
        (entry["status"], entry["landings"]) for entry in cli("ledger", "--output", "json").json["slices"]
    ]
    assert totals == [("pending", 1), ("retracted", 1)]


def test_other_bounds_are_another_slice(cli, landed):
    bounds = ["--start", "2024-01-15T12:00:00Z", "--end", "2024-01-15T13:00:00+00:00"]
    (one,) = cli("ingest", "requests", "data/requests-1.ndjson", *bounds, "--output", "json").json["landed"]
    assert one["new"] is True
    assert one["declared"] == {"start": "2024-01-15T12:00:00Z", "end": "2024-01-15T13:00:00Z"}


def test_some_refused_is_1_and_the_others_landed(cli, project):
    done = cli("ingest", "requests", "nowhere.csv", "data/requests-1.ndjson")
    assert done.code == 1
    assert done.out.splitlines()[0].startswith("landed ")
    assert done.out.splitlines()[1] == "refused nowhere.csv"
    assert done.err.splitlines()[0] == "error[input]: nowhere.csv: there is no such file"
    assert done.err.splitlines()[1].startswith("  hint: ")


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000])
def test_a_name_that_the_file_system_refuses_does_not_stop_the_others(cli, project, name):
    done = cli("ingest", "requests", name, "data/requests-1.ndjson", "--output", "json")
    assert done.code == 1
    assert [one["name"] for one in done.json["landed"]] == ["requests-1.ndjson"]
    assert done.json["refused"][0]["error"]["message"] == "cannot be examined: File name too long"


def test_all_refused_is_2(cli, project):
    done = cli("ingest", "requests", "nowhere.csv", "--output", "json")
    assert done.code == 2
    assert done.json["landed"] == []
    (refused,) = done.json["refused"]
    assert refused["name"] == "nowhere.csv"
    assert refused["error"]["code"] == "input"


def test_standard_input(cli, project):
    record = '{"event_id":"1","event_type":"request","ts":1,"tenant":"acme"}\n'
    done = cli(
        "ingest", "requests", "-", "--format", "ndjson", "--source", "pipe", "--output", "json", stdin=record
    )
    (one,) = done.json["landed"]
    assert (one["name"], one["source"], one["bytes"]) == ("stdin", "pipe", len(record))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nope", "data/requests-1.ndjson"], "not_found", "streams: requests"),
        (["requests", "data/requests-1.ndjson", "--format", "xml"], "input", "ndjson"),
        (["requests", "data/requests-1.ndjson", "--start", "2024-01-15T12:00:00Z"], "input", "--end"),
        (["requests", "data/requests-1.ndjson", "--start", "noon", "--end", "two"], "input", "RFC 3339"),
    ],
)
def test_wrong_arguments_say_what_is_valid(cli, project, arguments, code, says):
    done = cli("ingest", *arguments, "--output", "json")
    assert done.code == 2
    assert done.out == ""
    assert done.error["code"] == code
    assert says in done.error["hint"]


def test_a_file_name_that_is_not_utf_8_blocks_nothing(cli, project):
    (project / os.fsdecode(b"caf\xe9.ndjson")).write_bytes((project / "data/requests-1.ndjson").read_bytes())
    done = cli("ingest", "requests", os.fsdecode(b"caf\xe9.ndjson"), "--output", "json")
    assert (done.code, done.json["landed"][0]["name"]) == (0, "caf\ufffd.ndjson")
    assert cli("ingest", "requests", "data/requests-late.ndjson").code == 0
    assert [one["seq"] for one in cli("ledger", "--output", "json").json["slices"]] == [2, 1]


@pytest.mark.parametrize("source", ["", " web", "a\nb", "x" * 201, os.fsdecode(b"caf\xe9")])
def test_a_source_has_a_name_that_can_be_shown(cli, project, source):
    done = cli("ingest", "requests", "data/requests-1.ndjson", "--source", source)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error[input]: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("sql", "SELECT 1 -- {}"),
        ("slice", "{}"),
        ("trace", "{}"),
        ("quarantine", "requests", "--tenant", "{}"),
        ("retract", "ab", "--reason", "{}"),
    ],
)
def test_what_is_typed_and_is_not_utf_8_is_wrong_input(cli, landed, arguments):
    done = cli(*(one.format(os.fsdecode(b"caf\xe9")) for one in arguments))
    assert done.code == 2
    assert "caf\ufffd' is not valid UTF-8" in done.err
