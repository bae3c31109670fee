"""A slice may be empty but say what it covers, in every format: accepted, with no record in it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.pipeline.test_recover import dump, forget
from tests.support.pipeline import NOON, Plant, ndjson, request

from tidemill.mill import recover
from tidemill.model.errors import InputError
from tidemill.model.slices import Counts, Format, SliceStatus
from tidemill.model.time import HOUR, Interval


def test_nothing_in_known_bounds_is_accepted_in_every_format(plant: Plant, tmp_path: Path) -> None:
    (tmp_path / "none.csv.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "none.json.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "none.parquet").write_bytes(b"")
    with plant.open() as mill:
        for number, format_ in enumerate(Format):
            mill.land(
                "requests", b"", format=format_, start=NOON + number * HOUR, end=NOON + number * HOUR + 1
            )
        files = [tmp_path / name for name in ("none.csv.gz", "none.json.gz", "none.parquet")]
        assert mill.ingest("requests", files, start=NOON - HOUR, end=NOON).refused == ()
        mill.land("requests", ndjson(request(1)))
        mill.run_until_idle()
        *empty, last = mill.state.slices("requests")
        assert [e.error for e in empty] == [None] * len(empty)
        assert {e.status for e in empty} == {SliceStatus.ACCEPTED}
        assert all(e.counts == Counts() for e in empty)
        assert {e.slice.format for e in empty} == set(Format)
        assert [e.bounds for e in empty[:2]] == [
            Interval(NOON, NOON + 1),
            Interval(NOON + HOUR, NOON + HOUR + 1),
        ]
        assert last.counts.accepted == 1
        assert mill.verify().findings == []
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant) == before


@pytest.mark.parametrize("format", Format)
def test_nothing_that_says_not_what_it_covers_is_refused(plant: Plant, format: Format) -> None:
    with plant.open() as mill, pytest.raises(InputError, match="is empty") as caught:
        mill.land("requests", b"", format=format)
    assert "--start and --end" in caught.value.hint
