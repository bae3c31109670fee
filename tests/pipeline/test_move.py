"""A warehouse in a folder moves to a bucket: the same answers there, whatever interrupts it.

What is expected comes from the records that were sent (`tests.support.damage`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.test_bucket import assert_answers, assert_same_files
from tests.support.bucket_server import BucketServer
from tests.support.damage import Shop, flip

from tidemill.mill import Mill, recover
from tidemill.model.errors import BusyError, ConflictError, DamageError, InputError, StorageError
from tidemill.storage import layout, sending
from tidemill.storage.bucket import Bucket


def name_bucket(shop: Shop, url: str) -> None:
    """As the last line of the command says."""
    file = shop.root / "tidemill.yaml"
    file.write_text(file.read_text().replace("version: 1\n", f"version: 1\nwarehouse: {url}\n"))


def test_a_folder_moves_into_a_bucket(shop: Shop, bucket_server: BucketServer) -> None:
    url = bucket_server.new_url()
    with shop.open() as mill:
        plan = mill.plan_move(url)
        assert Bucket(url).objects("") == []
        done = mill.move(url)
        assert (done.plan, done.sent, plan.there) == (plan, plan.files, 0)
        assert_answers(mill)  # the folder is as it was
    assert_same_files(url, shop.warehouse)
    assert plan.files == len(Bucket(url).objects(""))
    name_bucket(shop, url)
    recover(shop.root, clock=shop.clock)
    with shop.open() as mill:
        mill.run_until_idle()
        assert_answers(mill)
        assert mill.verify().ok


def test_a_move_that_was_interrupted_goes_on(
    shop: Shop, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, put, sent = bucket_server.new_url(), Bucket.put, list[str]()

    def dies(self: Bucket, key: str, content: bytes | Path) -> None:
        if len(sent) >= 40:
            raise OSError("the process is gone")
        sent.append(key)
        put(self, key, content)

    with shop.open() as mill:
        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "put", dies)
            with pytest.raises(StorageError):
                mill.move(url)
        shop.land(mill, 0)  # it goes on in the folder for a while
        mill.run_until_idle()
        there = mill.plan_move(url).there
        assert there >= 40
        done = mill.move(url)
        named = [key for key in sent if sending._NAMED_BY_CONTENT.search(key)]
        assert len(named) > 0
        assert done.plan.files - done.sent >= len(set(named))  # those are not sent again
    assert_same_files(url, shop.warehouse)


def test_what_lands_meanwhile_is_sent_too(
    shop: Shop, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, send, late = bucket_server.new_url(), sending.send, list[str]()

    def lands(*words: object) -> int:
        if not late:
            file = layout.slices(shop.warehouse) / "orders" / "late.json"
            file.write_text("{}")
            late.append("slices/orders/late.json")
        return send(*words)  # type: ignore[arg-type]

    monkeypatch.setattr("tidemill.pipeline.move.send", lands)
    with shop.open() as mill:
        mill.move(url)
    assert Bucket(url).read(late[0]) == b"{}"


def refused(mill: Mill, url: str, kind: type[Exception], said: str | None = None) -> None:
    with pytest.raises(kind, match=said):
        mill.move(url)


def test_other_objects_are_left_alone(shop: Shop, bucket_server: BucketServer) -> None:
    url = bucket_server.new_url()
    Bucket(url).put("notes.txt", b"mine")
    with shop.open() as mill:
        refused(mill, url, ConflictError, "1 objects that this warehouse does not have, notes.txt first")
        Bucket(url).put("state.owner", b"a file on another machine")
        refused(mill, url, ConflictError, "a warehouse with a state of its own")
    assert [one.key for one in Bucket(url).objects("")] == ["notes.txt", "state.owner"]


def test_a_damaged_warehouse_is_not_moved(shop: Shop, bucket_server: BucketServer) -> None:
    url = bucket_server.new_url()
    with shop.open() as mill:
        flip(shop.parts("rollups/orders")[0])
        refused(mill, url, DamageError)
    assert Bucket(url).objects("") == []


def test_a_warehouse_at_work_is_not_moved(shop: Shop, bucket_server: BucketServer) -> None:
    with shop.open() as mill, shop.open() as other, other.warehouse.sharing() as leases:
        assert leases.take("orders")
        refused(mill, bucket_server.new_url(), BusyError, "another process is working")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("warehouse", "not the address of a bucket"),
        ("s3://", "not the address of a bucket"),
        ("s3://bucket/a//b", "cannot be the prefix"),
        ("s3://key:secret@bucket/shop", "holds no credentials"),
    ],
)
def test_an_address_must_be_that_of_a_bucket(shop: Shop, address: str, said: str) -> None:
    with shop.open() as mill, pytest.raises(InputError, match=said) as found:
        mill.plan_move(address)
    assert "secret" not in str(found.value)


def test_a_bucket_is_not_moved(shop: Shop, bucket_server: BucketServer) -> None:
    url = bucket_server.new_url()
    name_bucket(shop, url)
    with shop.open() as mill:
        refused(mill, bucket_server.new_url(), InputError, f"in a bucket already: {url}")
