"""What a holder of leases knows about a bucket: when it may rely on it, and when it must look again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.bucket_server import BucketServer, Network

from tidemill.model.errors import StorageError
from tidemill.model.names import bucket_folder
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.leases import sharing, tenure_of, working
from tidemill.storage.state.opening import open_store
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.table import Table
from tidemill.storage.tenure import MISSING, Tenures

LONG = 3600 * 10**6  # no test takes so long
SCHEMA = pa.schema([("n", pa.int64())])
APPLES = Path("raw/apples")


def test_a_tenure_goes_on_while_each_lease_follows_one_of_the_same_mill() -> None:
    tenures = Tenures()
    tenures.begin("apples", 7, follows=None).record_seen(APPLES, 3)
    assert tenures.begin("apples", 9, follows=7).versions == {APPLES: 3}
    assert tenures.begin("apples", 12, follows=9).versions == {APPLES: 3}
    assert tenures.begin("pears", 13, follows=12).versions == {}


@pytest.mark.parametrize("follows", [None, 8, 6], ids=["not given back", "of another", "of an old state"])
def test_a_tenure_ends_when_another_may_have_worked(follows: int | None) -> None:
    tenures = Tenures()
    tenures.begin("apples", 7, follows=None).record_seen(APPLES, 3)
    assert tenures.begin("apples", 9, follows=follows).versions == {}


def test_a_tenure_ends_after_a_fault() -> None:
    tenures = Tenures()
    tenures.begin("apples", 7, follows=None).record_seen(APPLES, 3)
    tenures.end("apples")
    assert tenures.begin("apples", 9, follows=7).versions == {}


def test_a_table_to_which_a_commit_may_arrive_is_never_known() -> None:
    tenure = Tenures().begin("apples", 7, follows=None)
    tenure.record_seen(APPLES, 3)
    tenure.doubt(APPLES)
    tenure.record_seen(APPLES, 3)
    assert tenure.versions == {}


# -- leases on a warehouse in a bucket


@pytest.fixture
def root(bucket_server: BucketServer, tmp_path: Path) -> BucketPath:
    return BucketPath(tmp_path / bucket_folder(bucket_server.new_url()))


@pytest.fixture
def state(root: BucketPath) -> Iterator[State]:
    opened = open_store(root)
    yield opened
    opened.close()


@pytest.fixture
def network(bucket_server: BucketServer) -> Iterator[Network]:
    network = Network(bucket_server)
    with network.running():
        yield network


def looks(network: Network) -> list[str]:
    """The requests since the last call, without those that ask which state the warehouse has."""
    return [one for one in network.taken() if not one.endswith("/state.owner")]


def opened(root: Path) -> Table:
    return Table.open(root / "raw" / "apples", schema=SCHEMA, name="apples")


def change(table: Table) -> None:
    table.commit([], info={"changed": "nothing"})


def test_the_holder_of_a_lease_looks_once(network: Network, root: BucketPath, state: State) -> None:
    tenures = Tenures()
    with sharing(root, state, LONG, tenures) as held:
        assert held.take("apples")
        table, other = opened(root), opened(root)
        change(table)
        network.taken()
        assert [table.refresh(), table.refresh()] == [1, 1]
        assert looks(network) == []
        assert other.refresh() == 1  # a commit of the same holder is known, and read
        network.taken()
        assert other.refresh() == 1
        assert looks(network) == []
    with sharing(root, state, LONG, tenures) as held:
        assert held.take("apples")
        assert table.refresh() == 1
        assert looks(network) == []
    assert table.refresh() == 1  # without a lease
    assert len(looks(network)) == 1


@pytest.mark.parametrize("alone", [False, True])
def test_what_another_holder_commits_is_seen(root: BucketPath, state: State, alone: bool) -> None:
    tenures = Tenures()
    with sharing(root, state, LONG, tenures) as held:
        assert held.take("apples")
        table = opened(root)
    with working(root, state, LONG, ["apples"], "pack") if alone else sharing(root, state, LONG) as held:
        assert held.take("apples")
        change(opened(root))
    with sharing(root, state, LONG, tenures) as held:
        assert held.take("apples")
        assert table.refresh() == 1
        change(table)
        assert table.version == 2


def test_what_is_committed_without_a_lease_in_the_same_process_is_seen(
    root: BucketPath, state: State
) -> None:
    tenures = Tenures()
    with sharing(root, state, LONG, tenures) as held:
        assert held.take("apples")
        table = opened(root)
    change(opened(root))
    with sharing(root, state, LONG, tenures) as held:
        assert held.take("apples")
        assert table.refresh() == 1


def test_a_table_that_does_not_exist_is_looked_for_once(
    network: Network, root: BucketPath, state: State
) -> None:
    with sharing(root, state, LONG) as held:
        assert held.take("apples")
        assert Table.existing(root / "raw" / "apples") is None
        network.taken()
        assert Table.existing(root / "raw" / "apples") is None
        assert looks(network) == []
        known = tenure_of(root / "raw" / "apples")
        assert known is not None
        assert known.versions == {root / "raw" / "apples": MISSING}
        assert opened(root).version == 0
        found = Table.existing(root / "raw" / "apples")
        assert found is not None
        assert found.version == 0


class Silent:
    """A table of deltalake whose commits get no answer."""

    def __init__(self, delta: object) -> None:
        self._delta = delta

    def __getattr__(self, name: str) -> object:
        return getattr(self._delta, name)

    def create_write_transaction(self, *_: object, **__: object) -> None:
        raise OSError("Generic S3 error: Error performing PUT: operation timed out")


def test_after_a_commit_without_an_answer_the_table_is_looked_at_each_time(
    network: Network, root: BucketPath, state: State
) -> None:
    with sharing(root, state, LONG) as held:
        assert held.take("apples")
        table = opened(root)
        table._delta, real = Silent(table._delta), table._delta  # type: ignore[assignment]
        with pytest.raises(StorageError, match="did not answer in time"):
            change(table)
        table._delta = real
        change(opened(root))  # it arrives after all
        network.taken()
        assert [table.refresh(), table.refresh()] == [1, 1]
        assert [one for one in network.taken() if one.startswith("LIST")] != []
        table.refresh()
        assert len(looks(network)) == 1


def test_on_a_local_disk_nothing_is_remembered(tmp_path: Path) -> None:
    state = open_store(tmp_path)
    with sharing(tmp_path, state, LONG) as held:
        assert held.take("apples")
        assert tenure_of(tmp_path / "raw" / "apples") is None
    state.close()
