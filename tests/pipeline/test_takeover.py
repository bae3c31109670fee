"""A process that is replaced by another while it is paused or cut off commits nothing afterwards.

How the walk is made: a round is watched, and at one fail point that it passes its leases run out, another
process does all the work, and everything that is on record is written down. Then the first one goes on: at
the end, the same must be on record, to the letter.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.patience import PATIENCE
from tests.support.pipeline import start_child
from tests.support.postgres_server import PostgresServer, project_with_state
from tests.support.server_process import Clients, Server
from tests.support.soak_counts import seeds
from tests.support.whole_mill import NOON, STREAMS, VECTORS, Delta, Event, config

from tidemill.mill import Mill
from tidemill.model.errors import LeaseLostError
from tidemill.model.failpoints import observed
from tidemill.model.time import HOUR, MINUTE, SECOND
from tidemill.storage.layout import TableKind
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

FOLDERS = ("raw", "quarantine", "rollups", "index", "chains", "windows")
# In the order of a round. What a builder does is under the lease of its window, and no point of this walk.
POINTS = (
    "accept.after_stage",
    "accept.after_gate",
    "accept.after_write",
    "quarantine.before_commit",
    "quarantine.after_commit",
    "raw.before_commit",
    "raw.after_commit",
    "accept.after_state",
    "rollups.after_build",
    "rollups.before_commit",
    "rollups.after_commit",
    "rollups.after_state",
    "search.after_build",
    "search.after_commit",
    "windows.after_lay",
    "windows.after_evaluate",
    "chains.after_build",
    "chains.before_commit",
    "chains.after_commit",
    "results.after_fold",
    "results.before_commit",
    "results.after_commit",
    "results.after_state",
)
OFTEN = {"quarantine.after_commit", "raw.before_commit", "rollups.before_commit", "chains.before_commit"}
OFTEN |= {"search.after_build", "results.before_commit"}
# After these, the rest of the round may find that there is nothing left to do.
LAST = {"rollups.after_state", "search.after_commit", "windows.after_lay", "windows.after_evaluate"}
LAST |= {"chains.after_commit", "results.after_state"}


def land(mill: Mill, first: int) -> None:
    """New events of each stream; an old one again, a contradiction and a bad line."""
    numbers = range(first, first + 6)
    events = [Event(f"e{n}", NOON + 20 * n * MINUTE, 100 * n, "eu" if n % 2 else "us") for n in numbers]
    deltas = [Delta(f"d{n}", NOON + n * SECOND, f"v{n % 2}", "add", (n, 1)) for n in numbers]
    bad = [Event(f"e{first}", NOON, 1, "no").line, b"{\n"]
    for stream in STREAMS:
        mill.land(stream, b"".join([one.line for one in events] + bad), name=f"{first}")
    mill.land(VECTORS, b"".join(one.line for one in deltas), name=f"{first}")


def open_at(root: Path) -> Mill:
    return Mill.open(root, clock=FakeClock(NOON + 10 * HOUR))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has every output, with slices that wait."""
    root = tmp_path_factory.mktemp("takeover") / "project"
    root.mkdir()
    (root / "tidemill.yaml").write_text(config())
    with open_at(root) as mill:
        for first in (0, 10):
            land(mill, first)
            mill.run_until_idle()
        land(mill, 20)
    return root


def let_leases_run_out(root: Path) -> None:
    with sqlite3.connect(root / "warehouse" / "state.db") as link:
        link.execute("UPDATE leases SET until = 0")
    link.close()


def on_record(root: Path) -> dict[str, object]:
    """Every row of the state but for leases, and every entry of every log."""
    link = sqlite3.connect(root / "warehouse" / "state.db")
    tables = [name for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found: dict[str, object] = {
        name: sorted(map(str, link.execute(f"SELECT * FROM {name}"))) for name in tables if name != "leases"
    }
    link.close()
    for folder in FOLDERS:
        logs = (root / "warehouse" / folder).rglob("_delta_log/*.json")
        found[folder] = {str(path.relative_to(root)): path.read_bytes() for path in logs}
    return found


def ids(root: Path, stream: str) -> Counter[str]:
    """How often each event is in raw, as the log of the table has it."""
    table, found = Table.existing(root / "warehouse" / "raw" / stream), Counter[str]()
    for path in table.snapshot().paths() if table is not None else ():
        found.update(pq.read_table(path, columns=["event_id"], partitioning=None)["event_id"].to_pylist())
    return found


@pytest.mark.parametrize(
    "point", [one if one in OFTEN else pytest.param(one, marks=pytest.mark.soak) for one in POINTS]
)
def test_who_was_replaced_changes_nothing(template: Path, tmp_path: Path, point: str) -> None:
    root = tmp_path / "project"
    shutil.copytree(template, root)
    kept: list[dict[str, object]] = []
    with open_at(root) as one, open_at(root) as other:

        def meanwhile(passed: str) -> None:
            if passed == point and not kept:
                kept.append({})
                let_leases_run_out(root)
                other.run_until_idle()
                kept[0] = on_record(root)

        refused = pytest.raises(LeaseLostError, match="another process has taken over")
        with observed(meanwhile), suppress(LeaseLostError) if point in LAST else refused:
            one.tick()
        assert kept
        assert on_record(root) == kept[0]
        assert all(report.idle for report in one.run_until_idle())
        events = Counter(f"e{n}" for first in (0, 10, 20) for n in range(first, first + 6))
        assert ids(root, "orders") == ids(root, "visits") == events
        assert one.verify().findings == []
        assert not one.status()[0].faults


def test_the_walk_passes_every_point(template: Path, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(template, root)
    passed = list[str]()
    with open_at(root) as mill, observed(passed.append):
        mill.tick()
    assert [point for point in POINTS if point not in passed] == []


# -- processes


STREAM = """
    schema: {id: {type: string, required: true}, at: {type: integer, required: true}}
    identity: id
    event_time: {column: at, type: unixtimestamp_us}
    metrics: {events: {kind: counter}}
"""
PAUSED = """
import os, signal, sys
from tidemill.mill import Mill
from tidemill.model.errors import TidemillError
from tidemill.model.failpoints import observed
def pause(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGSTOP)
try:
    with Mill.open(sys.argv[1]) as mill, observed(pause):
        mill.tick()
except TidemillError as error:
    sys.exit(f"{error} ({error.hint})")
"""


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Two streams, and leases of half a second; the parameter says which state."""
    text = "version: 1\nengine: {cores: 1, memory: 512m, lease: 500ms}\nstreams:\n"
    text += "".join(f"  {name}:{STREAM}" for name in ("apples", "pears"))
    yield from project_with_state(request, tmp_path, text)


def lines(first: int) -> bytes:
    numbers = range(first, first + 5)
    return b"".join(json.dumps({"id": f"e{n}", "at": NOON + n}).encode() + b"\n" for n in numbers)


def versions(mill: Mill) -> dict[str, int]:
    kinds: tuple[TableKind, ...] = ("raw", "quarantine", "rollups")
    found = (mill.snapshot(kind, name) for kind in kinds for name in ("apples", "pears"))
    return {str(one.root): one.version for one in found if one is not None}


@pytest.mark.parametrize(
    ("project", "point"),
    [
        ("sqlite", "rollups.before_commit"),
        ("postgresql", "raw.before_commit"),
        *(
            pytest.param(state, point, marks=pytest.mark.soak)
            for state in ("sqlite", "postgresql")
            for point in ("accept.after_gate", "raw.after_commit", "rollups.after_commit")
        ),
    ],
    indirect=["project"],
)
def test_a_process_that_was_stopped_for_longer_than_its_lease_commits_nothing(
    project: Path, point: str
) -> None:
    with open_at(project) as mill:
        for name in ("apples", "pears"):
            mill.land(name, lines(0))
        child = start_child(PAUSED, project, point)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        first = mill.tick()  # within the lease
        assert [done.stream for done in first.streams] in (["pears"], ["apples", "pears"])
        while mill.state.totals("apples")["pending_slices"] or mill.state.stale_tiles("apples"):
            mill.tick(patient=True)
        mill.run_until_idle()
        before, dumped = versions(mill), mill.state.dump()
        os.kill(child.pid, signal.SIGCONT)
        _, said = child.communicate()
        assert child.returncode == 1
        assert "another process has taken over" in said
        assert "apples" in said
        assert "this one did not respond for longer than its lease of 500ms" in said
        assert (versions(mill), mill.state.dump()) == (before, dumped)
        assert ids(project, "apples") == ids(project, "pears") == Counter(f"e{n}" for n in range(5))
        assert mill.verify().ok


@pytest.mark.parametrize(
    "project", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_a_process_that_was_killed_is_replaced_at_once_on_its_machine(project: Path) -> None:
    text = (project / "tidemill.yaml").read_text()
    (project / "tidemill.yaml").write_text(text.replace("lease: 500ms", "lease: 1h"))
    with open_at(project) as mill:
        mill.land("apples", lines(0))
        child = start_child(PAUSED, project, "raw.before_commit")
        os.waitpid(child.pid, os.WUNTRACED)
        assert [done.stream for done in mill.tick().streams] == ["pears"]
        child.kill()
        child.communicate()
        assert [done.stream for done in mill.tick().streams] == ["apples", "pears"]
        assert ids(project, "apples") == Counter(f"e{n}" for n in range(5))
        assert mill.verify().ok


# -- many of them


class Process:
    """A command of `tidemill` on a project, that may be killed or stopped at any moment."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "tidemill.cli.main", *command, "-p", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "processes.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def send(self, sign: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sign)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()


def disturb(dice: random.Random, process: Process | Server) -> None:
    """Kill it and start another in its place; or stop it, most often for longer than its leases."""
    if dice.random() < 0.6 or isinstance(process, Server):
        process.kill()
        process.start()
        return
    process.send(signal.SIGSTOP)
    threading.Event().wait(dice.uniform(0.1, 3.0))
    process.send(signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.parametrize("state", ["sqlite", "postgresql"])
@pytest.mark.parametrize("seed", seeds(2))
def test_two_gateways_three_runners_three_builders_killed_at_random(
    request: pytest.FixtureRequest, tmp_path: Path, state: str, seed: int
) -> None:
    """What was acknowledged is stored, once, and every output is what raw says."""
    settings = "engine: {cores: 1, memory: 512m, lease: 1s}\nbuilder: {lease: 1s}\n"
    if state == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        settings += f"state: {{url: {server.url}, schema: {server.new_schema()}}}\n"
    gateways = [Server(tmp_path, settings) for _ in range(2)]
    with (tmp_path / "tidemill.yaml").open("a") as file:
        file.write("    aggregation_span: 1m\n    allow_incomplete_windows: true\n")
    others = [Process(tmp_path, "run", "--interval", "50ms") for _ in range(3)]
    others += [Process(tmp_path, "build", "--interval", "50ms") for _ in range(3)]
    processes = [*gateways, *others]
    for one in processes:
        one.start()
    clients = [Clients(gateway, 2, 400, 20, first=2 * n) for n, gateway in enumerate(gateways)]
    dice = random.Random(seed)
    for _ in range(12):
        clients[0].ended(dice.uniform(0.05, 1.0))  # a moment that nobody chose
        disturb(dice, dice.choice(processes))
    assert all(said["left"] == 0 for group in clients for said in group.done())
    for one in processes:
        one.kill()
    acknowledged = Counter(name for group in clients for name in group.acknowledged())
    with Mill.open(tmp_path) as mill:
        mill.run_until_idle(patience=PATIENCE)
        assert ids(tmp_path, "requests") == acknowledged
        assert len(acknowledged) == 4 * 400
        assert mill.verify().findings == []
