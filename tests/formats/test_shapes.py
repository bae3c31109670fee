"""Records that share a shape with one before are read as if they came alone."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from tidemill.formats.decide import content_hash, parse
from tidemill.formats.scan import Scanned, scan

COLUMNS = ("id", "n", "site", "site.name", "site.at.lat", "tags", "on", "none", "text")
KEEP = ("id", "n", "site.name", "site.at.lat")


def _scanned(records: list[bytes]) -> tuple[Scanned, np.ndarray]:
    # Shapes are compared eight bytes at a time: the last record of a chunk is walked, if nothing follows.
    data = np.frombuffer(b"\n".join(records) + b"\n" * 9, np.uint8).copy()
    ends = np.cumsum([len(each) + 1 for each in records]) - 1
    return scan(data, ends - [len(each) for each in records], ends, COLUMNS, KEEP), ends


def _row(found: Scanned, i: int) -> list[object]:
    """All that a scan found of a record."""
    if not found.proven[i]:
        return [False]
    columns = range(len(COLUMNS))
    texts = [found.texts[k][slice(*found.spans[:, k, i])].tobytes() for k in range(len(KEEP))]
    spans = [(int(found.froms[c, i]), int(found.tos[c, i])) for c in columns]
    return [True, [int(found.tags[c, i]) for c in columns], texts, spans, int(found.content[i])]


def _check(records: list[bytes]) -> Scanned:
    together, _ = _scanned(records)
    for i, record in enumerate(records):
        alone, _ = _scanned([record])
        assert alone.walked == 1
        assert _row(together, i) == _row(alone, 0), record
        if together.proven[i]:
            assert int(together.content[i]) == content_hash(parse(record, 64)), record
    return together


def _feed(count: int) -> list[bytes]:
    chosen = random.Random(5)
    return [
        json.dumps(
            {
                "id": f"e{chosen.randrange(1 << 40):x}",
                "n": chosen.choice([0, -1, 17, 1.5, 1e30, 10**17, 0.001, -0.0]),
                "site": {
                    "name": chosen.choice(["a", "", "north ünd söuth", 'a "b"', "\\"]),
                    "at": {"lat": 1},
                },
                "tags": [1, "x", {"k": None}, []],
                "on": chosen.choice([True, False, None]),
                "text": "y" * chosen.randrange(90),
            },
            ensure_ascii=chosen.random() < 0.5,
        ).encode()
        for _ in range(count)
    ]


def test_records_of_one_shape_are_walked_once() -> None:
    assert _check(_feed(60)).walked == 1


def test_shapes_may_alternate() -> None:
    kinds = [b'{"id":"%d","n":%d}', b'{"n":%d,"id":"%d"}', b'{"id":"%d", "on":true,"n":%d}']
    found = _check([kinds[i % 3] % (i, i * i) for i in range(90)])
    assert found.walked == len(kinds)


def test_a_broken_record_spoils_only_itself() -> None:
    records = _feed(12)
    records[3] = records[3][:-1]
    records[5] = records[5] + b"}"
    records[6] = records[6].replace(b'"id"', b'"on"', 1)  # a key twice
    records[8] = records[8].replace(b": ", b":", 1)
    found = _check(records)
    assert found.proven.tolist() == [1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "value",
    [
        b"01",
        b"1.",
        b"-",
        b"1e",
        b"tru",
        b"nulll",
        b'"a',
        b'"\\x"',
        b'"\\ud800"',
        b"1 2",
        b"",
        b"{}",
        b"[1",
        b"\x01",
    ],
)
def test_a_value_of_the_same_shape_must_be_one(value: bytes) -> None:
    record = b'{"id":"a","n":%s,"text":"b"}'
    found = _check([record % b"7", record % value, record % b"8"])
    assert found.proven.tolist() == [1, value == b"{}", 1]


def test_values_of_other_kinds_have_the_same_shape() -> None:
    values = [b'"x"', b"1", b"1.5", b"1e3", b"true", b"false", b"null", b'"\\n"', b'""']
    assert _check([b'{"id":"a","n":%s,"on":1}' % value for value in values]).walked == 1


def test_white_space_may_follow_a_record() -> None:
    assert _check([b'{"id":"a"}', b'{"id":"b"}  ', b'{"id":"c"}\t\r', b'{"id":"d"} x']).walked == 2


def test_a_longer_key_is_another_one() -> None:
    found = _check([b'{"n":1,"id":"a"}', b'{"nn":1,"id":"a"}', b'{"n":1,"idd":"a"}', b'{"n":2,"id":"b"}'])
    assert found.walked == 3


def test_shapes_that_are_too_large_are_walked_each_time() -> None:
    many = b"{%s}" % b",".join(b'"k%d":%d' % (k, k) for k in range(300))
    wide = b'{"%s":1,"id":"a"}' % (b"k" * 7000)
    assert _check([many] * 3 + [wide] * 3).walked == 6


def test_many_shapes_are_read_as_well() -> None:
    chosen = random.Random(9)
    keys = [f"k{k}" for k in range(8)]
    records = []
    for number in range(400):
        fields = {key: number for key in keys if chosen.random() < 0.5}
        records.append(json.dumps({"id": str(number), **fields}).encode())
    assert _check(records).walked > 200


def test_records_without_any_value() -> None:
    assert _check([b"{}", b"{}", b'{"site":{}}', b'{"site":{}}', b'{"tags":[]}', b"[]", b"1"]).walked == 5
