"""Declared bounds that cannot be meant are refused, whoever declares them."""

from __future__ import annotations

import pytest

from tidemill.config import Stream
from tidemill.ingest import arguments
from tidemill.model.errors import InputError

STREAM = Stream.model_validate({"name": "s", "schema": {"id": "string"}, "aggregation_span": "1h"})


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00Z"),
        (0, 0),
    ],
)
def test_bounds_that_cover_no_time_are_refused(start: str | int, end: str | int) -> None:
    with pytest.raises(InputError, match="cover no time"):
        arguments.declared_bounds(STREAM, start, end)


@pytest.mark.parametrize("naive", ["2024-01-01T10:00:00", "2024-01-01"])
def test_a_bound_without_a_time_zone_is_refused(naive: str) -> None:
    with pytest.raises(InputError, match="time zone"):
        arguments.declared_bounds(STREAM, naive, "2024-01-01T12:00:00Z")


def test_an_offset_says_which_instant_is_meant() -> None:
    found = arguments.declared_bounds(STREAM, "2024-01-01T10:00:00+02:00", "2024-01-01T09:00:00Z")
    assert found == arguments.declared_bounds(STREAM, "2024-01-01T08:00:00Z", "2024-01-01T09:00:00Z")
