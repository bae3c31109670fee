"""Several builder processes on one queue, one of them killed: each window once, none lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.outputs.datasets.conftest import NewStations, Stations, coordinate
from tests.support.patience import PATIENCE

from tidemill.model.time import HOUR, SECOND
from tidemill.model.windows import Phase

WINDOWS = 90
BUILDER = """
import sys, threading
from tidemill.mill import Mill

def told(outcomes):
    for outcome in outcomes:
        print(outcome.key.start, "lost" if outcome.lost else outcome.error or "built", flush=True)

print("ready", flush=True)
sys.stdin.readline()
with Mill.open(sys.argv[1]) as mill:
    mill.build(threading.Event(), 0.05, told, 1, once=True)
"""


def start(root: Path, count: int) -> list[subprocess.Popen[str]]:
    """So many builder processes, which all begin at the same moment."""
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return crowd


def finish(stations: Stations) -> None:
    """Who is left found the queue empty and ended; what a dead one held comes back after its lease."""
    with stations.open() as mill:
        held = mill.state.windows(phase=Phase.BUILDING)
        stations.clock.set(max([stations.clock(), *((w.lease_until or 0) + SECOND for w in held)]))
        while mill.tick().builds:
            pass


def test_three_builder_processes_and_one_is_killed(new_stations: NewStations) -> None:
    stations = new_stations(builder="{concurrency: 1, lease: 2s}")
    hours = [f"2024-01-{1 + h // 24:02d}T{h % 24:02d}:00:00Z" for h in range(WINDOWS + 1)]
    for number in range(WINDOWS):
        stations.land(f"h{number}", hours[number], hours[number + 1])
    coordinate(stations)
    crowd = start(stations.root, 3)
    victim = random.choice(crowd)
    assert victim.stdout is not None
    victim.stdout.readline()  # it is in the middle of it now
    os.kill(victim.pid, signal.SIGKILL)
    for process in crowd:
        process.communicate(timeout=PATIENCE)
    finish(stations)
    windows = stations.windows()
    assert len(windows) == WINDOWS
    assert {(w.phase, w.revision) for w in windows} == {(Phase.BUILT, 1)}
    assert len(stations.files()) == WINDOWS
    with stations.open() as mill:
        events = [event for _, event in mill.events(limit=10_000)]
    assert len(events) == len({event["id"] for event in events}) == WINDOWS
    assert all(stations.dataset(hour).num_rows == 1 for hour in hours[:-1:17])
    assert windows[0].key.span == HOUR
