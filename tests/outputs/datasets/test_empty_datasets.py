"""Windows without rows: recorded without a file each, answered like others; too many are asked about."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from tests.outputs.datasets.conftest import NewStations, Stations, instant

from tidemill.ingest.arguments import TooManyWindowsError
from tidemill.mill import recover
from tidemill.outputs.datasets.catalog import open_dataset
from tidemill.outputs.datasets.dataset import dataset_schema


def states(stations: Stations) -> list[dict[str, object]]:
    with stations.open() as mill:
        return mill.state.dump()["windows"]


def test_a_day_of_nothing_is_one_file_and_every_reader_answers(new_stations: NewStations) -> None:
    stations = new_stations()
    stations.land("day", "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", rows=["10:30"])
    stations.tick()
    assert [(window.revision, window.rows) for window in stations.windows()].count((1, 0)) == 23
    assert len(stations.files()) == 2  # the hour with a row, and the one file of all the others
    with stations.open() as mill:
        assert mill.verify().ok
        schema = dataset_schema(mill.project.stream("stations"))
        dataset = mill.windows.dataset("stations", instant("11:00"))
        opened = open_dataset(mill.project.warehouse, dataset)
        assert opened.schema.equals(schema)
        assert opened.metadata["window"] == "[2024-01-01T11:00:00Z, 2024-01-01T12:00:00Z)"
        target = stations.root / "out.arrow"
        mill.export("stations", [instant("10:00"), instant("11:00")], "arrow", target)
        mill.export("stations", [instant("11:00")], "parquet", stations.root)
        reported = [event["data"] for _, event in mill.events(limit=100)]
    assert pa.ipc.open_file(target).read_all().num_rows == 1
    assert [path.name for path in stations.root.glob("*.parquet")] == [
        "stations_20240101T110000Z_1h_r1.parquet"
    ]
    locations = {str(one["location"]) for one in reported if isinstance(one, dict)}
    files = [pa.ipc.open_file(stations.root / "warehouse" / one) for one in locations]
    assert all(file.schema.equals(schema) for file in files)


def test_recovery_knows_datasets_without_rows_and_their_revisions(new_stations: NewStations) -> None:
    stations = new_stations()
    day = stations.land("day", "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", rows=["10:30"])
    stations.tick()
    with stations.open() as mill:
        mill.rebuild(mill.windows.plan_rebuild("stations"))
    before = states(stations)
    assert {row["revision"] for row in before} == {2}
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (stations.root / "warehouse" / name).unlink(missing_ok=True)
    recover(stations.root, spark=stations.spark, clock=stations.clock)
    assert states(stations) == before
    with stations.open() as mill:
        story = mill.windows.window("stations", instant("11:00"))
        assert [(one.revision, one.rows, one.slices) for one in story.revisions] == [
            (1, 0, (day,)),
            (2, 0, (day,)),
        ]


def test_rows_that_come_later_make_a_file_and_a_damaged_shared_file_is_made_again(
    new_stations: NewStations,
) -> None:
    stations = new_stations(late_slices={"policy": "reemit", "max_lateness": "90d"})
    stations.land("day", "10:00", "12:00", rows=[])
    stations.tick()
    stations.land("more", "10:00", "11:00", rows=["10:30"])
    stations.tick()
    window, _ = stations.window("10:00")
    assert (window.revision, window.rows) == (2, 1)
    empty, _ = stations.window("11:00")
    assert empty.file is not None
    (stations.root / "warehouse" / empty.file).write_bytes(b"nothing good")
    with stations.open() as mill:
        assert mill.tick().streams[0].damaged == 1
        assert not mill.verify().ok
        mill.rebuild(mill.windows.plan_rebuild("stations"))
        assert mill.verify().ok


def test_a_slice_of_too_many_windows_is_refused_until_somebody_means_it(new_stations: NewStations) -> None:
    stations = new_stations(max_slice_windows=5)
    bounds = {"start": instant("10:00"), "end": instant("16:00")}
    with stations.open() as mill:
        with pytest.raises(TooManyWindowsError, match="span 6 windows of 1h") as caught:
            mill.ingest("stations", [], empty=True, **bounds)
        assert "streams.stations.max_slice_windows" in caught.value.hint
        mill.ingest("stations", [], empty=True, many_windows=True, **bounds)
        mill.run_until_idle()
        assert len(mill.windows.windows("stations")) == 6
        slice_id = mill.ledger("stations")[0].id
        assert len(mill.windows.touched(slice_id, 2)) == 2
        assert mill.state.windows_touched(slice_id) == 6


def test_the_log_of_empty_datasets_is_read_past_what_a_crash_tore(new_stations: NewStations) -> None:
    stations = new_stations()
    stations.land("one", "10:00", "11:00", rows=[])
    stations.tick()
    log = stations.root / "warehouse/datasets/stations/_empty/windows.ndjson"
    log.write_bytes(log.read_bytes() + b'{"start":17')
    stations.land("two", "11:00", "12:00", rows=[])
    stations.tick()
    lines = log.read_bytes().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["start"] == instant("11:00")
    with stations.open() as mill:
        assert mill.verify().ok
