"""The gateway as a whole, on a real disk: what it acknowledges is in the ledger, once, whatever happens."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from tidemill.config import load_project
from tidemill.config.gateway import GatewaySettings as Settings
from tidemill.eventtime import registered
from tidemill.formats.stored_slice import content_bytes
from tidemill.ingest.gateway.gateway import Gateway
from tidemill.ingest.gateway.log_recovery import take_up
from tidemill.ingest.gateway.status import running
from tidemill.ingest.landing import Landing
from tidemill.mill import wall_clock
from tidemill.model.errors import OverloadedError, Retry, UnlandedError
from tidemill.model.failpoints import observed
from tidemill.model.gateway import CloseTrigger, Entry, Pressure, Submission
from tidemill.model.slices import Format
from tidemill.model.time import DAY, MINUTE, Interval
from tidemill.storage.state.sqlite import open_state

PROJECT = """
version: 1
streams:
  a: {schema: {id: string, at: integer}, identity: id}
  b: {schema: {id: string, at: integer}, identity: id}
"""
# Fixed windows end at multiples since 1970: one of an hour closes by itself in a run that passes a full hour.
ENDLESS = {"kind": "fixed", "size": "36500d"}
SLOW = {"window": ENDLESS, "triggers": {"count": 3}}
WAIT = PATIENCE


class House:
    """A warehouse with a gateway, and what its senders were told."""

    def __init__(self, folder: Path, project: str = PROJECT, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tidemill.yaml").write_text(project)
        self.held = threading.Event()  # of those who hold landings up
        self.project = load_project(folder, registered())
        self.warehouse = self.project.warehouse
        self.warehouse.mkdir(exist_ok=True)
        self.state = open_state(self.warehouse / "state.db")
        self.landing = Landing(self.warehouse, self.state)
        self.landed = threading.Condition()
        self.outputs = []
        # A rate is measured by the wall clock: on a slow machine it changes whatever a test does.
        triggers = {"rate_change": None, **settings.pop("triggers", {})}
        self.settings = Settings.model_validate({**settings, "triggers": triggers})

    def open(self, clock=wall_clock) -> Gateway:
        return Gateway(
            self.warehouse,
            self.project.streams,
            self.settings,
            self.state,
            self.landing,
            clock,
            self._on_durable,
        )

    def _on_durable(self, outputs) -> None:
        with self.landed:
            self.outputs += outputs
            self.landed.notify_all()

    def wait_for(self, windows: int) -> None:
        with self.landed:
            assert self.landed.wait_for(lambda: len(self.outputs) >= windows, WAIT), self.outputs

    def take_up(self):
        until = wall_clock() + MINUTE
        return take_up(self.warehouse, self.project.streams, self.state, self.landing, until)

    def lines(self, stream: str) -> list[str]:
        """Of all slices, in ledger order."""
        found = []
        for entry in self.state.slices(stream):
            found += content_bytes(self.warehouse / entry.slice.path).decode().splitlines()
        return found


def sent(gateway: Gateway, stream: str, *ids: str, tenant: str | None = None, unnamed=()) -> Entry:
    content = b"".join(b'{"id":"%s","at":1}\n' % id_.encode() for id_ in ids)
    return submitted(
        gateway, Submission(stream, "http", content, len(ids), tenant=tenant, unnamed=tuple(unnamed))
    )


def submitted(gateway: Gateway, submission: Submission) -> Entry:
    reported: Future = Future()
    gateway.submit(submission, reported.set_result)
    outcome = reported.result(WAIT)
    assert isinstance(outcome, Entry), outcome
    return outcome


def copy_of(house: House, folder: Path) -> House:
    """As a process that was killed this moment leaves it: its log is nobody's."""
    shutil.copytree(house.warehouse, folder / "warehouse", ignore=shutil.ignore_patterns("*.gone"))
    return House(folder)


def test_an_acknowledged_event_is_landed_with_its_window_and_receipt(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        entry = sent(gateway, "a", "1", "2")
        assert gateway.buffered(entry.id) == entry
        assert gateway.receipt(entry.id) is None
    (slice_,) = house.state.slices("a")
    window = json.loads(slice_.slice.metadata)["window"]
    assert (window["trigger"], window["events"], window["keys"]) == ("shutdown", 2, 2)
    assert slice_.slice.arrival == window["end"] == entry.arrival
    receipt = house.state.receipt(entry.id)
    assert (receipt.slice, receipt.first, receipt.records, receipt.window) == (
        slice_.id,
        1,
        2,
        f"{entry.gateway}-a-1",
    )
    assert house.lines("a") == ['{"id":"1","at":1}', '{"id":"2","at":1}']
    assert not list((house.warehouse / "wal").iterdir())  # nothing is left of the log


def test_a_window_holds_the_submissions_of_its_feed_in_order(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        entries = [sent(gateway, "a", str(number)) for number in range(3)]  # the third closes it
        other = sent(gateway, "b", "x")
        house.wait_for(1)
        assert gateway.receipt(other.id) is None
        found = [gateway.receipt(entry.id) for entry in entries]
        assert [receipt.first for receipt in found] == [1, 2, 3]
        assert gateway.status().windows == {"count": 1}
    assert [output.trigger for output in house.outputs] == ["count", "shutdown"]


def test_a_file_is_a_slice_of_its_own(tmp_path: Path) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    body = io.BytesIO()
    pq.write_table(pa.table({"id": ["1", "2"], "at": [1, 2]}), body)
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        lines = sent(gateway, "a", "0")
        file = submitted(gateway, Submission("a", "http", body.getvalue(), 2, Format.PARQUET))
        house.wait_for(2)
        assert gateway.receipt(lines.id).slice != gateway.receipt(file.id).slice
    assert [entry.slice.format for entry in house.state.slices("a")] == [Format.NDJSON, Format.PARQUET]


def test_who_waits_need_not_wait_for_the_end_of_the_window(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        entry = sent(gateway, "a", "1")
        gateway.hurry(entry.id)
        house.wait_for(1)
        assert house.outputs[0].trigger == CloseTrigger.WAITING


def test_what_a_dead_gateway_acknowledged_is_landed_once(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        for number in range(3):
            sent(gateway, "a", str(number))
        house.wait_for(1)  # closed, landed, still in the log
        entry = sent(gateway, "a", "3")
        sent(gateway, "b", "x")
        dead = copy_of(house, tmp_path / "dead")
    (one,) = dead.take_up()
    assert one.gateway == entry.gateway
    assert dead.lines("a") == [f'{{"id":"{n}","at":1}}' for n in range(4)]
    assert dead.lines("b") == ['{"id":"x","at":1}']
    assert json.loads(dead.state.slices("b")[0].slice.metadata)["window"]["trigger"] == "recovery"
    assert dead.state.receipt(entry.id).first == 1
    assert dead.take_up() == []


def bounded(gateway: Gateway, id_: str | None, start: int, end: int) -> Entry:
    content = b'{"id":"%s","at":1}\n' % id_.encode() if id_ is not None else b""
    records = 0 if id_ is None else 1
    return submitted(gateway, Submission("a", "http", content, records, declared=Interval(start, end)))


def test_a_request_with_bounds_is_a_slice_of_its_own(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        sent(gateway, "a", "1")
        bounded(gateway, "2", 100, 200)
        bounded(gateway, None, 200, 300)
        sent(gateway, "a", "3")
    slices = [(one.slice.declared, one.slice.size > 0) for one in house.state.slices("a")]
    assert slices == [(None, True), (Interval(100, 200), True), (Interval(200, 300), False), (None, True)]
    assert [one.trigger for one in house.outputs] == ["bounds", "bounds", "bounds", "shutdown"]


def test_bounds_survive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window=ENDLESS)
    (house.warehouse / "slices").mkdir()
    (house.warehouse / "slices" / "a").write_text("in the way, so that nothing lands")
    with house.open() as gateway:
        sent(gateway, "a", "1")
        bounded(gateway, "2", 100, 200)
        sent(gateway, "a", "3")
        dead = copy_of(house, tmp_path / "dead")
        (house.warehouse / "slices" / "a").unlink()
    (dead.warehouse / "slices" / "a").unlink()
    dead.take_up()
    assert [one.slice.declared for one in dead.state.slices("a")] == [None, Interval(100, 200), None]
    assert dead.lines("a") == [f'{{"id":"{number}","at":1}}' for number in (1, 2, 3)]


def test_a_crash_at_every_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """At each point that is passed while events come in and are taken up, the warehouse is copied as a
    killed process leaves it; each copy holds, once taken up, what was acknowledged at that moment."""
    house = House(tmp_path / "p", **SLOW)
    copies: list[tuple[str, Path, set[str]]] = []
    reported: set[str] = set()
    guard = threading.Lock()

    def tell(point: str) -> None:
        with guard:
            if sum(name == point for name, _, _ in copies) < 2:
                folder = tmp_path / f"{len(copies)}"
                shutil.copytree(
                    house.warehouse, folder / "warehouse", ignore=shutil.ignore_patterns("*.gone")
                )
                copies.append((point, folder, set(reported)))

    with observed(tell), house.open() as gateway:
        for number in range(7):
            sent(gateway, "a", str(number))
            reported.add(str(number))
    reached = {name for name, _, _ in copies}
    assert {"wal.after_write", "wal.after_sync", "wal.after_close", "gateway.after_receipts"} <= reached
    assert {"landing.after_temp", "landing.after_rename", "landing.after_ledger"} <= reached
    for point, folder, acknowledged in copies:
        from tidemill.ingest.interrupted_landings import adopt

        left = House(folder)
        adopt(left.warehouse, left.state)
        left.take_up()
        found = [json.loads(line)["id"] for line in left.lines("a")]
        assert acknowledged <= set(found), point
        assert len(found) == len(set(found)), point
        left.state.close()


def test_beyond_its_memory_it_refuses_and_counts_nothing(tmp_path: Path) -> None:
    house = House(
        tmp_path / "p",
        window=ENDLESS,
        triggers={"memory": None, "bytes": None},
        memory={"max": "4MiB", "buffer": "1MiB", "requests": "1MiB", "windows": "64KiB", "rates": "64KiB"},
        requests={"body": "512KiB"},
    )
    with house.open() as gateway:
        line = json.dumps({"id": "1", "at": 1, "text": "x" * 300_000}).encode() + b"\n"
        for _ in range(3):
            submitted(gateway, Submission("a", "http", line, 1))
        assert gateway.memory.pressure() is Pressure.HIGH
        with pytest.raises(OverloadedError) as slow:
            gateway.admit()
        assert not slow.value.refused
        used = gateway.memory.usage()["buffer"][0]
        with pytest.raises(OverloadedError) as refused:
            gateway.submit(Submission("a", "http", line, 1), lambda outcome: None)
        assert refused.value.refused
        assert gateway.memory.usage()["buffer"][0] == used
        assert gateway.status().refused == 2
    assert gateway.memory.usage()["buffer"][0] == 0
    assert len(house.lines("a")) == 3


def test_pressure_closes_windows_early(tmp_path: Path) -> None:
    house = House(
        tmp_path / "p",
        window=ENDLESS,
        memory={"max": "4MiB", "buffer": "1MiB", "requests": "1MiB", "windows": "64KiB", "rates": "64KiB"},
        requests={"body": "512KiB"},
    )
    with house.open() as gateway:
        line = json.dumps({"id": "1", "at": 1, "text": "x" * 300_000}).encode() + b"\n"
        for _ in range(3):
            submitted(gateway, Submission("a", "http", line, 1))
        house.wait_for(1)
        assert house.outputs[0].trigger == CloseTrigger.MEMORY


def test_what_cannot_be_landed_now_is_landed_when_it_can(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    in_the_way = house.warehouse / "slices" / "a"
    in_the_way.parent.mkdir()
    in_the_way.write_text("")
    with house.open() as gateway:
        entries = [sent(gateway, "a", str(number)) for number in range(3)]
        assert gateway.buffered(entries[0].id) is not None
        in_the_way.unlink()
        house.wait_for(1)
        assert gateway.receipt(entries[2].id).first == 3
    assert len(house.lines("a")) == 3


def test_the_same_events_in_another_window_are_another_slice(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        first = sent(gateway, "a", "1", "2", "3")
        house.wait_for(1)
        again = sent(gateway, "a", "1", "2", "3")
        house.wait_for(2)
        assert not gateway.receipt(again.id).repeated
        assert gateway.receipt(first.id).slice != gateway.receipt(again.id).slice
    assert [entry.landings for entry in house.state.slices("a")] == [1, 1]
    assert house.lines("a") == 2 * ['{"id":"1","at":1}', '{"id":"2","at":1}', '{"id":"3","at":1}']


def test_the_same_request_with_bounds_is_the_same_slice(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        first = bounded(gateway, "1", 100, 200)
        again = bounded(gateway, "1", 100, 200)
        other = bounded(gateway, "1", 100, 300)
        house.wait_for(3)
        assert [gateway.receipt(one.id).repeated for one in (first, again, other)] == [False, True, False]
        assert gateway.receipt(first.id).slice == gateway.receipt(again.id).slice
    assert [entry.landings for entry in house.state.slices("a")] == [2, 1]


def events_of(house: House, stream: str) -> list[int]:
    """Of each slice, as its window says."""
    slices = house.state.slices(stream)
    return [json.loads(one.slice.metadata)["window"]["events"] for one in slices]


def test_count_closes_windows_of_exactly_its_number(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window=ENDLESS, triggers={"count": 10})
    with house.open() as gateway:
        for number in range(32):
            sent(gateway, "a", str(number))
    assert events_of(house, "a") == [10, 10, 10, 2]


def test_a_sliding_window_counts_each_event_once(tmp_path: Path) -> None:
    house = House(
        tmp_path / "p", window={"kind": "sliding", "size": "1h", "step": "1m"}, triggers={"count": 2}
    )
    with house.open() as gateway:
        for number in range(10):
            sent(gateway, "a", str(number))
        house.wait_for(5)
        status = gateway.status()
    assert (status.acknowledged, status.landed) == (10, 10)
    assert events_of(house, "a") == [2, 2, 2, 2, 2]
    last = json.loads(house.state.slices("a")[-1].slice.metadata)["window"]
    assert last["sliding"]["events"] == 10


def test_flush_closes_the_windows_of_a_stream_and_says_which(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window=ENDLESS)
    with house.open() as gateway:
        sent(gateway, "a", "1", "2")
        sent(gateway, "b", "3")
        done = gateway.flush(["a"], WAIT)
        assert [(one.stream, one.trigger, one.stats.events) for one in done.windows] == [("a", "explicit", 2)]
        assert done.pending == 0
        assert gateway.flush(["a"], WAIT).windows == ()
        assert gateway.status().windows == {"explicit": 1}
    assert (events_of(house, "a"), events_of(house, "b")) == ([2], [1])


def test_a_stream_has_windows_and_triggers_of_its_own(tmp_path: Path) -> None:
    own = "{window: {kind: fixed, size: 30000d}, triggers: {count: 2}}"
    project = PROJECT.replace("a: {schema", f"a: {{gateway: {own}, schema")
    house = House(tmp_path / "p", project, window=ENDLESS, triggers={"count": 3, "bytes": None})
    with house.open() as gateway:
        for stream in ("a", "b"):
            for number in range(6):
                sent(gateway, stream, str(number))
        house.wait_for(5)
        durations = {one.stream: one.duration // DAY for one in gateway.status().buffers}
    assert (events_of(house, "a"), events_of(house, "b")) == ([2, 2, 2], [3, 3])
    assert durations == {"a": 30_000, "b": 36_500}


def test_a_stream_that_fills_its_own_budget_does_not_slow_down_the_others(tmp_path: Path) -> None:
    project = PROJECT.replace("a: {schema", "a: {gateway: {memory: {buffer: 64KiB}}, schema")
    house = House(tmp_path / "p", project, window=ENDLESS)

    def fill() -> None:
        for number in range(200):
            sent(gateway, "a", "x" * 1000 + str(number))

    landing = threading.Event()

    def hold(point: str) -> None:
        if point == "landing.after_temp":
            landing.set()
            house.held.wait(WAIT)

    with observed(hold), house.open() as gateway:
        with pytest.raises(OverloadedError) as caught:
            fill()
        assert landing.wait(WAIT)  # before a flush would close the window for another reason
        assert caught.value.where == "streams.a.gateway.memory.buffer"
        assert not caught.value.refused
        assert gateway.status().fullest == "buffer of a"
        sent(gateway, "b", "1")
        house.held.set()
        gateway.flush(["a"], WAIT)
        sent(gateway, "a", "again")
        assert "memory_pressure" in gateway.status().windows


def test_without_a_trigger_by_memory_windows_still_go_before_senders_have_to_wait(tmp_path: Path) -> None:
    memory = {"max": "4MiB", "buffer": "1MiB", "requests": "1MiB", "windows": "1MiB", "rates": "64KiB"}
    house = House(
        tmp_path / "p", window=ENDLESS, memory=memory, requests={"body": "128KiB"},
        triggers={"memory": None, "count": None, "bytes": None},
    )  # fmt: skip
    with house.open() as gateway:
        for number in range(60):
            sent(gateway, "a", "x" * 15_000 + str(number))
        house.wait_for(1)
        assert house.outputs[0].trigger == "memory_pressure"


def test_records_without_a_tenant_are_known_by_their_sender(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        sent(gateway, "a", "1", tenant="acme")
        sent(gateway, "a", "2", "3", tenant="globex", unnamed=[1])
    window = json.loads(house.state.slices("a")[0].slice.metadata)["window"]
    assert window["unnamed"] == [[3, "globex"]]


def test_a_running_gateway_is_seen_from_outside_and_never_taken_up(tmp_path: Path) -> None:
    house = House(tmp_path / "p", **SLOW)
    with house.open() as gateway:
        sent(gateway, "a", "1")
        gateway.address = "http://127.0.0.1:8470"
        from tidemill.ingest.gateway.status import write_status

        write_status(house.warehouse, gateway.status())
        assert house.take_up() == []
        (seen,) = running(house.warehouse)
        assert (seen.gateway, seen.acknowledged, seen.address) == (gateway.name, 1, "http://127.0.0.1:8470")
    assert running(house.warehouse) == []


def test_many_senders_at_once_each_hear_of_their_own(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window={"kind": "adaptive", "min": "1ms", "max": "10ms"})
    reported: list[list[Entry]] = [[] for _ in range(8)]

    def send(number: int) -> None:
        for turn in range(50):
            reported[number].append(sent(gateway, "ab"[turn % 2], f"{number}-{turn}"))

    with house.open() as gateway:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = [json.loads(line)["id"] for stream in "ab" for line in house.lines(stream)]
    assert sorted(ids) == sorted(f"{number}-{turn}" for number in range(8) for turn in range(50))
    for number, entries in enumerate(reported):
        for turn, entry in enumerate(entries):
            receipt = house.state.receipt(entry.id)
            line = (
                content_bytes(house.warehouse / house.state.slice(receipt.slice).slice.path)
                .decode()
                .splitlines()
            )
            assert json.loads(line[receipt.first - 1])["id"] == f"{number}-{turn}"


def in_the_way_of(house: House, stream: str) -> Path:
    """A file where the folder of a stream's slices would be: nothing of it can be landed."""
    found = house.warehouse / "slices" / stream
    found.parent.mkdir(exist_ok=True)
    found.write_text("")
    return found


def test_a_sender_who_is_to_wait_is_answered_once_its_slice_is_in_the_ledger(tmp_path: Path) -> None:
    house = House(tmp_path / "p", acknowledge="landed", **SLOW)
    with house.open() as gateway:
        entry = sent(gateway, "a", "1")
        receipt = gateway.receipt(entry.id)
        assert receipt is not None
        assert [one.id for one in house.state.slices("a")] == [receipt.slice]
        assert gateway.buffered(entry.id) is None
    assert house.lines("a") == ['{"id":"1","at":1}']
    assert [output.trigger for output in house.outputs] == [CloseTrigger.WAITING]


def test_a_file_or_a_request_with_bounds_is_waited_for_as_well(tmp_path: Path) -> None:
    house = House(tmp_path / "p", acknowledge="landed", **SLOW)
    with house.open() as gateway:
        entry = bounded(gateway, "1", 100, 200)
        assert gateway.receipt(entry.id) is not None
    assert [output.trigger for output in house.outputs] == [CloseTrigger.BOUNDS]


def test_what_does_not_land_is_not_acknowledged_and_lands_all_the_same(tmp_path: Path) -> None:
    house = House(tmp_path / "p", acknowledge="landed", window=ENDLESS)
    in_the_way = in_the_way_of(house, "a")
    with house.open() as gateway:
        refused: Future = Future()
        gateway.submit(Submission("a", "http", b'{"id":"1","at":1}\n', 1), refused.set_result)
        error = refused.result(WAIT)
        assert isinstance(error, UnlandedError)
        assert (error.code, error.retry) == ("storage", Retry.LATER)
        assert sent(gateway, "b", "2").submission.stream == "b"  # other streams are not affected
        assert house.lines("a") == []
        in_the_way.unlink()
        again = sent(gateway, "a", "1")  # behind the first one, which is landed now
        assert gateway.receipt(again.id) is not None
    assert house.lines("a") == 2 * ['{"id":"1","at":1}']  # the gate finds that they are the same event


def test_a_gateway_that_stops_answers_all_who_wait(tmp_path: Path) -> None:
    house = House(tmp_path / "p", acknowledge="landed", window={"min": "1h", "max": "1h"})
    answers: list[Future] = [Future(), Future()]
    in_the_way_of(house, "b")
    with house.open() as gateway:
        for stream, answer in zip("ab", answers, strict=True):
            content = b'{"id":"1","at":1}\n'
            gateway.submit(Submission(stream, "http", content, 1), answer.set_result)
    landed, unlanded = (answer.result(WAIT) for answer in answers)
    assert isinstance(landed, Entry)
    assert isinstance(unlanded, UnlandedError)
    assert house.lines("a") == ['{"id":"1","at":1}']
