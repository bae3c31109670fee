"""The index is a pure function of raw: it follows it, survives crashes, and can be made again to the byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.search_mill import NOON, PATHS, SearchMill, event

from tidemill.model.failpoints import observed
from tidemill.model.time import DAY, HOUR, Interval
from tidemill.outputs.index.indexer import Indexer
from tidemill.storage.tables.parts import read_footer


@pytest.fixture
def plant(tmp_path: Path) -> SearchMill:
    made = SearchMill(tmp_path / "plant")
    made.land([event("a", 1, region="eu", status=200), event("b", 2, tenant="beta", region="us", status=500)])
    made.land([event("c", 3, region="eu", tags=["x", "y", "x"], user={"plan": "pro"})])
    return made


def test_every_raw_part_has_an_index_part_that_says_whose_it_is(plant: SearchMill) -> None:
    indexer = plant.indexer()
    done = indexer.refresh(plant.clock())
    raw = indexer.raw.snapshot()
    assert (done.built, done.removed, done.entries) == (2, 0, 2 + 2 + 1 + 2 + 1)
    footers = [read_footer(path) for path in indexer.table.snapshot().paths()]
    assert sorted(str(footer["raw"]) for footer in footers) == [part.path for part in raw.parts]
    assert all(footer["paths"] == sorted(PATHS) and footer["kind"] == "index" for footer in footers)
    assert indexer.refresh(plant.clock()).idle
    assert plant.indexer().refresh(plant.clock()).idle
    assert indexer.verify(plant.clock()) == []


def test_replays_and_conflicts_leave_the_bytes_of_the_index_as_they_were(plant: SearchMill) -> None:
    """M1, M2: the gate comes first, as only raw is read."""
    indexer = plant.indexer()
    indexer.refresh(plant.clock())
    before, version = plant.bytes_of_index(), indexer.table.version
    plant.land([event("a", 1, region="eu", status=200), event("a", 1, region="moon", status=999)])
    assert indexer.refresh(plant.clock()).idle
    assert plant.bytes_of_index() == before
    assert indexer.table.version == version


def test_what_leaves_raw_leaves_the_index(plant: SearchMill) -> None:
    indexer = plant.indexer()
    indexer.refresh(plant.clock())
    first = plant.mill.state.slices("requests")[0]
    plant.mill.retract(plant.mill.plan_retraction(first.id, "a mistake"))
    plant.accept()
    done = indexer.refresh(plant.clock())
    assert done.removed >= 1
    assert plant.search('WHERE region = "us"').rows.num_rows == 0
    assert plant.search('WHERE region = "eu"').rows.num_rows == 1
    assert indexer.verify(plant.clock()) == []


def test_other_declared_paths_make_another_index(plant: SearchMill) -> None:
    plant.indexer().refresh(plant.clock())
    other = plant.indexer(paths=("status",))
    done = other.refresh(plant.clock())
    assert (done.built, done.removed) == (2, 2)
    none = plant.indexer(paths=())
    assert none.refresh(plant.clock()).removed == 2
    assert none.table.snapshot().parts == []


def test_the_order_in_which_paths_are_declared_does_not_matter(plant: SearchMill) -> None:
    plant.indexer().refresh(plant.clock())
    assert plant.indexer(paths=tuple(reversed(PATHS))).refresh(plant.clock()).idle


def test_a_part_leaves_the_index_once_its_newest_event_is_older_than_the_index_is_kept(
    plant: SearchMill,
) -> None:
    plant.land([event("late", 3600 * 24, region="eu")])
    indexer = plant.indexer(kept="1d")
    assert indexer.refresh(NOON + HOUR).built == 3
    assert indexer.refresh(NOON + DAY).idle
    done = indexer.refresh(NOON + DAY + HOUR)
    assert (done.built, done.removed) == (0, 2)
    assert indexer.refresh(NOON + 2 * DAY + HOUR).removed == 1
    assert plant.search('WHERE region = "eu"').rows.num_rows == 3, "raw is scanned where there is no index"


def test_rebuild_gives_the_same_bytes_and_mends_what_was_damaged(plant: SearchMill) -> None:
    indexer = plant.indexer()
    indexer.refresh(plant.clock())
    before, version = plant.bytes_of_index(), indexer.table.version
    assert indexer.rebuild(plant.clock()).built == 2
    assert plant.bytes_of_index() == before
    assert indexer.table.version == version
    assert indexer.rebuild(plant.clock(), Interval(NOON + DAY, NOON + 2 * DAY)).built == 0
    damaged = Path(indexer.table.snapshot().paths()[0])
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    (difference,) = indexer.verify(plant.clock())
    assert "differs" in difference.what
    assert indexer.rebuild(plant.clock()).built == 2
    assert plant.bytes_of_index() == before
    assert indexer.verify(plant.clock()) == []


def test_a_lost_table_is_made_again_to_the_same_bytes(plant: SearchMill) -> None:
    plant.indexer().refresh(plant.clock())
    before = plant.bytes_of_index()
    shutil.rmtree(plant.warehouse / "index")
    assert len(plant.indexer().verify(plant.clock())) == 2
    assert plant.indexer().refresh(plant.clock()).built == 2
    assert plant.bytes_of_index() == before


@pytest.mark.parametrize("point", ["search.after_build", "search.after_commit"])
def test_a_process_that_dies_leaves_nothing_to_be_mended(
    plant: SearchMill, tmp_path: Path, point: str
) -> None:
    copies: list[Path] = []

    def copy(name: str) -> None:
        if name == point:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(plant.warehouse, copies[-1])

    indexer = plant.indexer()
    with observed(copy):
        indexer.refresh(plant.clock())
    (left,) = copies
    raw = type(indexer.raw).existing(left / "raw" / "requests")
    assert raw is not None
    again = Indexer(left, plant.stream(), plant.engine, raw)
    done = again.refresh(plant.clock())
    assert done.built == (2 if point == "search.after_build" else 0)
    found = {
        str(p.relative_to(left / "index" / "requests")): p.read_bytes()
        for p in (left / "index").rglob("*.parquet")
    }
    assert found == plant.bytes_of_index()
    assert not list((left / "index" / "requests" / "_staging").glob("*"))


def test_empty_raw_parts_need_no_index(tmp_path: Path) -> None:
    made = SearchMill(tmp_path)
    made.land([json.dumps({"no": "event"})])
    indexer = made.indexer()
    assert indexer.refresh(made.clock()).idle
    assert indexer.verify(made.clock()) == []
