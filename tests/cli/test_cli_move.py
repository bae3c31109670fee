"""`tidemill move`: the plan, the move, and what to do next, for people and programs."""

from __future__ import annotations

import pytest
from tests.support.bucket_server import BucketServer
from tests.support.damage import Shop

from tidemill.storage.bucket import Bucket


def test_a_move_is_explained_and_done(
    cli, shop: Shop, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.root)
    url = bucket_server.new_url()
    plan = cli("move", url, "--explain", "--output", "json").json
    assert (plan["url"], plan["there"], Bucket(url).objects("")) == (url, 0, [])
    assert f"{plan['files']:,} files" in cli("move", url, "--explain").out
    done = cli("move", url)
    words = " ".join(done.out.split())
    assert (done.code, len(Bucket(url).objects(""))) == (0, plan["files"])
    assert f"now write `warehouse: {url}` in tidemill.yaml, then run `tidemill recover`" in words
    again = cli("move", url, "--output", "json").json
    assert again["there"] == plan["files"]
    assert again["sent"] < plan["files"]  # files whose names state their content are not sent again


def test_an_address_of_no_bucket_is_refused(cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.root)
    done = cli("move", "elsewhere")
    assert done.code == 2
    assert "not the address of a bucket" in " ".join(done.err.split())
