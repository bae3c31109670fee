"""A warehouse in a bucket: the same answers and the same bytes as in a folder, whatever happens to the
network, the process or the machine.

What is expected comes from the records that were sent (`tests.support.damage`), or from the same story in a
folder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from pathlib import Path

import pytest
from tests.support.bucket_server import FAULTS, BrokenNetwork, BucketServer, Network
from tests.support.damage import (
    CONFIG,
    EVENT_STREAMS,
    SLICES,
    Shop,
    answers,
    composed,
    details,
    expected,
    vectors,
)
from tests.support.postgres_server import PostgresServer

from tidemill.mill import Mill, recover
from tidemill.model.damage import FileKind
from tidemill.model.errors import ConfigError, LeaseLostError, StorageError, TidemillError
from tidemill.model.failpoints import observed
from tidemill.model.names import SHARED_STAGING
from tidemill.model.time import SECOND
from tidemill.pipeline.recover import Recovered
from tidemill.storage import bucket as client
from tidemill.storage.bucket import Bucket
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.layout import TableKind
from tidemill.testing import FakeClock

LOG = re.compile(r"slices/[a-z]+\.ndjson$")
SLICE_FILES = "slices/*/*/*"
NOT_COMPARED = re.compile(r"_delta_log/|_log_copies/|_log_sums/|/_staging|/\.|^\.|^state|warehouse\.id|^wal/")


SOAK = pytest.mark.soak  # each of these plays a story on a server that is written in Python


def new_shop(root: Path, url: str, more: str = "") -> Shop:
    root.mkdir(parents=True)
    (root / "tidemill.yaml").write_text(
        CONFIG.replace("version: 1\n", f"version: 1\nwarehouse: {url}\n{more}")
    )
    return Shop(root)


def play(shop: Shop, slices: int = SLICES) -> None:
    """As `shop_template` is made."""
    with shop.open() as mill:
        for number in range(slices):
            shop.land(mill, number)
            mill.tick()
            shop.clock.advance(SECOND)
        mill.run_until_idle()


def assert_answers(mill: Mill, slices: int = SLICES) -> None:
    for stream in EVENT_STREAMS:
        assert answers(mill, stream) == expected(stream, slices)
    assert composed(mill) == vectors(slices)


def all_details(mill: Mill) -> str:
    return json.dumps({stream: details(mill, stream) for stream in EVENT_STREAMS}, default=str)


@pytest.fixture(scope="module")
def played(bucket_server: BucketServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, str]:
    url = bucket_server.new_url()
    shop = new_shop(tmp_path_factory.mktemp("bucket") / "shop", url)
    play(shop)
    return shop, url


@pytest.fixture
def copied(played: tuple[Shop, str], bucket_server: BucketServer, tmp_path: Path) -> tuple[Shop, str]:
    """The same warehouse under another address, as a machine without a state of its own finds it."""
    shop, url = played
    to = bucket_server.new_url()
    source, target = Bucket(url), Bucket(to)
    for one in source.objects(""):
        if one.key != "state.owner":
            target.put(one.key, source.read(one.key))
    copy = new_shop(tmp_path / "copy", to)
    copy.clock = FakeClock(shop.clock())
    recover(copy.root, clock=copy.clock)
    return copy, to


def test_a_bucket_answers_what_a_folder_answers(played: tuple[Shop, str], shop_template: Shop) -> None:
    with played[0].open() as mill, shop_template.open() as folder:
        assert_answers(mill)
        assert all_details(mill) == all_details(folder)
        assert mill.verify().ok


def test_the_objects_of_a_bucket_are_the_files_of_a_folder(
    played: tuple[Shop, str], shop_template: Shop
) -> None:
    assert_same_files(played[1], shop_template.warehouse)


def assert_same_files(url: str, folder: Path) -> None:
    """Names of parts hold their checksums, and slices are named by their content."""
    objects = {one.key: one.size for one in Bucket(url).objects("") if not NOT_COMPARED.search(one.key)}
    files = {
        name: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not NOT_COMPARED.search(name := path.relative_to(folder).as_posix())
    }
    logs = {key.rpartition("/")[0] for key in objects if re.search(r"/\d{6}\.\d{20}$", key)}
    assert {name for name in objects if name.rpartition("/")[0] not in logs} | logs == set(files)
    assert {name: objects[name] for name in objects if name in files} == {
        name: size for name, size in files.items() if name not in logs
    }
    for log in logs:  # the pieces of a log are what the file holds
        pieces = sorted(name for name in objects if name.startswith(f"{log}/"))
        content = b"".join(Bucket(url).read(piece) for piece in pieces)
        assert content == (folder / log).read_bytes(), log


def test_another_machine_goes_on_where_one_was_lost(copied: tuple[Shop, str]) -> None:
    """The machine is gone with its disk: another one makes a new state from the bucket, and goes on."""
    shop, _ = copied
    with shop.open() as mill:
        mill.run_until_idle()
        assert_answers(mill)
        assert mill.verify().ok
        late = b'{"id": "new", "at": 1705190400000, "shop": "north", "order": "o1", "amount": 1}\n'
        mill.land("orders", late, name="late")
        mill.run_until_idle()
        rows = mill.query("SELECT count FROM orders.sales BETWEEN 2024-01-13 AND 2024-01-16").to_pylist()
        assert [row["count"] for row in rows] == [len(expected("orders")["raw"]) + 1]  # type: ignore[arg-type]


def test_a_bucket_has_one_state(copied: tuple[Shop, str], tmp_path: Path) -> None:
    shop, url = copied
    other = new_shop(tmp_path / "other", url)
    with pytest.raises(StorageError, match="there is no state"):
        other.open()
    recover(other.root, clock=other.clock)
    other.clock = FakeClock(shop.clock())
    with other.open() as mill:
        assert_answers(mill)
    with pytest.raises(StorageError, match="has its state elsewhere: a file on") as refused:
        shop.open()
    assert "tidemill recover" in refused.value.hint


@pytest.mark.parametrize("point", ["raw.before_commit", pytest.param("rollups.before_commit", marks=SOAK)])
def test_a_machine_whose_state_was_replaced_commits_nothing(
    bucket_server: BucketServer, tmp_path: Path, point: str
) -> None:
    """Each has its state in a file, so neither sees the leases of the other."""
    url = bucket_server.new_url()
    one, other = (new_shop(tmp_path / name, url) for name in ("one", "other"))
    versions: list[dict[str, int]] = []
    with one.open() as first:
        one.land(first, 0)

        def recover_there(passed: str) -> None:
            if passed == point and not versions:
                versions.append({})
                Context().run(go_on_there)  # nothing of what this thread holds is known there

        def go_on_there() -> None:
            recover(other.root, clock=other.clock)
            with other.open() as second:
                second.run_until_idle()
                versions[0] = all_versions(second)

        with observed(recover_there), suppress(LeaseLostError):
            first.tick()
        with pytest.raises(LeaseLostError, match="its state elsewhere: a file on"):
            first.tick()
        with pytest.raises(LeaseLostError, match="its state elsewhere") as refused:
            one.land(first, 1)
        assert "tidemill recover" in refused.value.hint
    with other.open() as second:
        assert [all_versions(second)] == versions
        assert_answers(second, 1)
        assert second.verify().ok


PATTERNS = {
    "raw": "raw/orders/*.parquet",
    "rollups": "rollups/orders/level=1h/*.parquet",
    "ids": "gate/orders/*.run",
    "dataset": "datasets/orders/*/*/r1.arrow",
}


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        pytest.param("raw", "flipped", marks=SOAK),
        pytest.param("raw", "deleted", marks=SOAK),
        pytest.param("rollups", "flipped", marks=SOAK),
        pytest.param("rollups", "deleted", marks=SOAK),
        pytest.param("ids", "flipped", marks=SOAK),
        pytest.param("ids", "deleted", marks=SOAK),
        pytest.param("dataset", "deleted", marks=SOAK),
    ],
)
def test_damage_in_a_bucket_is_found_and_repaired(copied: tuple[Shop, str], kind: str, harm: str) -> None:
    shop, url = copied
    with shop.open() as mill:
        before = all_details(mill)
        damaged = sorted(current(mill, PATTERNS[kind]))[0]
        content = bytearray(Bucket(url).read(damaged))
        content[len(content) // 2] ^= 1
        if harm == "flipped":
            Bucket(url).put(damaged, bytes(content))
        else:
            Bucket(url).delete(damaged)
        assert damaged in {one.file for one in mill.scrub().damages}
    with shop.open() as mill:
        mill.repair()
        mill.run_until_idle()
        assert_answers(mill)
        assert all_details(mill) == before
        assert list(mill.scrub().damages) == []


def current(mill: Mill, pattern: str) -> list[str]:
    """The keys of objects that count: parts of a table that were replaced do not."""
    root = mill.project.warehouse
    assert isinstance(root, BucketPath)
    parts = {
        str(path)
        for snapshot in (mill.snapshot("raw", "orders"), mill.snapshot("rollups", "orders"))
        if snapshot is not None
        for path in snapshot.paths()
    }
    return [one.key for one in root.glob(pattern) if one.suffix != ".parquet" or str(one) in parts]


@pytest.mark.parametrize(("slices", "every"), [(1, 61), pytest.param(3, 11, marks=SOAK)], ids=["few", "many"])
def test_a_bad_network_loses_and_doubles_nothing(
    bucket_server: BucketServer, tmp_path: Path, slices: int, every: int
) -> None:
    network = BrokenNetwork(bucket_server, every=every)
    url = bucket_server.new_url()
    with network.running():
        shop = new_shop(tmp_path / "shop", url)
        play(shop, slices)
        with shop.open() as mill:
            assert_answers(mill, slices)
            assert mill.verify().ok
            found = all_details(mill)
    assert all(network.broken[kind] for kind in FAULTS), network.broken
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tidemill.yaml").write_text(CONFIG)
    folder = Shop(tmp_path / "folder")
    play(folder, slices)
    with folder.open() as mill:
        assert found == all_details(mill)  # parts may differ: rounds failed, and were made again
    landed = {
        path.relative_to(folder.warehouse).as_posix(): path for path in folder.warehouse.glob(SLICE_FILES)
    }
    stored = {one.key for one in Bucket(url).objects("slices") if not LOG.search(one.key.rpartition("/")[0])}
    assert stored == set(landed)
    for name, path in landed.items():
        assert Bucket(url).read(name) == path.read_bytes(), name


@SOAK
def test_a_network_that_stalls_loses_and_doubles_nothing(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives up on a request, which the server does all the same, later."""
    monkeypatch.setattr(client, "_TIMEOUT", "1s")
    network = BrokenNetwork(bucket_server, every=29, kinds=["slow"], slow=2.0)
    with network.running():
        shop = new_shop(tmp_path / "shop", bucket_server.new_url())
        play(shop, 1)
        with shop.open() as mill:
            assert_answers(mill, 1)
            assert mill.verify().ok
    assert network.broken["slow"] > 3


class Killed(BaseException):
    """As if the process had died here."""


POINTS = (
    "landing.after_rename",
    "landing.after_log",
    "raw.before_commit",
    "rollups.after_commit",
    "results.after_commit",
    "dataset.after_link",
    "gate.after_merge",
)


@pytest.mark.parametrize(
    "point", ["raw.after_commit", *(pytest.param(point, marks=SOAK) for point in POINTS)]
)
def test_a_process_that_dies_anywhere_leaves_nothing_to_repair(
    bucket_server: BucketServer, tmp_path: Path, point: str
) -> None:
    shop = new_shop(tmp_path / "shop", bucket_server.new_url())
    died = 0

    def die(passed: str) -> None:
        nonlocal died
        if passed == point and not died:
            died += 1
            raise Killed

    landed = 0
    with observed(die):
        for _ in range(3):
            try:
                with shop.open() as mill:
                    while landed < 2:
                        shop.land(mill, landed)  # a sender that got no answer sends again
                        landed += 1
                        mill.tick()
                    mill.run_until_idle()
                break
            except Killed:
                continue
    assert died or point == "gate.after_merge"  # runs are merged when there are many
    with shop.open() as mill:
        mill.run_until_idle()
        assert_answers(mill, 2)
        assert mill.verify().ok


def test_two_machines_share_a_bucket_and_a_server(
    bucket_server: BucketServer, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url, schema = bucket_server.new_url(), postgres_server.new_schema()
    state = f"state: {{url: {postgres_server.url}, schema: {schema}}}\n"
    one, other = (new_shop(tmp_path / name, url, state) for name in ("one", "other"))
    other.clock = one.clock
    with one.open() as first, other.open() as second:
        for number in range(2):
            one.land(first if number % 2 else second, number)
            (second if number % 2 else first).tick()
            one.clock.advance(SECOND)
        first.run_until_idle()
        for mill in (first, second):
            assert_answers(mill, 2)
        assert second.verify().ok
    postgres_server.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def machines(
    bucket_server: BucketServer, postgres_server: PostgresServer, tmp_path: Path
) -> Iterator[tuple[Shop, Shop, Callable[[str], object]]]:
    """Two machines that share a bucket and a server, and what runs a statement in their state."""
    url, schema = bucket_server.new_url(), postgres_server.new_schema()
    state = f"state: {{url: {postgres_server.url}, schema: {schema}}}\n"
    one, other = (new_shop(tmp_path / name, url, state) for name in ("one", "other"))
    other.clock = one.clock
    yield one, other, lambda sql: postgres_server.execute(f"SET search_path = {schema}; {sql}")
    postgres_server.execute(f"DROP SCHEMA {schema} CASCADE")


@SOAK
@pytest.mark.parametrize("point", ["raw.before_commit", "rollups.before_commit"])
def test_a_machine_that_was_replaced_commits_nothing(
    machines: tuple[Shop, Shop, Callable[[str], object]], point: str
) -> None:
    one, other, execute = machines
    with one.open() as first, other.open() as second:
        one.land(first, 0)
        versions: list[dict[str, int]] = []

        def cut_off(passed: str) -> None:
            if passed == point and not versions:
                versions.append({})
                live = second.tick(patient=True).streams  # what the first one works on is left to it
                assert "orders" not in [done.stream for done in live]
                execute("UPDATE leases SET until = 0")
                second.run_until_idle()
                versions[0] = all_versions(second)

        with observed(cut_off), pytest.raises(LeaseLostError, match="another process has taken over"):
            first.tick()
        assert all_versions(second) == versions[0]
        for mill in (first, second):
            assert_answers(mill, 1)
        assert second.verify().ok


def all_versions(mill: Mill) -> dict[str, int]:
    kinds: tuple[TableKind, ...] = ("raw", "quarantine", "rollups", "index")
    found = (mill.snapshot(kind, name) for kind in kinds for name in mill.project.streams)
    return {
        str(one.root.relative_to(mill.project.warehouse)): one.version for one in found if one is not None
    }


@SOAK
def test_recover_on_one_machine_and_a_landing_on_another(
    machines: tuple[Shop, Shop, Callable[[str], object]],
) -> None:
    one, other, _ = machines
    with one.open() as first:
        one.land(first, 0)
        seen: list[Recovered] = []

        def recover_there(passed: str) -> None:
            if passed == "landing.after_rename" and not seen:
                seen.append(recover(other.root, clock=other.clock))

        with observed(recover_there), pytest.raises(StorageError, match="set aside by `tidemill recover`"):
            one.land(first, 1)
        assert [damage.kind for damage in seen[0].left] == [FileKind.SLICE] * len(seen[0].left) != []
        one.land(first, 1)  # as its sender does, who was told
        first.run_until_idle()
        assert_answers(first, 2)
        assert first.verify().ok


def test_a_server_that_cannot_be_reached_is_named_without_secrets(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    shop = new_shop(tmp_path / "shop", bucket_server.new_url())
    said = r"cannot list s3://warehouse/\w+/slices.*cannot be reached"
    with pytest.raises(StorageError, match=said) as found:
        shop.open()
    assert "AWS_ENDPOINT_URL" in found.value.hint
    assert "secret-of-tests" not in json.dumps(found.value.as_dict())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://", "is not the address of a bucket"),
        ("s3://key:secret@bucket/x", "holds no credentials and no options"),
        ("s3://bucket/a/../b", "cannot be the prefix"),
        ("ftp://bucket/x", "is not a folder or bucket"),
    ],
)
def test_addresses_that_name_no_bucket_are_refused(tmp_path: Path, address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        new_shop(tmp_path / "shop", f"'{address}'").open()
    assert isinstance(refused.value, TidemillError)


@SOAK
def test_copies_are_trimmed_and_fetched_again(copied: tuple[Shop, str]) -> None:
    shop, _ = copied
    text = (shop.root / "tidemill.yaml").read_text()
    (shop.root / "tidemill.yaml").write_text(f"{text}\nbucket: {{cache_bytes: 4KiB}}\n")
    with shop.open() as mill:
        mill.run_until_idle()
        local = mill.project.warehouse.plain  # type: ignore[attr-defined]
        parts = list(local.rglob("*.parquet"))
        assert parts
        shop.clock.advance(10**12 * 10_000)  # long after they were used
        assert mill.workers.copies.trim(shop.clock()) >= len(parts) - 1
        assert sum(path.stat().st_size for path in local.rglob("*.parquet")) <= 4096
        assert_answers(mill)


# Of one round over three streams. With nothing to do: three for `state.owner`, one for each log that every
# process may append to. With a slice of each stream, most are those of commits: seven by deltalake to each.
IDLE_REQUESTS = 8
BUSY_REQUESTS = 300


def test_a_round_asks_the_bucket_only_for_what_others_may_have_changed(
    bucket_server: BucketServer, tmp_path: Path
) -> None:
    network = Network(bucket_server)
    with network.running():
        shop = new_shop(tmp_path / "shop", bucket_server.new_url())
        with shop.open() as mill:
            shop.land(mill, 0)
            mill.run_until_idle()
            network.taken()
            assert mill.tick().idle
            idle = network.taken()
            assert len(idle) <= IDLE_REQUESTS, idle
            assert [one for one in idle if any(f"/{name}/" in one for name in mill.project.streams)] == []
            shop.land(mill, 1)
            network.taken()
            assert not mill.tick().idle
            busy = network.taken()
            assert len(busy) <= BUSY_REQUESTS, busy
            assert sum(one.startswith("LIST") for one in busy) <= len(busy) / 2
            with shop.open() as other:  # as another process: what it commits is not remembered here
                shop.land(other, 2)
                other.run_until_idle()
            shop.land(mill, 3)
            mill.run_until_idle()
            assert_answers(mill, 4)
            assert mill.verify().ok


@SOAK
def test_a_copy_of_the_disk_is_not_needed(played: tuple[Shop, str]) -> None:
    """What is on the disk besides the state are copies: without them everything is read from the bucket."""
    shop, _ = played
    local = next((shop.root / ".tidemill").iterdir())
    for path in sorted(local.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
    with shop.open() as mill:
        assert_answers(mill)
        mill.run_until_idle()
        assert mill.verify().ok


@SOAK
def test_what_steps_of_a_job_hand_on_is_in_the_bucket_where_tasks_run_elsewhere(
    bucket_server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED_STAGING, "1")
    url = bucket_server.new_url()
    shop = new_shop(tmp_path / "shop", url)
    staged: set[str] = set()

    def look(passed: str) -> None:
        if passed == "raw.before_commit":
            staged.update(one.key for one in Bucket(url).objects("raw/orders/_staging"))

    with observed(look):
        play(shop, 1)
    assert staged
    with shop.open() as mill:
        assert_answers(mill, 1)
        assert mill.verify().ok
    assert [one.key for one in Bucket(url).objects("") if "/_staging/" in one.key] == []
