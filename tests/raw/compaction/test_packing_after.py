"""After raw was packed, whatever is asked, taken back, rebuilt, replayed or let go of is what it would be
without: the same scenarios run twice, and random ones are compared with the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.test_engine_oracle import FEEDS, SHAPES, Mills, cuts, many
from tests.pipeline.test_recover import assert_old_duplicates_are_seen, dump, forget, without
from tests.raw.compaction.test_packing import CONFIG, accepted_slices, described, pack, rows
from tests.raw.test_retract import Feeding, take_back
from tests.support.hypothesis_settings import examples
from tests.support.pipeline import NOON, NewPlant, Plant, ndjson, request, slice_of
from tests.support.selection import one_in

from tidemill.config.stream_sections import Pack
from tidemill.mill import recover
from tidemill.model.errors import InputError
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY
from tidemill.raw.accept.catch_up import catch_up
from tidemill.raw.accept.decisions import read_decisions
from tidemill.raw.compaction.selection import packed_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def twins(new_plant: NewPlant) -> tuple[Plant, Plant, list[str]]:
    """The same story without and with packs. Copy before you touch."""
    plain, packed = new_plant(CONFIG), new_plant(CONFIG)
    slices = [slice_of(n) for n in range(8)]
    ids = accepted_slices(plain, slices)
    with packed.open() as mill:
        for number, content in enumerate(slices, 1):
            mill.land("requests", content, name=f"slice {number}")
            mill.tick()
            pack(mill)
        mill.run_until_idle()
    return plain, packed, ids


@pytest.fixture
def both(twins: tuple[Plant, Plant, list[str]], tmp_path: Path) -> tuple[Plant, Plant, list[str]]:
    plain, packed, ids = twins
    return plain.copy(tmp_path / "plain"), packed.copy(tmp_path / "packed"), ids


def assert_alike(plain: Plant, packed: Plant) -> None:
    with packed.open() as mill:
        assert mill.verify().findings == []
    assert rows(packed) == rows(plain)
    assert described(packed) == described(plain)
    assert packed.leftovers() == []


def test_a_stream_that_was_packed_on_the_way_is_the_same(both: tuple[Plant, Plant, list[str]]) -> None:
    plain, packed, ids = both
    with packed.open() as mill:
        parts = packed_parts(mill.workers.acceptor("requests").raw)
        assert len({name for part in parts for name in part.slices}) == 6
    assert_alike(plain, packed)
    assert len(ids) == 8


@pytest.mark.parametrize("place", one_in(3, [0, 3, 7], first=1))
def test_a_slice_taken_back_after_a_pack(both: tuple[Plant, Plant, list[str]], place: int) -> None:
    plain, packed, ids = both
    for plant in (plain, packed):
        with plant.open() as mill:
            take_back(mill, ids[place])
            mill.run_until_idle()
            assert mill.slice(ids[place]).status is SliceStatus.RETRACTED
    assert_alike(plain, packed)
    with packed.open() as mill:  # what was judged again is packed again
        pack(mill)
        mill.run_until_idle()
        held = Counter(n for part in packed_parts(mill.workers.acceptor("requests").raw) for n in part.slices)
        assert ids[place] not in held
        assert max(held.values()) == 1
    assert_alike(plain, packed)


def test_a_state_that_is_lost_is_rebuilt_from_words(both: tuple[Plant, Plant, list[str]]) -> None:
    _, packed, _ = both
    before = dump(packed)
    forget(packed)
    recover(packed.root, spark=packed.spark, clock=packed.clock)
    assert dump(packed) == before
    with packed.open() as mill:
        assert mill.tick().idle
        assert mill.verify().findings == []


def test_a_state_and_runs_that_are_lost_after_a_retraction(both: tuple[Plant, Plant, list[str]]) -> None:
    _, packed, ids = both
    with packed.open() as mill:
        take_back(mill, ids[2])
        mill.run_until_idle()
        pack(mill)
        mill.run_until_idle()
    before = dump(packed)
    forget(packed)
    for run in (packed.warehouse / "gate" / "requests").iterdir():
        run.unlink()
    recover(packed.root, spark=packed.spark, clock=packed.clock)
    assert without(dump(packed), "runs") == without(before, "runs")


def test_the_gate_knows_what_was_packed_when_its_runs_are_gone(
    both: tuple[Plant, Plant, list[str]],
) -> None:
    _, packed, _ = both
    for run in (packed.warehouse / "gate" / "requests").iterdir():
        run.unlink()
    assert_old_duplicates_are_seen(packed)


def test_quarantine_is_replayed_after_a_pack(both: tuple[Plant, Plant, list[str]]) -> None:
    plain, packed, _ = both
    for plant in (plain, packed):
        plant.configure(CONFIG.replace("allowed: [request]", "allowed: [request, other]"))
        with plant.open() as mill:
            mill.replay("requests")
            mill.run_until_idle()
    assert_alike(plain, packed)


def test_every_decision_is_found_after_a_pack(both: tuple[Plant, Plant, list[str]]) -> None:
    plain, packed, ids = both
    told_by = []
    for plant in (plain, packed):
        with plant.open() as mill:
            raw, quarantine = mill.snapshot("raw", "requests"), mill.snapshot("quarantine", "requests")
            stream = mill.project.stream("requests")
            told_by.append(
                [
                    (found.kinds.tolist(), found.ids.to_pylist(), found.accepted_rows)
                    for name in ids
                    for found in [read_decisions(plant.warehouse, stream, mill.slice(name), raw, quarantine)]
                ]
            )
    assert told_by[0] == told_by[1]


def test_a_search_finds_the_same_after_a_pack(both: tuple[Plant, Plant, list[str]]) -> None:
    plain, packed, _ = both
    found = []
    for plant in (plain, packed):
        with plant.open() as mill:
            mill.run_until_idle()
            asked = mill.search(
                "requests", "WHERE api = '/v1/2' AND region = 'eu' LIMIT 500", all_tenants=True
            )
            found.append(asked.rows.drop_columns(["arrival"]).to_pylist())  # type: ignore[union-attr]
            if plant is packed:
                before = found[-1]
                mill.land("requests", slice_of(8))
                mill.tick()
                assert pack(mill)  # before the index hears of it
                again = mill.search(
                    "requests", "WHERE api = '/v1/2' AND region = 'eu' LIMIT 500", all_tenants=True
                )
                assert len(again.rows) > len(before)  # type: ignore[union-attr]
    assert found[0] == found[1]
    assert found[0]


def test_a_follower_sees_the_same_after_a_pack(both: tuple[Plant, Plant, list[str]]) -> None:
    plain, packed, _ = both
    seen = []
    for plant in (plain, packed):
        with plant.open() as mill:
            seen.append(
                [
                    item.to_pylist() if isinstance(item, pa.RecordBatch) else item
                    for ordered in (True, False)
                    for item in mill.tail("requests", ordered=ordered)
                ]
            )
    assert _flat(seen[0]) == _flat(seen[1])


def _flat(items: list[object]) -> list[object]:
    return [row for item in items for row in (item if isinstance(item, list) else [item])]


def test_days_that_were_packed_expire(both: tuple[Plant, Plant, list[str]], tmp_path: Path) -> None:
    plain, packed, ids = both
    for plant in (plain, packed):
        plant.configure(CONFIG + "    retention: {raw: 2d}\n")
        plant.clock.set(NOON + 3 * DAY)
        with plant.open() as mill:
            mill.land("requests", ndjson(request(900, ts=(NOON + 3 * DAY) // 1000)))
            mill.run_until_idle()
            mill.retention.expire(mill.retention.plan())
            mill.run_until_idle()
            assert mill.verify().findings == []
            with pytest.raises(InputError, match="has expired"):
                mill.plan_retraction(ids[1], "too late")
            again = mill.land("requests", slice_of(2) + ndjson(request(901, ts=(NOON + 3 * DAY) // 1000)))
            mill.run_until_idle()
            assert mill.slice(again.entry.id).counts.accepted == 1
    assert_alike(plain, packed)
    before = dump(packed)
    forget(packed)
    for run in (packed.warehouse / "gate" / "requests").iterdir():
        run.unlink()
    recover(packed.root, spark=packed.spark, clock=packed.clock)
    assert without(dump(packed), "runs") == without(before, "runs")
    with packed.open() as mill:
        again = mill.land("requests", slice_of(3) + b"\n")
        mill.run_until_idle()
        assert mill.slice(again.entry.id).counts.accepted == 0


def test_results_are_not_made_anew_for_a_pack_and_miss_nothing(new_plant: NewPlant) -> None:
    """A batch is accepted and packed before the windows look again."""
    plain, packed = new_plant(CONFIG), new_plant(CONFIG)
    for plant in (plain, packed):
        with plant.open() as mill:
            for number in range(4):
                mill.land("requests", slice_of(number))
                mill.tick()
            mill.run_until_idle()
            for number in (4, 5):  # late rows among them
                mill.land("requests", slice_of(number))
                acceptor = mill.workers.acceptor("requests")
                catch_up(acceptor)
                acceptor.accept()
                acceptor.finish()
                if plant is packed:
                    assert pack(mill)
            mill.run_until_idle()
    assert_alike(plain, packed)


# -- against the oracle


@pytest.fixture(scope="module")
def mills(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mills]:
    mills = Mills(tmp_path_factory.mktemp("mills"), spark)
    yield mills
    for mill in mills.opened:
        mill.close()


def packed_at_random(mills: Mills, shape: str, data: st.DataObject) -> None:
    """Slices land, ticks pass, slices go, raw is packed and packed again, in any order."""
    feeding = Feeding(mills, shape, one_at_a_time=data.draw(st.booleans()))
    feed = data.draw(FEEDS[shape])
    by = Pack(slices=data.draw(st.integers(1, 4)))
    for landing, tick in zip(feed, data.draw(cuts(feed)), strict=True):
        feeding.land(landing)
        if tick:
            feeding.mill.tick()
        left = [each for each in feeding.landed if each not in feeding.gone]
        if left and data.draw(st.integers(0, 4)) == 0:
            feeding.retract(data.draw(st.sampled_from(left)))
        if data.draw(st.booleans()):
            pack(feeding.mill, by, feeding.stream, again=data.draw(st.integers(0, 3)) == 0)
    feeding.settle()
    pack(feeding.mill, by, feeding.stream)
    feeding.settle()
    left = [each for each in feeding.landed if each not in feeding.gone]
    for each in data.draw(st.permutations(left))[: data.draw(st.integers(0, 2))]:
        feeding.retract(each)
    feeding.settle()
    raw = feeding.mill.workers.acceptor(feeding.stream).raw
    assert not any(name in feeding.gone for part in packed_parts(raw) for name in part.slices)
    assert feeding.mill.verify(feeding.stream).findings == []


@pytest.mark.parametrize("shape", ["requests", "processing"])
@examples(3)
@given(data=st.data())
def test_packs_change_nothing_that_the_oracle_says(shape: str, mills: Mills, data: st.DataObject) -> None:
    packed_at_random(mills, shape, data)


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@many
@given(data=st.data())
def test_packs_change_nothing_that_the_oracle_says_at_length(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    packed_at_random(mills, shape, data)
