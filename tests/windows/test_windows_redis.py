"""The same mill on a state that several machines share: a real Redis server, killed and started again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.state.redis_server import RedisServer
from tests.windows.conftest import NewStations, Stations, coordinate, instant
from tests.windows.test_windows_crowd import finish, start
from tests.windows.test_windows_life import bytes_of, lived, story

from tidemill.mill import Mill, recover
from tidemill.model.errors import StorageError
from tidemill.model.windows import Phase


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


def on_redis(stations: Stations, server: RedisServer) -> Stations:
    file = stations.root / "tidemill.yaml"
    file.write_text(file.read_text() + f"state: {{kind: redis, url: '{server.url}'}}\n")
    return stations


def test_the_same_life_on_both_stores(new_stations: NewStations, server: RedisServer) -> None:
    on_file = lived(new_stations(now="09:00"))
    shared = lived(on_redis(new_stations(now="09:00"), server))
    assert not (shared.root / "warehouse" / "state.db").exists()
    assert story(shared) == story(on_file)
    assert bytes_of(shared) == bytes_of(on_file)


def test_recover_fills_a_server_that_lost_everything(new_stations: NewStations, server: RedisServer) -> None:
    stations = lived(on_redis(new_stations(now="09:00"), server))
    before = story(stations)
    server.kill()
    for file in (server._folder).iterdir():
        file.unlink()
    server.start()
    with pytest.raises(StorageError) as caught:
        stations.open()
    assert "tidemill recover" in caught.value.hint
    assert recover(stations.root, clock=stations.clock, spark=stations.spark).datasets == 3
    after = story(stations)
    assert (after["windows"], after["window_slices"]) == (before["windows"], before["window_slices"])
    assert after["slices"] == before["slices"]
    assert not stations.tick().builds


def test_retract_on_redis(new_stations: NewStations, server: RedisServer) -> None:
    stations = on_redis(new_stations(now="12:05"), server)
    stations.land("keep", "10:00", "11:00", rows=["10:05"])
    gone = stations.land("gone", "10:00", "11:00", rows=["10:06"])
    stations.tick("13:00")
    with stations.open() as mill:
        mill.retract(mill.plan_retraction(gone, "a broken sensor"))
    stations.tick()
    assert stations.dataset("10:00").num_rows == 1
    assert stations.window("10:00")[0].revision == 2


def test_builders_wait_for_a_server_that_went_away_and_go_on(
    new_stations: NewStations, server: RedisServer
) -> None:
    stations = on_redis(new_stations(builder="{concurrency: 1, lease: 2s}"), server)
    hours = [f"2024-01-{1 + h // 24:02d}T{h % 24:02d}:00:00Z" for h in range(31)]
    for number in range(30):
        stations.land(f"h{number}", hours[number], hours[number + 1])
    coordinate(stations)
    crowd = start(stations.root, 2)
    assert crowd[0].stdout is not None
    crowd[0].stdout.readline()  # the first window is built
    server.kill()
    server.start()
    for process in crowd:
        _, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    finish(stations)
    windows = stations.windows()
    assert {(w.phase, w.revision) for w in windows} == {(Phase.BUILT, 1)}
    assert len(windows) == len(stations.files()) == 30


def test_a_daemon_that_loses_the_server_goes_on_when_it_is_back(
    new_stations: NewStations, server: RedisServer
) -> None:
    stations = on_redis(new_stations(), server)
    stations.land("one", "10:00", "11:00")
    stop, ticked = threading.Event(), threading.Event()

    def daemon() -> None:
        with Mill.open(stations.root, clock=stations.clock) as mill:
            mill.run(stop, 0.05, lambda _report: ticked.set())

    thread = threading.Thread(target=daemon)
    thread.start()
    assert ticked.wait(60)
    server.kill()
    server.start()
    stations.land("two", "11:00", "12:00")
    for _ in range(200):
        ticked.clear()
        assert ticked.wait(60)
        if len(stations.windows()) == 2 and stations.windows()[1].phase is Phase.BUILT:
            break
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert [w.phase for w in stations.windows()] == [Phase.BUILT, Phase.BUILT]
    assert stations.window("11:00")[0].key.start == instant("11:00")
