"""Whatever comes in: a clear error or a quarantine row with its reason, the rest accepted, nothing lost."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.oracles.oracle import Oracle, RejectedError, check
from tests.support.oracles.stream import REQUESTS
from tests.support.patience import PATIENCE
from tests.support.pipeline import ALL_ON_SPARK, NOON, NewPlant, Plant, ndjson, request, start_child

from tidemill.model.errors import BusyError, InputError
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceEntry, SliceStatus

TS = request(0)["ts"]


def spelled(number: int, **spelling: str) -> bytes:
    """An event some of whose values are spelled by hand, as JSON text."""
    event = request(number)
    fields = {name: json.dumps(value) for name, value in event.items()} | spelling
    return b"{" + ",".join(f'"{name}": {text}' for name, text in fields.items()).encode() + b"}"


def changed(number: int, **changes: object) -> bytes:
    return json.dumps(request(number, **changes)).encode()


DIGITS = "9" * 5000
RECORDS: dict[str, tuple[bytes, str]] = {
    # no JSON object
    "cut off": (b'{"event_id": "x", "ts": 17', "malformed"),
    "text": (b"hello", "malformed"),
    "two objects": (b'{"event_id": "a"}{"event_id": "b"}', "malformed"),
    "array": (b'[{"event_id": "a"}]', "malformed"),
    "string": (b'"a"', "malformed"),
    "number": (b"12", "malformed"),
    "null": (b"null", "malformed"),
    "trailing comma": (b'{"event_id": "a",}', "malformed"),
    "single quotes": (b"{'event_id': 'a'}", "malformed"),
    "comment": (b'{"event_id": "a"} // why', "malformed"),
    "NaN": (spelled(9, latency_ms="NaN"), "malformed"),
    "Infinity": (spelled(9, latency_ms="-Infinity"), "malformed"),
    "leading zero": (spelled(9, status="0200"), "malformed"),
    "plus sign": (spelled(9, status="+200"), "malformed"),
    "hexadecimal": (spelled(9, status="0x1F"), "malformed"),
    "bare decimal point": (spelled(9, latency_ms="1."), "malformed"),
    "bad escape": (spelled(9, api='"\\x41"'), "malformed"),
    "tab in a string": (spelled(9, api='"a\tb"'), "malformed"),
    "NUL bytes": (b"\0\0\0\0", "malformed"),
    "NUL in a string": (spelled(9, api='"a\0b"'), "malformed"),
    "NUL after the object": (changed(9) + b"\0", "malformed"),
    "key twice": (changed(9)[:-1] + b', "status": 200}', "malformed"),
    "key twice deep inside": (spelled(9, extra='{"a": [{"b": 1, "b": 2}]}'), "malformed"),
    "nested 100 deep": (spelled(9, extra="[" * 100 + "]" * 100), "malformed"),
    "nested 100000 deep": (spelled(9, extra="[" * 100_000 + "]" * 100_000), "malformed"),
    "nested 100000 deep and cut off": (b'{"a":' * 100_000, "malformed"),
    # bytes that are no text
    "invalid UTF-8": (spelled(9).replace(b"/v1", b"/\xff\xfe"), "encoding"),
    "overlong UTF-8": (spelled(9).replace(b"/v1", b"/\xc0\xaf"), "encoding"),
    "UTF-8 cut off": (spelled(9).replace(b"/v1", b"/\xe2\x82"), "encoding"),
    "encoded surrogate": (spelled(9).replace(b"/v1", b"/\xed\xa0\x80"), "encoding"),
    "lone surrogate": (spelled(9, api='"\\ud800"'), "encoding"),
    "surrogates in the wrong order": (spelled(9, api='"\\udc00\\ud800"'), "encoding"),
    "lone surrogate in a key": (spelled(9)[:-1] + b', "\\ud800": 1}', "encoding"),
    # too much
    "10 MB line": (changed(9, trace="x" * (10 << 20)), "too_large"),
    # identity and tenant
    "empty object": (b"{}", "missing_id"),
    "no id": (changed(9, event_id=None), "missing_id"),
    "id null": (spelled(9, event_id="null"), "missing_id"),
    "id empty": (changed(9, event_id=""), "missing_id"),
    "id a fraction": (changed(9, event_id=1.5), "missing_id"),
    "id an object": (changed(9, event_id={"a": 1}), "missing_id"),
    "id too long": (changed(9, event_id="i" * 1025), "missing_id"),
    "id of 5000 digits": (spelled(9, event_id=DIGITS), "missing_id"),
    "no tenant": (changed(9, tenant=None), "missing_field"),
    "tenant empty": (changed(9, tenant=""), "missing_field"),
    "tenant a number": (changed(9, tenant=7), "missing_field"),
    "tenant too long": (changed(9, tenant="t" * 257), "wrong_type"),
    # event type
    "unknown event type": (changed(9, event_type="response"), "unknown_type"),
    "no event type": (changed(9, event_type=None), "missing_field"),
    "event type a number": (changed(9, event_type=1), "wrong_type"),
    # time
    "no time": (changed(9, ts=None), "bad_time"),
    "time in words": (changed(9, ts="yesterday"), "bad_time"),
    "time true": (changed(9, ts=True), "bad_time"),
    "time an array": (changed(9, ts=[TS]), "bad_time"),
    "time beyond year 9999": (changed(9, ts=10**15), "bad_time"),
    "time before year 1": (changed(9, ts=-(10**15)), "bad_time"),
    "time 1e400": (spelled(9, ts="1e400"), "bad_time"),
    "time -1e400": (spelled(9, ts="-1e400"), "bad_time"),
    "time 1e99999999999999999999": (spelled(9, ts="1e99999999999999999999"), "bad_time"),
    "time of 5000 digits": (spelled(9, ts=DIGITS), "bad_time"),
    "time two days ahead": (changed(9, ts=NOON // 1000 + 2 * 86_400_000), "skew"),
    "time in the year 9000": (changed(9, ts=221_845_392_000_000), "skew"),
    # types
    "integer in quotes": (changed(9, status="200"), "wrong_type"),
    "integer with a fraction": (changed(9, status=200.5), "wrong_type"),
    "integer of 65 bits": (changed(9, bytes=2**64), "wrong_type"),
    "integer 1e400": (spelled(9, bytes="1e400"), "wrong_type"),
    "integer of 5000 digits": (spelled(9, bytes=DIGITS), "wrong_type"),
    "integer true": (changed(9, bytes=True), "wrong_type"),
    "decimal in quotes": (changed(9, latency_ms="1.5"), "wrong_type"),
    "decimal 1e400": (spelled(9, latency_ms="1e400"), "wrong_type"),
    "decimal of 5000 digits": (spelled(9, latency_ms=DIGITS), "wrong_type"),
    "decimal of 19 digits": (spelled(9, latency_ms="1" + "0" * 15), "wrong_type"),
    "string a number": (changed(9, api=1), "wrong_type"),
    "string an object": (changed(9, region={}), "wrong_type"),
}
FINE: dict[str, bytes] = {
    "spaces around": b" \t" + changed(1001) + b" ",
    "nested 60 deep": spelled(1002, extra="[" * 60 + "]" * 60),
    "escaped NUL": spelled(1003, api='"a\\u0000b"'),
    "emoji by surrogates": spelled(1004, api='"\\ud83d\\ude00"'),
    "decimal of 5000 digits after the point": spelled(1005, latency_ms="0." + DIGITS),
    "tiny decimal": spelled(1006, latency_ms="1e-400"),
    "integer 1e2": spelled(1007, status="2e2"),
    "integer with a zero fraction": spelled(1008, status="200.000"),
    "minus zero": spelled(1009, latency_ms="-0.0"),
    "time with an exponent": spelled(1010, ts=f"{TS}e0"),
    "null where nothing is required": spelled(1011, api="null"),
    "undeclared fields": changed(1012, more={"a": [1, None]}),
    "escaped id": spelled(1013, event_id='"\\u0065-001013"'),
    "999 kB line": changed(1014, trace="x" * 999_000),
    "escaped keys": changed(1015).replace(b'"api"', b'"\\u0061pi"'),
}


@pytest.fixture(scope="module")
def judged(new_plant: NewPlant) -> tuple[Plant, SliceEntry]:
    """One slice with every bad record between two good ones, then every strange one that is fine."""
    plant = new_plant(ALL_ON_SPARK)
    lines: list[bytes] = []
    for number, (record, _) in enumerate(RECORDS.values()):
        lines += [changed(number + 100), record]
    with plant.open() as mill:
        landed = mill.land("requests", ndjson(*lines, *FINE.values()))
        mill.tick()
        return plant, mill.slice(landed.entry.id)


@pytest.mark.parametrize("name", RECORDS)
def test_a_bad_record_is_kept_in_quarantine_with_its_reason(
    judged: tuple[Plant, SliceEntry], name: str
) -> None:
    record, reason = RECORDS[name]
    line = 2 * (list(RECORDS).index(name) + 1)
    (row,) = [row for row in judged[0].quarantine() if row["line"] == line]
    assert (row["outcome"], row["reason"]) == ("rejected", reason)
    assert row["payload"] == record
    assert row["detail"]
    with pytest.raises(RejectedError) as caught:
        check(REQUESTS, record, NOON)
    assert caught.value.reason.value == reason


def test_what_stands_beside_bad_records_is_accepted(judged: tuple[Plant, SliceEntry]) -> None:
    plant, entry = judged
    counts = entry.counts
    assert (entry.status, counts.records) == (SliceStatus.ACCEPTED, 2 * len(RECORDS) + len(FINE))
    assert (counts.accepted, counts.rejected) == (len(RECORDS) + len(FINE), len(RECORDS))
    payloads = {str(row["payload"]).encode() for row in plant.raw()}
    assert payloads == {changed(n + 100) for n in range(len(RECORDS))} | set(FINE.values())
    assert len(plant.quarantine()) == len(RECORDS)
    with plant.open() as mill:
        assert mill.verify().findings == []


# -- whole slices

EVENTS = [request(n) for n in range(6)]
HEADER = ["event_id", "ts", "event_type", "tenant", "api", "status", "latency_ms"]


def csv(*rows: str) -> bytes:
    return "\n".join([",".join(HEADER), *rows, ""]).encode()


def csv_row(number: int) -> str:
    return ",".join(str(request(number)[name]) for name in HEADER)


def parquet(**columns: list[object]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def of_events(*names: str) -> dict[str, list[object]]:
    return {name: [event[name] for event in EVENTS] for name in names}


# name of the file, content, accepted, rejected by reason
SLICES: dict[str, tuple[str, bytes, int, dict[str, int]]] = {
    "CRLF": ("a.ndjson", ndjson(*EVENTS).replace(b"\n", b"\r\n"), 6, {}),
    "byte order mark": ("a.ndjson", b"\xef\xbb\xbf" + ndjson(*EVENTS), 6, {}),
    "byte order mark inside": (
        "a.ndjson",
        ndjson(EVENTS[0], b"\xef\xbb\xbf" + changed(1)),
        1,
        {"malformed": 1},
    ),
    "no line end at the end": ("a.ndjson", ndjson(*EVENTS).rstrip(), 6, {}),
    "blank lines": ("a.ndjson", ndjson(*EVENTS).replace(b"\n", b"\n \r\n\n"), 6, {}),
    "only blank lines": ("a.ndjson", b"\n\n \n", 0, {}),
    "NDJSON called JSON": ("a.json", ndjson(*EVENTS), 6, {}),
    "gzip of two members": (
        "a.ndjson.gz",
        gzip.compress(ndjson(*EVENTS[:3])) + gzip.compress(ndjson(*EVENTS[3:])),
        6,
        {},
    ),
    "array": ("a.json", json.dumps(EVENTS).encode(), 6, {}),
    "array of other things": (
        "a.json",
        json.dumps([*EVENTS, 1, "x", None, []]).encode(),
        6,
        {"malformed": 4},
    ),
    "one object": ("a.json", json.dumps(EVENTS[0], indent=1).encode(), 1, {}),
    "array cut off": ("a.json", json.dumps(EVENTS).encode()[:-40], 5, {"malformed": 1}),
    "CSV": ("a.csv", csv(*map(csv_row, range(6))), 6, {}),
    "CSV with a byte order mark and CRLF": (
        "a.csv",
        b"\xef\xbb\xbf" + csv(csv_row(0)).replace(b"\n", b"\r\n"),
        1,
        {},
    ),
    "CSV with ragged rows": (
        "a.csv",
        csv(csv_row(0), "e,1", csv_row(1) + ",more", csv_row(2)),
        2,
        {"malformed": 2},
    ),
    "CSV with a number in words": (
        "a.csv",
        csv(csv_row(0), csv_row(1).replace("404", "many")),
        1,
        {"wrong_type": 1},
    ),
    "CSV with a quote left open": ("a.csv", csv(csv_row(0), '"open,' + csv_row(1)), 1, {"malformed": 1}),
    "CSV with rows of JSON": ("a.csv", csv(csv_row(0), json.dumps(EVENTS[1])), 1, {"malformed": 1}),
    "CSV with other columns": ("a.csv", b"a,b\n1,2\n3,4\n", 0, {"missing_field": 2}),
    "CSV with invalid UTF-8": (
        "a.csv",
        csv(csv_row(0).replace("/v1", "/\xff")).decode().encode("latin-1"),
        0,
        {"encoding": 1},
    ),
    "CSV with a header only": ("a.csv", csv(), 0, {}),
    "Parquet": ("a.parquet", parquet(**of_events(*HEADER)), 6, {}),
    "Parquet with other columns": ("a.parquet", parquet(a=[1, 2], b=["x", "y"]), 0, {"missing_field": 2}),
    "Parquet with more columns": ("a.parquet", parquet(**of_events(*HEADER), more=[[1]] * 6), 6, {}),
    "Parquet with nulls": (
        "a.parquet",
        parquet(**{**of_events(*HEADER), "tenant": ["acme", None] * 3}),
        3,
        {"missing_field": 3},
    ),
    "Parquet with NaN": (
        "a.parquet",
        parquet(**{**of_events(*HEADER), "latency_ms": [float("nan")] * 6}),
        6,
        {},
    ),
    "Parquet without rows": ("a.parquet", parquet(**{name: [] for name in HEADER}), 0, {}),
}


@pytest.fixture(scope="module")
def slices(new_plant: NewPlant, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SliceEntry]:
    """One batch takes them all. Without a gate, as they hold the same events."""
    plant = new_plant(ALL_ON_SPARK.replace("identity: event_id", "identity: event_id\n    gate: none"))
    folder = tmp_path_factory.mktemp("files")
    entries: dict[str, SliceEntry] = {}
    with plant.open() as mill:
        for number, (name, (file, content, _, _)) in enumerate(SLICES.items()):
            path = folder / str(number) / file
            path.parent.mkdir()
            path.write_bytes(content)
            # Bounds of its own make each a slice of its own.
            (landed,) = mill.ingest("requests", [path], start=0, end=NOON + number).landed
            entries[name] = landed.entry
        report = mill.tick()
        assert report.streams[0].batch is not None
        return {name: mill.slice(entry.id) for name, entry in entries.items()}


@pytest.mark.parametrize("name", SLICES)
def test_a_strange_slice_gives_what_can_be_read_of_it(slices: dict[str, SliceEntry], name: str) -> None:
    _, _, accepted, rejects = SLICES[name]
    counts = slices[name].counts
    assert (slices[name].status, slices[name].error) == (SliceStatus.ACCEPTED, None)
    assert (counts.accepted, dict(counts.rejects)) == (accepted, rejects)
    assert counts.records == accepted + sum(rejects.values())


def test_a_csv_row_that_is_no_record_says_what_is_wrong_with_it(plant: Plant) -> None:
    rows = {
        "e,1": "2 cells, and there are 7 columns",
        csv_row(1) + ",more": "8 cells, and there are 7 columns",
        '"x"y,1,2,3,4,5,6': "not CSV: ',' expected after '\"'",
        json.dumps({"event_id": "x"}): "1 cell, and there are 7 columns",
        '"open,' + csv_row(2): "not CSV: unexpected end of data",
    }
    with plant.open() as mill:
        mill.land("requests", csv(*rows), name="a.csv")
        mill.tick()
        assert mill.verify().findings == []
    refused = {bytes(row["payload"]).decode(): row["detail"] for row in plant.quarantine()}
    assert refused == rows


# -- files that are refused before they become slices


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.ndjson", ndjson(*EVENTS))
    return sink.getvalue()


REFUSED: dict[str, tuple[str, bytes, str]] = {
    "empty file": ("a.ndjson", b"", "is empty"),
    "empty inside gzip": ("a.ndjson.gz", gzip.compress(b""), "is empty"),
    "gzip cut off": (
        "a.ndjson.gz",
        gzip.compress(random.Random(1).randbytes(4000).hex().encode())[:-900],
        "cannot be unpacked",
    ),
    "gzip damaged": ("a.ndjson.gz", gzip.compress(b"x" * 9000)[:-8] + b"12345678", "cannot be unpacked"),
    "text called gzip": ("a.ndjson.gz", ndjson(*EVENTS), "its name says gzip"),
    "text called Parquet": ("a.parquet", ndjson(*EVENTS), "its name says parquet"),
    "Parquet called NDJSON": ("a.ndjson", parquet(a=[1]), "its name says ndjson, its content is parquet"),
    "Parquet cut off": ("a.parquet", parquet(a=[1])[:-20], "is not a whole parquet file"),
    "Arrow cut off": ("a.arrow", b"ARROW1\0\0rest", "is not a whole arrow file"),
    "zip": ("a.zip", zipped(), "a zip archive"),
    "UTF-16": ("a.ndjson", ndjson(*EVENTS).decode().encode("utf-16"), "UTF-16"),
    "binary": ("a.ndjson", bytes(range(256)) * 40, "binary"),
    "prose": ("notes.txt", b"Dear all,\nplease find enclosed\n", "neither its name nor its content"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_a_slice_is_refused_and_stops_no_other(
    plant: Plant, tmp_path: Path, name: str
) -> None:
    file, content, message = REFUSED[name]
    (tmp_path / file).write_bytes(content)
    (tmp_path / "good.ndjson").write_bytes(ndjson(*EVENTS))
    with plant.open() as mill:
        done = mill.ingest("requests", [tmp_path / file, tmp_path / "good.ndjson"])
        assert [landed.entry.slice.name for landed in done.landed] == ["good.ndjson"]
        (refused,) = done.refused
        assert isinstance(refused.error, InputError)
        assert message in refused.error.message
        assert refused.error.hint
        assert [entry.slice.name for entry in mill.ledger()] == ["good.ndjson"]
    assert plant.leftovers() == []


def test_files_that_are_not_there_are_named_and_stop_no_other(plant: Plant, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "good.ndjson").write_bytes(ndjson(*EVENTS))
    wrong = [tmp_path / "missing.ndjson", tmp_path / "*.csv", tmp_path / "empty"]
    with plant.open() as mill:
        done = mill.ingest("requests", [*wrong, tmp_path / "good.ndjson"])
    assert [landed.entry.slice.name for landed in done.landed] == ["good.ndjson"]
    assert [(refused.name, refused.error.message) for refused in done.refused] == [
        (str(tmp_path / "missing.ndjson"), "there is no such file"),
        (str(tmp_path / "*.csv"), "no file matches"),
        (str(tmp_path / "empty"), "folder has no files in it"),
    ]


STRANGER = """
import os, sys
from tidemill.ingest.file_patterns import expand
if os.geteuid() == 0:
    os.setuid(65534)
found, errors = expand(sys.argv[1:])
assert not found, found
print([error.message for error in errors])
"""


def test_files_and_folders_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    folder, file = tmp_path / "closed", tmp_path / "secret.ndjson"
    folder.mkdir()
    file.write_bytes(ndjson(*EVENTS))
    if os.geteuid() == 0:  # root may read everything, so somebody else has to try, and come this far
        for parent in [tmp_path, *tmp_path.parents]:
            if parent.owner() == "root" and parent.name.startswith(
                ("pytest-of-", "pytest-", "popen-", "test_")
            ):
                parent.chmod(parent.stat().st_mode | 0o011)
    folder.chmod(0)
    file.chmod(0)
    said, complaint = start_child(STRANGER, folder, file).communicate(timeout=PATIENCE)
    folder.chmod(0o700)
    assert said.strip() == "['folder cannot be read', 'file cannot be read']", complaint


# -- slices that are damaged after they landed, or are not what their format says


def test_slices_that_cannot_be_read_are_failed_and_block_nobody(plant: Plant) -> None:
    def hurt(entry: SliceEntry, content: bytes | None) -> None:
        path = plant.warehouse / entry.slice.path
        path.unlink() if content is None else path.write_bytes(content)

    packed, table, text = gzip.compress(ndjson(*EVENTS)), parquet(**of_events(*HEADER)), ndjson(*EVENTS)
    with plant.open() as mill:
        landed = {
            "gone": mill.land("requests", ndjson(request(500))).entry,
            "cut text": mill.land("requests", text, start=0, end=NOON).entry,
            "cut gzip": mill.land("requests", packed, name="a.ndjson.gz").entry,
            "other bytes in gzip": mill.land(
                "requests", gzip.compress(text + b"\n"), name="b.ndjson.gz"
            ).entry,
            "other bytes in Parquet": mill.land("requests", table, name="a.parquet").entry,
            "columns that clash": mill.land("requests", b"event_id,event_id\n1,2\n", name="a.csv").entry,
        }
        good = mill.land("requests", ndjson(*EVENTS, b"bad")).entry
        hurt(landed["gone"], None)
        hurt(landed["cut text"], text[: len(text) // 2])
        hurt(landed["cut gzip"], packed[: len(packed) // 2])
        middle = bytearray((plant.warehouse / landed["other bytes in gzip"].slice.path).read_bytes())
        middle[30:60] = bytes(30)
        hurt(landed["other bytes in gzip"], bytes(middle))
        hurt(landed["other bytes in Parquet"], table[:4] + bytes(len(table) - 8) + table[-4:])
        mill.tick()
        entries = {name: mill.slice(entry.id) for name, entry in landed.items()}
        assert {name: entry.status for name, entry in entries.items()} == dict.fromkeys(
            landed, SliceStatus.FAILED
        )
        errors = {name: entry.error or "" for name, entry in entries.items()}
        assert errors["gone"] == "cannot be read: No such file or directory"
        assert errors["cut text"] == f"has {len(text) // 2} bytes; {len(text)} had landed"
        assert errors["other bytes in gzip"].startswith("cannot be unpacked")
        assert errors["other bytes in Parquet"].startswith("cannot be read")
        assert errors["columns that clash"].startswith("column 'event_id' occurs twice")
        assert all(entry.counts.records == 0 for entry in entries.values())
        assert mill.slice(good.id).counts.accepted == 6
        # They are said once, and there is nothing to do until somebody acts.
        assert mill.tick().idle
        assert mill.status()[0].totals["failed_slices"] == len(landed)
        hurts = {finding.where for finding in mill.verify().findings}
        assert hurts == {entry.id for name, entry in landed.items() if name != "columns that clash"}


def test_a_format_that_is_insisted_on_but_wrong_loses_nothing(plant: Plant) -> None:
    with plant.open() as mill:
        as_csv = mill.land("requests", ndjson(*EVENTS), format="csv").entry
        as_json = mill.land("requests", b"no json at all, here\n", format="json").entry
        as_lines = mill.land("requests", csv(csv_row(0)), format="ndjson").entry
        mill.tick()
        found = [mill.slice(entry.id) for entry in (as_csv, as_json, as_lines)]
    assert [entry.counts.accepted for entry in found] == [0, 0, 0]
    assert [entry.status for entry in found] == [SliceStatus.ACCEPTED] * 3
    assert [dict(entry.counts.rejects) for entry in found] == [
        {"missing_id": 5},  # the first line is taken for the header
        {"malformed": 1},
        {"malformed": 2},
    ]
    with pytest.raises(InputError, match="there is no format 'xml'") as caught, plant.open() as mill:
        mill.land("requests", b"<a/>", format="xml")
    assert "ndjson" in caught.value.hint


# -- two at once

RIVAL = """
import sys
from tidemill.mill import Mill
from tidemill.model.errors import BusyError
mill = Mill.open(sys.argv[1])
for act in (mill.tick, mill.verify, lambda: mill.replay("requests")):
    try:
        act()
    except BusyError as error:
        print(error.code, error.retry, bool(error.hint))
print(mill.land("requests", b'{"event_id": "from another process"}').new)
"""


def test_of_two_processes_that_tick_at_once_one_is_told_to_wait(plant: Plant) -> None:
    said: list[str] = []

    def interfere(point: str) -> None:
        if point == "accept.after_gate" and not said:
            said.append(start_child(RIVAL, plant.root).communicate(timeout=PATIENCE)[0])

    with plant.open() as mill:
        mill.land("requests", ndjson(*EVENTS))
        with observed(interfere):
            mill.tick()
        # It could not work, but it could land: that is never refused.
        assert said == ["busy later True\n" * 3 + "True\n"]
        assert [entry.status for entry in mill.ledger()] == [SliceStatus.PENDING, SliceStatus.ACCEPTED]
        mill.run_until_idle()
        assert [entry.counts.records for entry in mill.ledger()] == [1, 6]


HOLDER = """
import fcntl, signal, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""


def test_a_lock_dies_with_its_holder(plant: Plant) -> None:
    with plant.open() as mill, start_child(HOLDER, plant.warehouse / ".tick.lock") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError):
            mill.tick()
        holder.kill()
        holder.wait()
        assert mill.tick().idle


# -- all of it at once


def test_bad_records_decide_nothing_about_their_neighbours(plant: Plant) -> None:
    """Each bad record begins and ends a slice of its own, with events that repeat in all of them."""
    oracle = Oracle(REQUESTS)
    good = [changed(7), *(record for record in FINE.values() if len(record) < 1000)]
    with plant.open() as mill:
        for record, _ in RECORDS.values():
            if len(record) < 1_000_000:
                landed = mill.land("requests", ndjson(record, *good, record), format="ndjson")
                oracle.land(landed.entry.id, [record, *good, record], NOON, "api")
        mill.run_until_idle()
        assert {entry.id: entry.counts for entry in mill.ledger()} == oracle.counts
        assert len(oracle.counts) == len(RECORDS) - 1
        assert mill.verify().findings == []
