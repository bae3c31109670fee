"""The JSON of documents: every value once, exactly, whatever type derives from it."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType

import numpy as np
import pytest

from tidemill.pipeline.documents.shapes import Verbatim, dumps


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (2**80, "1208925819614629174706176"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
        (np.float64("inf"), '"Infinity"'),
        (np.float64(0.5), "0.5"),
        (Decimal("1.230"), "1.230"),
        (Decimal("1E+3"), "1000"),
        ('a "quoted" \u00e9 \ud800', json.dumps('a "quoted" \u00e9 \ud800')),
        (Colour.RED, '"red"'),
        (Size.SMALL, "1"),
        (b"\xff!", json.dumps("\\xff!")),
        (datetime(2026, 1, 5, 10, 0, 0, 500_000, tzinfo=UTC), '"2026-01-05T10:00:00.500Z"'),
        (Verbatim('{"a":1}'), '{"a":1}'),
        (Pair(1, "b"), '[1,"b"]'),
        (MappingProxyType({1: [(), {}]}), '{"1":[[],{}]}'),
    ],
)
def test_every_value_is_written_exactly(value: object, text: str) -> None:
    assert dumps(value) == text
    assert dumps({"of": [value, {"in": value}]}) == f'{{"of":[{text},{{"in":{text}}}]}}'


def test_names_that_are_equal_as_numbers_are_different_names() -> None:
    document: Mapping[object, object] = {"1": "text", 2: "number", True: "truth"}
    assert json.loads(dumps(document)) == {"1": "text", "2": "number", "True": "truth"}


def test_what_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(TypeError):
        dumps({"of": object()})
