"""Several processes that do rounds on one warehouse: they share the streams, and none is worked on by two.

What becomes of a process that is replaced by another is in `test_takeover.py`."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.pipeline import CONFIG, NOON, ndjson, request, start_child
from tests.support.postgres_server import project_with_state

from tidemill.mill import Mill
from tidemill.model.errors import BusyError, LeaseLostError
from tidemill.model.failpoints import observed
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

STREAM = CONFIG.partition("  requests:\n")[2] + "    aggregation_span: 1h\n"
HEAD = CONFIG.partition("streams:")[0]
NAMES = ("apples", "pears")
Make = Callable[[], Path]


@pytest.fixture(params=["sqlite", "postgresql"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A project with two streams."""
    text = HEAD + "streams:\n" + "".join(f"  {name}:\n{STREAM}" for name in NAMES)
    yield from project_with_state(request, tmp_path, text)


def open_at(root: Path) -> Mill:
    return Mill.open(root, clock=FakeClock(NOON))


def ids(root: Path, stream: str) -> Counter[str]:
    """How often each event is in raw, as the log of the table has it."""
    table = Table.existing(root / "warehouse" / "raw" / stream)
    found = Counter[str]()
    for path in table.snapshot().paths() if table is not None else ():
        found.update(pq.read_table(path, columns=["event_id"], partitioning=None)["event_id"].to_pylist())
    return found


def land(mill: Mill, stream: str, first: int, count: int = 5) -> set[str]:
    events = [request(number) for number in range(first, first + count)]
    mill.land(stream, ndjson(*events), name=f"{first}")
    return {str(event["event_id"]) for event in events}


def test_a_round_works_on_the_streams_that_no_other_works_on(root: Path) -> None:
    with open_at(root) as one, open_at(root) as other:
        for name in NAMES:
            land(one, name, 0)
        seen: list[list[str]] = []

        def meanwhile(point: str) -> None:
            if point == "accept.after_gate" and not seen:
                seen.append([])
                seen.append([done.stream for done in other.tick().streams if not done.idle])
                with pytest.raises(BusyError, match="another process is working on this warehouse"):
                    other.verify()

        with observed(meanwhile):
            first = one.tick()
        assert seen == [[], ["pears"]]
        assert [done.stream for done in first.streams] == list(NAMES)  # pears were free again by then
        assert [done.batch is not None for done in first.streams] == [True, False]
        assert all(set(ids(root, name).values()) == {1} for name in NAMES)
        assert [done.stream for done in other.tick().streams] == list(NAMES)
        assert other.verify().ok


def test_a_round_that_gets_no_stream_is_told_so_and_a_daemon_waits(root: Path) -> None:
    with open_at(root) as one, open_at(root) as two, open_at(root) as three:
        for name in NAMES:
            land(one, name, 0)
        seen: list[object] = []

        def inner(point: str) -> None:
            if point == "accept.after_gate" and len(seen) == 1:  # two is at work on pears
                seen.append(three.tick(patient=True).streams)
                with pytest.raises(BusyError, match="working on every stream"):
                    three.tick()

        def outer(point: str) -> None:
            if point == "accept.after_gate" and not seen:  # one is at work on apples
                seen.append("begun")
                with observed(inner):
                    two.tick()

        with observed(outer):
            one.tick()
        assert seen == ["begun", []]


PAUSED = """
import os, signal, sys
from tidemill.mill import Mill
from tidemill.model.failpoints import observed
def pause(point):
    if point == "accept.after_gate":
        os.kill(os.getpid(), signal.SIGSTOP)
with Mill.open(sys.argv[1]) as mill, observed(pause):
    mill.tick()
"""


def test_a_process_that_is_paused_keeps_its_stream_and_the_others_go_on(root: Path) -> None:
    with open_at(root) as mill:
        sent = {name: land(mill, name, 0) for name in NAMES}
        child = start_child(PAUSED, root)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        sent["apples"] |= land(mill, "apples", 100)
        sent["pears"] |= land(mill, "pears", 100)
        assert [done.stream for done in mill.tick().streams] == ["pears"]
        os.kill(child.pid, signal.SIGCONT)
        _, status = os.waitpid(child.pid, os.WUNTRACED)  # it pauses once more, at pears or at what came
        while os.WIFSTOPPED(status):
            os.kill(child.pid, signal.SIGCONT)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.waitstatus_to_exitcode(status) == 0, child.communicate()
        mill.run_until_idle()
        assert {name: ids(root, name) for name in NAMES} == {
            name: Counter(dict.fromkeys(sent[name], 1)) for name in NAMES
        }
        assert mill.verify().ok


@pytest.mark.parametrize("lease", ["1h", "10ms"], ids=["leases hold", "leases run out"])
def test_what_was_acknowledged_is_stored_once_whoever_works(root: Path, lease: str) -> None:
    """Three runners and two that land, in any order; a slice may land twice. Leases that are shorter than a
    thread waits for its turn are taken over in the middle of rounds."""
    text = (root / "tidemill.yaml").read_text()
    (root / "tidemill.yaml").write_text(text.replace("memory: 512m", f"memory: 512m, lease: {lease}"))
    dice, landing, stop = random.Random(20), threading.Semaphore(0), threading.Event()
    plan = [(dice.choice(NAMES), dice.randrange(8) * 4) for _ in range(12)]
    acknowledged: dict[str, set[str]] = {name: set() for name in NAMES}
    errors: list[BaseException] = []

    def guarded(work: Callable[[Mill], None]) -> threading.Thread:
        def run() -> None:
            try:
                with open_at(root) as mill:
                    work(mill)
            except BaseException as error:  # noqa: BLE001 - the test fails by it
                errors.append(error)

        return threading.Thread(target=run)

    def lands(share: int) -> Callable[[Mill], None]:
        def work(mill: Mill) -> None:
            for stream, first in plan[share::2]:
                acknowledged[stream] |= land(mill, stream, first)
                landing.release()

        return work

    def runs(mill: Mill) -> None:
        landing.acquire()
        while not stop.is_set():
            with suppress(LeaseLostError):
                mill.tick(patient=True)

    landers, runners = [guarded(lands(share)) for share in range(2)], [guarded(runs) for _ in range(3)]
    for thread in (*landers, *runners):
        thread.start()
    for thread in landers:
        thread.join()
    landing.release(3)
    stop.set()
    for thread in runners:
        thread.join()
    assert errors == []
    with ExitStack() as opened:
        mill = opened.enter_context(open_at(root))
        mill.run_until_idle()
        for name in NAMES:
            assert ids(root, name) == Counter(dict.fromkeys(acknowledged[name], 1))
        assert mill.verify().ok
        assert all(status.totals["pending_slices"] == 0 for status in mill.status())


def test_processes_that_take_turns_go_on_with_what_the_other_has_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a process keeps something in memory: the log of observations, the admitted keys."""
    metrics = "      life: {kind: state, object: api, state: region}\n"
    metrics += "      few: {kind: counter, dimensions: [api], max_cardinality: 2}\n"
    (tmp_path / "tidemill.yaml").write_text(CONFIG + metrics)
    with open_at(tmp_path) as one, open_at(tmp_path) as other:
        for number in range(6):
            mill = other if number % 2 else one
            land(mill, "requests", 5 * number)
            mill.run_until_idle()
    with open_at(tmp_path) as fresh:
        land(fresh, "requests", 100)
        fresh.run_until_idle()
        assert fresh.verify().findings == []
    assert [record.message for record in caplog.records if "made again" in record.message] == []
