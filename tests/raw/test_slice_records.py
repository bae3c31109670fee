"""Slices that are decoded again for `verify`: many are read as one, and each has its own records."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tidemill.formats.read_plan import plan_for
from tidemill.mill import Mill
from tidemill.model.time import HOUR, SECOND, parse_instant
from tidemill.raw import slice_records
from tidemill.raw.slice_records import AcceptedSlice, SliceRecords, read_slices
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
streams:
  shop:
    schema: {id: {type: string, required: true}, at: {type: integer, required: true}, n: integer}
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    tenant: {value: city}
    skew: {past: 1h, future: 1h}
"""
TOO_OLD, SKEW, MALFORMED, MISSING, ENCODING = "too_old", "skew", "malformed", "missing_id", "encoding"


def line(name: str, hour: int) -> bytes:
    return b'{"id": "%s", "at": %d}' % (name.encode(), NOON // SECOND + hour * 3600)


# What landed at noon and an hour later each time, and of it the lines that are valid with their hours after
# noon, and the reasons of the others. The limits of skew go by the arrival of each slice.
LANDED: list[tuple[str, bytes, list[tuple[int, int]], dict[int, str]]] = [
    ("ndjson", line("a", 0) + b"\n" + line("b", 3), [(1, 0)], {2: SKEW}),
    ("ndjson", line("c", 0) + b"\n" + line("d", 1) + b"\n", [(1, 0), (2, 1)], {}),
    ("ndjson", b'{"id": "e\xc3', [], {1: ENCODING}),  # the first half of a letter …
    ("ndjson", b"\xa9\n" + line("f", 2), [(2, 2)], {1: ENCODING}),  # … and the other, in another slice
    ("json", b"[" + line("g", 0) + b", " + line("h", 4) + b"]", [(2, 4)], {1: TOO_OLD}),
    ("csv", b"id,at\ni,%d\n,%d\n" % (NOON // SECOND + 5 * 3600, NOON // SECOND), [(1, 5)], {2: MISSING}),
    ("ndjson", gzip.compress(line("j", 6)), [(1, 6)], {}),
    ("ndjson", b"", [], {}),
    ("ndjson", b"{\n" + line("k", 8), [(2, 8)], {1: MALFORMED}),
]


@pytest.fixture
def accepted(tmp_path: Path) -> list[AcceptedSlice]:
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    clock = FakeClock(NOON)
    with Mill.open(tmp_path, clock=clock) as mill:
        for number, (format, content, _, _) in enumerate(LANDED):
            clock.set(NOON + number * HOUR)
            bounds = {} if content else {"start": NOON, "end": NOON + HOUR}
            mill.land("shop", content, format=format, **bounds)
        mill.run_until_idle()
        assert mill.verify().ok
        root = mill.project.warehouse
        entries = sorted(mill.ledger(), key=lambda entry: entry.slice.arrival)
        return [AcceptedSlice(str(root / one.slice.path), one, True, True) for one in entries]


def read(slices: list[AcceptedSlice], root: Path) -> list[tuple[AcceptedSlice, SliceRecords]]:
    with Mill.open(root) as mill:
        stream = mill.project.stream("shop")
        return list(read_slices(slices, plan_for(stream, mill.project.limits), stream.csv, stream.json_rows))


@pytest.mark.parametrize(("name", "limit"), [("_AT_ONCE", 1000), ("_AT_ONCE", 2), ("_CHUNK_BYTES", 50)])
def test_each_slice_has_the_records_that_it_has_alone(accepted, tmp_path, monkeypatch, name, limit):
    monkeypatch.setattr(slice_records, name, limit)
    found = read(accepted, tmp_path)
    assert [check for check, _ in found] == accepted
    for (_, records), (_, _, valid, refused) in zip(found, LANDED, strict=True):
        hours = [(time - NOON) // HOUR for time in records.time.tolist()]
        assert list(zip(records.lines.tolist(), hours, strict=True)) == valid
        assert {line: reason for line, (reason, _) in records.refused.items()} == refused
        assert records.payload.size == len(valid) + len(refused)
    keys = [key for _, records in found for key in records.key.tolist()]
    assert len(set(keys)) == len(keys) == sum(len(valid) for _, _, valid, _ in LANDED)


def test_equal_records_have_equal_hashes_in_every_slice(tmp_path):
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    with Mill.open(tmp_path, clock=FakeClock(NOON)) as mill:
        for before in ([], [line("x", 0)], [b"\xff", line("y", 0)]):
            mill.land("shop", b"\n".join([*before, line("same", 0)]), format="ndjson")
        mill.run_until_idle()
        root = mill.project.warehouse
        slices = [AcceptedSlice(str(root / one.slice.path), one, True, True) for one in mill.ledger()]
    last = [
        (one.payload[-1], one.key[-1], one.content[-1], one.time[-1]) for _, one in read(slices, tmp_path)
    ]
    assert len(last) == 3
    assert len(set(last)) == 1


def test_a_slice_that_cannot_be_decoded_takes_no_other_with_it(accepted, tmp_path):
    Path(accepted[1].path).unlink()
    Path(accepted[6].path).write_bytes(b"no gzip")
    found = [check for check, _ in read(accepted, tmp_path)]
    assert found == [one for number, one in enumerate(accepted) if number not in (1, 6)]


def test_verify_names_the_slice_of_each_changed_file(accepted, tmp_path):
    for number in (1, 4):
        path = Path(accepted[number].path)
        path.write_bytes(path.read_bytes().replace(b'"id"', b'"ie"', 1))
    with Mill.open(tmp_path, clock=FakeClock(NOON + 24 * HOUR)) as mill:
        found = mill.verify().findings
    assert sorted((one.what, one.where) for one in found) == sorted(
        ("slice", accepted[number].entry.id) for number in (1, 4)
    )
