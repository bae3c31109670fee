"""Landing: the order of durability, one slice for the same bytes, and what a crash leaves."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from tests.support.patience import PATIENCE

from tidemill.ingest.interrupted_landings import Adopted, adopt, has_landings
from tidemill.ingest.landing import Landing
from tidemill.ingest.landing_log import scan_slices
from tidemill.model.errors import InputError, StorageError
from tidemill.model.failpoints import EXIT_CODE
from tidemill.model.slices import Codec, Format, slice_id
from tidemill.model.time import DAY, Interval, parse_instant
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite import open_state

NOON = parse_instant("2024-01-15T12:00:00Z")
LINE = b'{"id": "a", "n": 1}\n'
NOTHING = Adopted((), (), ())


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return folder


@pytest.fixture
def state(warehouse: Path) -> Iterator[State]:
    opened = open_state(warehouse / "state.db")
    yield opened
    opened.close()


@pytest.fixture
def landing(warehouse: Path, state: State) -> Landing:
    return Landing(warehouse, state)


def test_a_file_name_that_is_no_text_is_kept_as_text(warehouse: Path, state: State, landing: Landing) -> None:
    named = Path(os.fsdecode(bytes(warehouse.parent) + b"/caf\xe9.ndjson"))
    named.write_bytes(LINE)
    (one,) = landing.land_many("events", [named], arrival=NOON).landed
    assert one.entry.slice.name == "caf\ufffd.ndjson"
    assert landing.land_bytes("events", b'{"id": "b"}\n', arrival=NOON).entry.seq == 2
    assert [entry.slice.name for entry in scan_slices(warehouse)] == ["caf\ufffd.ndjson", "bytes"]


def files_of(warehouse: Path) -> list[str]:
    """Slice files and whatever else lies where slices are, without log and locks."""
    found = (path for path in (warehouse / "slices").rglob("*") if path.is_file())
    names = sorted(path.relative_to(warehouse / "slices").as_posix() for path in found)
    return [name for name in names if name not in ("landings.ndjson", ".landings.ndjson.lock")]


def test_a_file_becomes_a_slice_with_its_bytes_and_facts(
    warehouse: Path, landing: Landing, tmp_path: Path
) -> None:
    source = tmp_path / "feed.ndjson"
    source.write_bytes(LINE)
    covers = Interval(NOON - DAY, NOON)
    landed = landing.land_file("requests", source, arrival=NOON, declared=covers, source="partner")
    new = landed.entry.slice
    assert landed.new
    assert landed.entry.seq == 1
    assert new.id == slice_id("requests", covers, hashlib.sha256(LINE).hexdigest())
    assert new.path == f"slices/requests/2024-01-15/{new.id}.ndjson"
    assert (warehouse / new.path).read_bytes() == LINE
    assert (new.source, new.name) == ("partner", "feed.ndjson")
    assert (new.format, new.codec) == (Format.NDJSON, Codec.NONE)
    assert (new.size, new.arrival, new.declared) == (len(LINE), NOON, covers)
    assert files_of(warehouse) == [f"requests/2024-01-15/{new.id}.ndjson"]


def test_a_slice_does_not_change_when_its_sender_writes_on(
    warehouse: Path, landing: Landing, tmp_path: Path
) -> None:
    source = tmp_path / "feed.ndjson"
    source.write_bytes(LINE)
    path = warehouse / landing.land_file("requests", source, arrival=NOON).entry.slice.path
    with source.open("r+b") as file:
        file.write(b"XXXX")
    assert path.read_bytes() == LINE


def test_the_same_bytes_again_are_the_same_slice_also_on_another_day(
    warehouse: Path, landing: Landing, state: State
) -> None:
    first = landing.land_bytes("requests", LINE, arrival=NOON)
    again = landing.land_bytes("requests", LINE, arrival=NOON + DAY, name="other")
    assert (first.new, again.new) == (True, False)
    assert again.entry.landings == 2
    assert again.entry.slice == first.entry.slice
    assert state.slices() == [again.entry]
    assert files_of(warehouse) == [f"requests/2024-01-15/{first.entry.id}.ndjson"]


def test_other_bounds_or_another_stream_make_another_slice(landing: Landing, state: State) -> None:
    landing.land_bytes("requests", LINE, arrival=NOON)
    landing.land_bytes("requests", LINE, arrival=NOON, declared=Interval(0, NOON))
    landing.land_bytes("other", LINE, arrival=NOON)
    assert [entry.seq for entry in state.slices()] == [1, 2, 3]


def test_many_files_keep_their_order_and_one_bad_one_stops_nobody(
    warehouse: Path, landing: Landing, tmp_path: Path
) -> None:
    for name, content in (
        ("b.ndjson", LINE),
        ("a.json", b"[1]"),
        ("broken.ndjson.gz", gzip.compress(LINE * 50)[:-6]),
        ("same.ndjson", LINE),
        ("z.csv", b"id,n\na,1\n"),
    ):
        (tmp_path / name).write_bytes(content)
    names = ["b.ndjson", "a.json", "broken.ndjson.gz", "missing.ndjson", "same.ndjson", "z.csv"]
    reported: list[object] = []
    result = landing.land_many(
        "requests", [tmp_path / name for name in names], arrival=NOON, progress=reported.append
    )
    assert [(one.entry.slice.name, one.entry.seq, one.new) for one in result.landed] == [
        ("b.ndjson", 1, True),
        ("a.json", 2, True),
        ("b.ndjson", 1, False),
        ("z.csv", 3, True),
    ]
    assert [Path(one.name).name for one in result.refused] == ["broken.ndjson.gz", "missing.ndjson"]
    assert all(isinstance(one.error, InputError) and one.error.hint for one in result.refused)
    assert reported == [*result.landed, *result.refused]
    assert len(files_of(warehouse)) == 3


def test_standard_input_and_any_readable_object_can_be_landed(warehouse: Path, landing: Landing) -> None:
    stream = io.BytesIO(zstandard.compress(LINE * 100_000))
    new = landing.land_stream("requests", stream, arrival=NOON).entry.slice
    assert (new.format, new.codec, new.name) == (Format.NDJSON, Codec.ZSTD, "stdin")
    assert new.path.endswith(".ndjson.zst")
    assert not stream.closed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.ndjson", b"", "is empty"),
        ("empty.ndjson.gz", gzip.compress(b""), "is empty"),
        ("cut.ndjson.gz", gzip.compress(os.urandom(9000).hex().encode())[:4000], "cannot be unpacked"),
        ("cut.ndjson.zst", zstandard.compress(os.urandom(9000).hex().encode())[:-3], "cannot be unpacked"),
        ("not.ndjson.gz", LINE, "its name says gzip, its content is not compressed"),
        ("not.parquet", LINE, "its name says parquet, its content is text"),
        ("cut.parquet", b"PAR1" + bytes(100), "is not a whole parquet file"),
        ("cut.arrow", b"ARROW1\0\0" + bytes(100), "is not a whole arrow file"),
        ("binary.ndjson", bytes(range(256)) * 4, "is binary"),
    ],
)
def test_what_cannot_be_used_is_refused_and_leaves_nothing(
    warehouse: Path, landing: Landing, state: State, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        landing.land_bytes("requests", content, arrival=NOON, name=name)
    assert caught.value.where == name
    assert caught.value.hint
    assert files_of(warehouse) == []
    assert state.landings() == 0


def test_an_empty_file_that_says_what_it_covers_is_a_slice(landing: Landing) -> None:
    landed = landing.land_bytes("requests", b"", arrival=NOON, declared=Interval(0, NOON))
    assert (landed.entry.slice.size, landed.entry.slice.format) == (0, Format.NDJSON)


def test_a_stream_name_cannot_lead_out_of_the_warehouse(landing: Landing) -> None:
    with pytest.raises(InputError, match="not allowed"):
        landing.land_bytes("../../etc", LINE, arrival=NOON)


def test_a_full_disk_is_said_and_leaves_nothing(warehouse: Path, state: State) -> None:
    import resource

    landing = Landing(warehouse, state)
    landing.land_bytes("requests", LINE, arrival=NOON)
    before = files_of(warehouse)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(StorageError) as caught:
            landing.land_bytes("requests", LINE * 100_000, arrival=NOON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.hint
    assert files_of(warehouse) == before
    assert adopt(warehouse, state) == NOTHING


_CRASH = """
import sys
from pathlib import Path
from tidemill.ingest.landing import Landing
from tidemill.storage.state.sqlite import open_state
warehouse = Path(sys.argv[1])
landing = Landing(warehouse, open_state(warehouse / "state.db"))
landing.land_many("requests", [Path(name) for name in sys.argv[3:]], arrival=int(sys.argv[2]))
"""


def crash(warehouse: Path, point: str, *sources: Path, arrival: int = NOON) -> None:
    environment = {**os.environ, "TIDEMILL_FAILPOINT": point}
    command = [sys.executable, "-c", _CRASH, str(warehouse), str(arrival), *map(str, sources)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=PATIENCE)
    assert done.returncode == EXIT_CODE, done.stderr


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.ndjson", tmp_path / "two.ndjson"]
    for number, path in enumerate(paths):
        path.write_bytes(LINE * (number + 1))
    return paths


@pytest.mark.parametrize(
    ("point", "entered"),
    [
        ("landing.after_temp", 0),
        ("landing.after_temp:2", 0),
        ("landing.after_rename", 2),
        ("landing.after_log", 2),
        ("landing.after_ledger", 2),
    ],
)
def test_after_a_crash_slices_are_adopted_or_gone(
    warehouse: Path, state: State, landing: Landing, sources: list[Path], point: str, entered: int
) -> None:
    landing.land_bytes("requests", b'{"first": 1}\n', arrival=NOON)
    crash(warehouse, point, *sources)
    result = adopt(warehouse, state)
    assert len(state.slices()) == 1 + entered
    assert len(files_of(warehouse)) == 1 + entered
    assert [entry.slice.name for entry in state.slices()][1:] == ["one.ndjson", "two.ndjson"][:entered]
    assert bool(result.removed) == (entered == 0)
    assert result.set_aside == ()
    assert adopt(warehouse, state, thorough=True) == NOTHING
    assert scan_slices(warehouse) == state.slices()

    again = landing.land_many("requests", sources, arrival=NOON + DAY)
    assert [one.new for one in again.landed] == [entered == 0] * 2
    assert len(files_of(warehouse)) == 3
    assert scan_slices(warehouse) == state.slices()


def test_the_next_landing_heals_what_nobody_adopted(
    warehouse: Path, state: State, landing: Landing, sources: list[Path]
) -> None:
    crash(warehouse, "landing.after_log", *sources)
    landed = landing.land_bytes("requests", b'{"later": 1}\n', arrival=NOON)
    assert [entry.slice.name for entry in state.slices()] == ["one.ndjson", "two.ndjson", "bytes"]
    assert landed.entry.seq == 3


def test_what_landed_twice_because_of_a_crash_is_kept_once(
    warehouse: Path, state: State, landing: Landing, sources: list[Path]
) -> None:
    crash(warehouse, "landing.after_rename", sources[0])
    landed = landing.land_file("requests", sources[0], arrival=NOON + DAY)
    assert len(files_of(warehouse)) == 3  # both copies and the note
    result = adopt(warehouse, state)
    assert result.removed == (landed.entry.slice.path.replace("2024-01-16", "2024-01-15"),)
    assert files_of(warehouse) == [f"requests/2024-01-16/{landed.entry.id}.ndjson"]


def test_a_power_cut_that_took_the_note_leaves_slices_that_are_set_aside(
    warehouse: Path, state: State, landing: Landing, sources: list[Path]
) -> None:
    crash(warehouse, "landing.after_rename", sources[0])
    crash(warehouse, "landing.after_temp", sources[1])
    for note in (warehouse / "slices" / ".inflight").iterdir():
        note.unlink()
    assert adopt(warehouse, state) == NOTHING
    result = adopt(warehouse, state, thorough=True)
    id_ = slice_id("requests", None, hashlib.sha256(LINE).hexdigest())
    assert result.set_aside == (f"slices/_orphans/requests/{id_}.ndjson",)
    assert len(result.removed) == 1
    assert (warehouse / result.set_aside[0]).read_bytes() == LINE
    landing.land_file("requests", sources[0], arrival=NOON)
    assert adopt(warehouse, state, thorough=True).removed == result.set_aside


def test_a_live_landing_is_left_alone(warehouse: Path, state: State, landing: Landing) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            piece = super().read(size)
            if not piece:  # all is copied, nothing is named yet
                assert adopt(warehouse, state, thorough=True) == NOTHING
            return piece

    assert landing.land_stream("requests", Slow(LINE), arrival=NOON).new
    assert len(files_of(warehouse)) == 1


def test_the_ledger_is_the_same_when_it_is_rebuilt(warehouse: Path, state: State, landing: Landing) -> None:
    for number in (3, 1, 2, 1, 3):  # arrivals out of order on purpose: the ledger's order is its own
        content = LINE * number
        landing.land_bytes("requests", content, arrival=NOON - number * DAY, declared=Interval(0, number))
    landing.land_bytes("other", LINE, arrival=NOON, name="ü\n.ndjson")
    rebuilt = scan_slices(warehouse)
    assert rebuilt == state.slices()
    assert [(entry.seq, entry.landings) for entry in rebuilt] == [(1, 2), (2, 2), (3, 1), (4, 1)]

    before = state.dump()
    state.close()
    (warehouse / "state.db").unlink()
    assert has_landings(warehouse)
    fresh = open_state(warehouse / "state.db")
    with pytest.raises(StorageError, match="knows 0 landings, the warehouse has 6") as caught:
        Landing(warehouse, fresh).land_bytes("requests", b"{}", arrival=NOON)
    assert "tidemill recover" in caught.value.hint
    fresh.restore(scan_slices(warehouse), [])
    assert fresh.dump() == before
    assert Landing(warehouse, fresh).land_bytes("requests", b"{}", arrival=NOON).entry.seq == 5
    fresh.close()


def test_a_lost_log_is_written_again_from_the_state(warehouse: Path, state: State, landing: Landing) -> None:
    for number in (1, 2, 1):
        landing.land_bytes("requests", LINE * number, arrival=NOON)
    (warehouse / "slices" / "landings.ndjson").unlink()
    landing.land_bytes("requests", LINE * 3, arrival=NOON)
    assert scan_slices(warehouse) == state.slices()


@pytest.mark.parametrize("tail", [b'{"n":3,"gro', b"\0" * 700, b"\0\0\n\0\0\n"])
def test_half_an_append_is_cut_off(warehouse: Path, state: State, landing: Landing, tail: bytes) -> None:
    landing.land_bytes("requests", LINE, arrival=NOON)
    log = warehouse / "slices" / "landings.ndjson"
    whole = log.read_bytes()
    log.write_bytes(whole + tail)
    assert len(scan_slices(warehouse)) == 1
    adopt(warehouse, state)
    assert log.read_bytes() == whole
    landing.land_bytes("requests", LINE * 2, arrival=NOON)
    assert [json.loads(line)["n"] for line in log.read_text().splitlines()] == [1, 2]


def test_damage_in_the_middle_of_the_log_is_not_passed_over(warehouse: Path, landing: Landing) -> None:
    landing.land_bytes("requests", LINE, arrival=NOON)
    log = warehouse / "slices" / "landings.ndjson"
    log.write_bytes(b"damaged\n" + log.read_bytes())
    with pytest.raises(StorageError, match="line 1 is not the one that was written there"):
        scan_slices(warehouse)


def _land_all(warehouse: Path, numbers: range) -> None:
    state = open_state(warehouse / "state.db")
    landing = Landing(warehouse, state)
    for number in numbers:
        landing.land_bytes("requests", LINE * (number + 1), arrival=NOON + number % 2 * DAY)
    state.close()


def test_processes_landing_the_same_at_once_agree_on_one_ledger(warehouse: Path, state: State) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_land_all, args=(warehouse, range(20))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]
    entries = state.slices()
    assert [entry.landings for entry in entries] == [2] * 20
    assert len(files_of(warehouse)) == 20
    assert scan_slices(warehouse) == entries
    assert adopt(warehouse, state, thorough=True) == NOTHING


def test_files_hashed_side_by_side_become_the_slices_that_they_are_one_by_one(
    warehouse: Path, landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {f"{number}.ndjson": LINE * (1 + 9000 * number) for number in range(5)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    gone = tmp_path / "gone.ndjson"
    monkeypatch.setattr("tidemill.ingest.landing._is_hashed_together", lambda _sizes: True)
    done = landing.land_many("requests", [gone, *(tmp_path / name for name in contents)], arrival=NOON)
    assert [one.name for one in done.refused] == [str(gone)]
    assert [one.entry.slice.name for one in done.landed] == list(contents)
    for one, content in zip(done.landed, contents.values(), strict=True):
        assert one.entry.id == slice_id("requests", None, hashlib.sha256(content).hexdigest())
        assert (warehouse / one.entry.slice.path).read_bytes() == content
    again = landing.land_many("requests", [tmp_path / "1.ndjson", tmp_path / "3.ndjson"], arrival=NOON + 1)
    assert [(one.new, one.entry.landings) for one in again.landed] == [(False, 2), (False, 2)]
    assert len(files_of(warehouse)) == len(contents)
