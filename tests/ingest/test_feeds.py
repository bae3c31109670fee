"""Raw manifests: what is complete is sealed, once, by hand or by the daemon; what is not, waits."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tidemill.ingest import feeds as sourcing
from tidemill.ingest.manifests import RawManifest, dataset_facts
from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import MINUTE, Interval
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from conftest import NewPlant, Plant

START = 1705276800000000  # 2024-01-15
CONFIG = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  klines:
    manifests: ["feed/binance/klines/raw/*/1m/limit=*/manifest.json"]
    format: json
    json: {columns: [open_time, close, trades]}
    schema: {open_time: {type: integer, required: true}, close: string, trades: integer}
    event_time: {column: open_time, type: unixtimestamp_ms}
    gate: none
"""
ROWS = 5  # of a slice


def minute(number: int) -> int:
    return START + number * MINUTE


def answer(number: int, rows: int = ROWS) -> bytes:
    first = number * ROWS
    arrays = [[minute(first + row) // 1000, f"{first + row}.50", row] for row in range(rows)]
    return json.dumps(arrays).encode()


@dataclass
class Feed:
    """A folder as a collector keeps it."""

    folder: Path

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.json"

    def response(self, name: str) -> Path:
        return self.folder / "responses" / f"{name}.json"

    def says(self, *statuses: str) -> None:
        """The manifest anew: slice i has the i-th status."""
        entries = [
            {
                "hash": f"h{number}",
                "status": status,
                "start_ms": minute(number * ROWS) // 1000,
                "end_ms": minute((number + 1) * ROWS) // 1000,
            }
            for number, status in enumerate(statuses)
        ]
        self.writes(entries)

    def writes(self, entries: object) -> None:
        fresh = self.folder / "new"
        fresh.write_text(json.dumps({"slices": entries}))
        fresh.replace(self.manifest)

    def has(self, *numbers: int) -> None:
        for number in numbers:
            self.response(f"h{number}").write_bytes(answer(number))


def feed_of(plant: Plant, symbol: str = "BTCUSDT") -> Feed:
    folder = plant.root / "feed" / "binance" / "klines" / "raw" / symbol / "1m" / "limit=5"
    (folder / "responses").mkdir(parents=True)
    return Feed(folder)


@pytest.fixture
def klines(new_plant: NewPlant) -> Plant:
    return new_plant(CONFIG)


@pytest.fixture
def feed(klines: Plant) -> Feed:
    return feed_of(klines)


def sealed(mill: Mill) -> list[str]:
    """Names of the slices, in the order of the ledger."""
    return [entry.slice.name for entry in mill.state.slices("klines")]


def entry_of(mill: Mill, name: str) -> SliceEntry:
    (found,) = [entry for entry in mill.state.slices("klines") if entry.slice.name == name]
    return found


def closes(plant: Plant) -> list[str]:
    """The close of each row of raw, by time."""
    table = Table.existing(plant.warehouse / "raw" / "klines")
    assert table is not None
    parts = [pq.read_table(path, partitioning=None).to_pylist() for path in table.snapshot().paths()]
    rows = sorted((row for part in parts for row in part), key=lambda row: row["event_time"])
    return [json.loads(row["payload"])["close"] for row in rows]


def test_p5_only_what_is_ok_is_sealed(klines: Plant, feed: Feed) -> None:
    feed.says("ok", "partial", "failed", "empty", "missing", "ok")
    feed.has(0, 1, 2, 3, 5)
    with klines.open() as mill:
        mill.tick()
        assert sealed(mill) == ["h0", "h5"]
        assert {entry.status for entry in mill.state.slices("klines")} == {SliceStatus.ACCEPTED}
        (standing,) = mill.status()
        assert standing.manifests == {"ok": 2, "partial": 1, "failed": 1, "empty": 1, "missing": 1}
        assert mill.verify().ok
    assert closes(klines) == [f"{row}.50" for row in (0, 1, 2, 3, 4, 25, 26, 27, 28, 29)]


def test_a_slice_has_its_bounds_its_name_and_its_dataset(klines: Plant, feed: Feed) -> None:
    feed.says("ok")
    feed.has(0)
    with klines.open() as mill:
        found = mill.sources.land("klines", [feed.folder])
        assert (len(found.done.landed), found.done.refused, found.sealed, found.waiting) == (1, (), 0, {})
        new = found.done.landed[0].entry.slice
    assert (new.name, new.declared) == ("h0", Interval(START, minute(5)))
    assert new.source == "binance/klines/BTCUSDT/1m/limit=5"
    assert json.loads(new.metadata or "") == {
        "dataset": {"source": "binance", "kind": "klines", "symbol": "BTCUSDT", "interval": "1m", "limit": 5},
        "slice_hash": "h0",
    }
    assert (klines.warehouse / new.path).read_bytes() == answer(0)


def test_the_dataset_of_a_stream_is_that_of_its_only_feed(klines: Plant, feed: Feed) -> None:
    with klines.open() as mill:
        assert dataset_facts(mill.state, "klines") == {}
        feed.says("ok", "missing")
        feed.has(0, 1)
        mill.tick()
        facts = {"source": "binance", "kind": "klines", "symbol": "BTCUSDT", "interval": "1m", "limit": 5}
        assert dataset_facts(mill.state, "klines") == facts
        assert facts.items() <= mill.packer.manifest("klines")["dataset"].items()  # type: ignore[attr-defined]
        mill.land("klines", answer(1), source="by hand")
        mill.tick()
        assert dataset_facts(mill.state, "klines") == {}


def test_rows_of_raw_are_objects_with_the_values_as_they_came(klines: Plant, feed: Feed) -> None:
    feed.says("ok")
    feed.response("h0").write_bytes(b'[[1705276800000,"0.0012",3],[1705276860000,null,4],[1,2]]')
    with klines.open() as mill:
        mill.tick()
        assert entry_of(mill, "h0").counts.accepted == 2
        assert entry_of(mill, "h0").counts.rejects == {"malformed": 1}
    table = Table.existing(klines.warehouse / "raw" / "klines")
    assert table is not None
    (path,) = table.snapshot().paths()
    assert pq.read_table(path, partitioning=None).column("payload").to_pylist() == [
        '{"close":"0.0012","open_time":1705276800000,"trades":3}',
        '{"close":null,"open_time":1705276860000,"trades":4}',
    ]


def test_oldest_first_whatever_the_order_of_the_manifest(klines: Plant, feed: Feed) -> None:
    entries = [
        {
            "hash": f"h{n}",
            "status": "ok",
            "start_ms": minute(n * 5) // 1000,
            "end_ms": minute(n * 5 + 5) // 1000,
        }
        for n in (3, 0, 2, 1)
    ]
    feed.writes(entries)
    feed.has(0, 1, 2, 3)
    with klines.open() as mill:
        mill.tick()
        assert sealed(mill) == ["h0", "h1", "h2", "h3"]


def test_a_round_takes_so_many_and_the_next_one_goes_on(
    klines: Plant, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sourcing, "AT_ONCE", 2)
    feed.says("ok", "ok", "ok", "ok", "ok")
    feed.has(0, 1, 2, 3, 4)
    with klines.open() as mill:
        mill.tick()
        assert sealed(mill) == ["h0", "h1"]
        mill.run_until_idle()
        assert sealed(mill) == ["h0", "h1", "h2", "h3", "h4"]
        assert mill.tick().idle


def test_a_partial_one_is_sealed_when_it_is_ok(klines: Plant, feed: Feed) -> None:
    feed.says("ok", "partial")
    feed.has(0)
    feed.response("h1").write_bytes(answer(1, rows=2))
    with klines.open() as mill:
        assert not mill.tick().idle
        assert mill.tick().idle
        assert sealed(mill) == ["h0"]
        feed.has(1)
        feed.says("ok", "ok")
        mill.tick()
        assert sealed(mill) == ["h0", "h1"]
        assert entry_of(mill, "h1").counts.accepted == ROWS
        assert mill.tick().idle
    assert closes(klines) == [f"{row}.50" for row in range(10)]


def test_a_manifest_that_has_not_changed_is_not_read_again(
    klines: Plant, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    whole = sourcing._read

    def counted(path: Path) -> tuple[RawManifest, sourcing.FileVersion]:
        read.append(path)
        return whole(path)

    monkeypatch.setattr(sourcing, "_read", counted)
    feed.says("ok", "failed")
    feed.has(0)
    with klines.open() as mill:
        for _ in range(3):
            mill.tick()
        assert len(read) == 1
        feed.says("ok", "missing")
        mill.tick()
        assert len(read) == 2
        assert sealed(mill) == ["h0"]
    with klines.open() as mill:  # another process looks once, and seals nothing twice
        mill.tick()
        mill.tick()
        assert len(read) == 3
        assert [entry.landings for entry in mill.state.slices("klines")] == [1]


def test_what_is_ok_without_a_response_waits_for_it(
    klines: Plant, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    feed.says("ok", "ok", "ok")
    feed.has(1)
    feed.response("h2").touch()
    with klines.open() as mill, caplog.at_level(logging.WARNING, "tidemill.ingest.feeds"):
        mill.tick()
        mill.tick()
        assert sealed(mill) == ["h1"]
        assert [record.getMessage() for record in caplog.records] == [
            f"{feed.manifest}: slices[0]: the response of h0 does not exist: responses/h0.json",
            f"{feed.manifest}: slices[2]: the response of h2 has no bytes: responses/h2.json",
        ]
        feed.has(0)  # the manifest says so already
        mill.tick()
        assert sealed(mill) == ["h1", "h0"]
        assert len(caplog.records) == 2
        assert mill.sources.land("klines", [feed.manifest]).waiting == {"ok": 1}


def test_other_bytes_of_a_sealed_hash_are_told_and_never_landed(
    klines: Plant, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    feed.says("ok", "ok")
    feed.has(0, 1)
    with klines.open() as mill:
        mill.tick()
        before = mill.state.slices("klines")
        feed.response("h0").write_bytes(answer(0).replace(b"0.50", b"9.99"))
        feed.says("ok", "ok", "missing")
        with caplog.at_level(logging.WARNING, "tidemill.ingest.feeds"):
            mill.tick()
            mill.tick()
        (reported,) = caplog.records
        assert "hash h0 has other bytes than when it was sealed" in reported.getMessage()
        assert mill.state.slices("klines") == before
    with klines.open() as mill:
        found = mill.sources.land("klines", [feed.manifest])
        (refused,) = found.done.refused
        assert (refused.name, found.done.landed, found.sealed) == ("h0", (), 2)
        assert isinstance(refused.error, InputError)
        assert refused.error.where == f"{feed.manifest}: slices[0]"
        assert mill.state.slices("klines") == before
    assert closes(klines) == [f"{row}.50" for row in range(10)]


def test_other_bounds_of_a_sealed_hash_are_told(klines: Plant, feed: Feed) -> None:
    feed.says("ok")
    feed.has(0)
    with klines.open() as mill:
        mill.tick()
        feed.writes([{"hash": "h0", "status": "ok", "start_ms": 0, "end_ms": 60000}])
        (refused,) = mill.sources.land("klines", [feed.manifest]).done.refused
        assert "covered [2024-01-15T00:00:00Z, 2024-01-15T00:05:00Z) when it was sealed" in str(refused.error)
        assert sealed(mill) == ["h0"]


def test_what_is_sealed_stays_whatever_becomes_of_the_feed(klines: Plant, feed: Feed) -> None:
    feed.says("ok", "ok")
    feed.has(0, 1)
    with klines.open() as mill:
        mill.tick()
        feed.response("h0").unlink()
        feed.says("ok", "failed")
        mill.tick()
        assert mill.sources.land("klines", [feed.manifest]).done.refused == ()
        assert sealed(mill) == ["h0", "h1"]
        feed.manifest.unlink()
        mill.tick()
        assert mill.verify().ok


def test_a_retracted_one_does_not_come_back(klines: Plant, feed: Feed) -> None:
    feed.says("ok")
    feed.has(0)
    with klines.open() as mill:
        mill.tick()
        mill.retract(mill.plan_retraction(entry_of(mill, "h0").id, "wrong"))
    with klines.open() as mill:
        mill.run_until_idle()
        assert mill.sources.land("klines", [feed.manifest]).sealed == 1
        assert [entry.status for entry in mill.state.slices("klines")] == [SliceStatus.RETRACTED]


def test_mistakes_stop_neither_their_neighbours_nor_other_manifests(
    klines: Plant, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    feed.has(0, 1)
    good = {"status": "ok", "start_ms": 0, "end_ms": 60000}
    feed.writes([{"hash": "h0", **good}, {"hash": "h1", **good, "status": "fine"}, 5])
    other = feed_of(klines, "ETHUSDT")
    other.manifest.write_text('{"slices": [')
    third = feed_of(klines, "SOLUSDT")
    third.writes([{"hash": "s0", **good}])
    third.response("s0").write_bytes(answer(2))
    with klines.open() as mill, caplog.at_level(logging.WARNING, "tidemill.ingest.feeds"):
        mill.tick()
        mill.tick()
        assert sealed(mill) == ["h0", "s0"]
        assert mill.status()[0].manifests == {"ok": 2, "unreadable": 1}
    places = [record.getMessage().partition("raw/")[2] for record in caplog.records]
    assert places[:2] == [
        "BTCUSDT/1m/limit=5/manifest.json: slices[1].status: is 'fine'",
        "BTCUSDT/1m/limit=5/manifest.json: slices[2]: is not an object",
    ]
    assert places[2].startswith("ETHUSDT/1m/limit=5/manifest.json: is not JSON")
    assert len(places) == 3


def test_no_response_lies_outside_of_the_folder(klines: Plant, feed: Feed, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_bytes(answer(0))
    feed.response("h0").symlink_to(secret)
    feed.response("h1").symlink_to(feed.response("real"))
    feed.response("real").write_bytes(answer(1))
    feed.says("ok", "ok")
    with klines.open() as mill:
        (refused,) = mill.sources.land("klines", [feed.manifest]).done.refused
        assert "the response of h0 leads out of the folder" in str(refused.error)
        assert sealed(mill) == ["h1"]


def test_what_another_process_sealed_is_known(klines: Plant, feed: Feed) -> None:
    feed.says("ok", "missing")
    feed.has(0, 1)
    with klines.open() as daemon, klines.open() as hand:
        daemon.tick()
        feed.says("ok", "ok")
        assert [one.entry.slice.name for one in hand.sources.land("klines", [feed.manifest]).done.landed] == [
            "h1"
        ]
        daemon.tick()
        assert [(entry.slice.name, entry.landings) for entry in daemon.state.slices("klines")] == [
            ("h0", 1),
            ("h1", 1),
        ]


def test_a_state_that_was_recovered_knows_what_is_sealed(klines: Plant, feed: Feed) -> None:
    feed.says("ok", "partial")
    feed.has(0, 1)
    with klines.open() as mill:
        mill.tick()
    (klines.warehouse / "state.db").unlink()
    recover(klines.root, spark=klines.spark, clock=klines.clock)
    feed.says("ok", "ok")
    with klines.open() as mill:
        mill.tick()
        assert [(entry.slice.name, entry.landings) for entry in mill.state.slices("klines")] == [
            ("h0", 1),
            ("h1", 1),
        ]


def test_a_file_of_the_same_name_is_no_hash(klines: Plant, feed: Feed) -> None:
    feed.says("ok")
    feed.has(0)
    with klines.open() as mill:
        mill.land("klines", answer(7), name="h0")
        mill.tick()
        assert sealed(mill) == ["h0", "h0"]


@pytest.mark.parametrize("point", ["landing.after_temp", "landing.after_rename", "landing.after_ledger"])
def test_a_crash_while_it_lands_loses_nothing_and_doubles_nothing(
    klines: Plant, feed: Feed, tmp_path: Path, point: str
) -> None:
    feed.says("ok", "ok", "partial")
    feed.has(0, 1)
    copies: list[Plant] = []
    one_at_a_time = threading.Lock()  # several files are copied at once when they land

    def keep(passed: str) -> None:
        with one_at_a_time:
            if passed == point and not copies:
                copies.append(klines.copy(tmp_path / "crashed"))

    with klines.open() as mill, observed(keep):
        mill.sources.land("klines", [feed.manifest])
    (crashed,) = copies
    with crashed.open() as mill:
        mill.run_until_idle()
        assert [(entry.slice.name, entry.landings) for entry in mill.state.slices("klines")] == [
            ("h0", 1),
            ("h1", 1),
        ]
        assert mill.verify().ok
    assert closes(crashed) == [f"{row}.50" for row in range(10)]


def test_on_spark_it_is_the_same(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG.replace("memory: 512m", "memory: 512m, inline_bytes: 0"))
    feed = feed_of(plant)
    feed.says("ok", "failed", "ok")
    feed.has(0, 2)
    with plant.open() as mill:
        mill.tick()
        assert sealed(mill) == ["h0", "h2"]
    assert closes(plant) == [f"{row}.50" for row in (0, 1, 2, 3, 4, 10, 11, 12, 13, 14)]


def test_a_gated_stream_takes_each_event_once(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG.replace("gate: none", "identity: open_time"))
    feed = feed_of(plant)
    feed.says("ok", "ok")
    feed.has(0)
    feed.response("h1").write_bytes(answer(0, rows=3))
    with plant.open() as mill:
        mill.tick()
        assert entry_of(mill, "h1").counts.duplicate == 3
        assert mill.verify().ok
    assert closes(plant) == [f"{row}.50" for row in range(5)]


def test_names_that_lead_to_no_manifest_are_refused(klines: Plant, feed: Feed, tmp_path: Path) -> None:
    feed.says("ok")
    feed.has(0)
    with klines.open() as mill:
        found = mill.sources.land(
            "klines", [tmp_path / "nowhere.json", "-", feed.folder.parent / "*" / "manifest.json"]
        )
        assert [refused.name for refused in found.done.refused] == [str(tmp_path / "nowhere.json"), "-"]
        assert [one.entry.slice.name for one in found.done.landed] == ["h0"]


CUT = answer(0)[:-7]
PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
WRAPPED = b'{"code": -1121, "msg": "Invalid symbol."}'


@pytest.mark.parametrize("bad", [CUT, PAGE, WRAPPED], ids=["cut", "page", "another answer"])
def test_a_response_that_is_not_whole_is_not_taken_until_its_bytes_change(
    klines: Plant, feed: Feed, bad: bytes
) -> None:
    feed.has(1)
    feed.response("h0").write_bytes(bad)
    feed.says("ok", "ok")
    with klines.open() as mill:
        mill.run_until_idle()
        assert [entry.slice.name for entry in mill.state.slices()] == ["h1"]
        output = mill.sources.land("klines", [feed.manifest])
        assert (output.sealed, output.waiting) == (1, {"failed": 1})
        assert [refused.error.code for refused in output.done.refused] == ["bad_response"]
        feed.response("h0").write_bytes(answer(0))
        mill.run_until_idle()
        assert sorted(entry.slice.name for entry in mill.state.slices()) == ["h0", "h1"]
        assert mill.status()[0].raw_rows == 2 * ROWS


def test_a_retraction_reopens_a_hash_for_other_bytes(klines: Plant, feed: Feed) -> None:
    feed.has(0)
    feed.says("ok")
    with klines.open() as mill:
        mill.run_until_idle()
        (first,) = mill.state.slices()
        mill.retract(mill.plan_retraction(first.id, "the exchange corrected it"))
        mill.run_until_idle()
        assert mill.status()[0].raw_rows == 0
        feed.response("h0").write_bytes(answer(0, rows=3))
        mill.run_until_idle()
        assert [entry.status for entry in mill.state.slices()] == [
            SliceStatus.RETRACTED,
            SliceStatus.ACCEPTED,
        ]
        assert mill.status()[0].raw_rows == 3


def test_an_empty_answer_covers_its_span(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG + "    aggregation_span: 5m\n    coverage: declared\n")
    feed = feed_of(plant)
    feed.has(0)
    feed.says("ok", "empty")
    with plant.open() as mill:
        mill.run_until_idle()
        assert [window.rows for window in mill.state.windows("klines")] == [ROWS, 0]
        mill.sources.land("klines", [feed.manifest])
        assert [entry.landings for entry in mill.state.slices()] == [1, 1]
        feed.has(1)
        feed.says("ok", "ok")
        mill.run_until_idle()
        assert mill.status()[0].raw_rows == 2 * ROWS


def says_as(feed: Feed, prefix: str, count: int) -> None:
    """All complete, under hashes of their own, with prices of their own."""
    entries = []
    for number in range(count):
        name = f"{prefix}{number}"
        feed.response(name).write_bytes(answer(number).replace(b".50", f".{ord(prefix)}".encode()))
        bounds = {
            "start_ms": minute(number * ROWS) // 1000,
            "end_ms": minute((number + 1) * ROWS) // 1000,
        }
        entries.append({"hash": name, "status": "ok", **bounds})
    feed.writes(entries)


def test_what_a_feed_declares_is_never_packed_together(new_plant: NewPlant) -> None:
    apart = CONFIG.replace(
        'manifests: ["feed/binance/klines/raw/*/1m/limit=*/manifest.json"]',
        'manifests: {files: ["feed/binance/klines/raw/*/1m/limit=*/manifest.json"], partition_by: [symbol]}',
    )
    plant = new_plant(apart + "    pack: {slices: 3}\n")
    says_as(feed_of(plant, "BTCUSDT"), "b", 4)
    says_as(feed_of(plant, "ETHUSDT"), "e", 4)
    with plant.open() as mill:
        mill.run_until_idle()
        mill.pack("klines")
        ours = {entry.id: entry.slice.name for entry in mill.state.slices("klines")}
        reported = mill.packer.manifest("klines")["parts"]
        assert mill.verify().ok
    assert isinstance(reported, list)
    packed = {part["partition"]["symbol"]: sorted(part["feed_hashes"]) for part in reported}
    assert packed == {"BTCUSDT": ["b0", "b1", "b2"], "ETHUSDT": ["e0", "e1", "e2"]}
    for part in reported:
        assert [ours[one] for one in part["slice_hashes"]] == part["feed_hashes"]


def test_a_bad_response_then_a_good_one_then_a_retraction(klines: Plant, feed: Feed) -> None:
    """As a user meets it: a cut answer and an error page take nothing; the mended ones land; a slice that is
    taken back makes way for other bytes under its hash."""
    feed.says("ok", "ok")
    feed.response("h0").write_bytes(answer(0)[:-20])
    feed.response("h1").write_bytes(b"<html><body>502 Bad Gateway</body></html>")
    with klines.open() as mill:
        mill.tick()
        assert sealed(mill) == []
        feed.has(0, 1)
        mill.tick()
        assert sealed(mill) == ["h0", "h1"]
        assert entry_of(mill, "h0").counts.accepted == ROWS
        mill.retract(mill.plan_retraction(entry_of(mill, "h1").id, "wrong numbers"))
        feed.response("h1").write_bytes(answer(1, rows=3))
        mill.run_until_idle()
        again = [entry for entry in mill.state.slices("klines") if entry.slice.name == "h1"]
        assert [entry.status for entry in again] == [SliceStatus.RETRACTED, SliceStatus.ACCEPTED]
        assert again[1].counts.accepted == 3
