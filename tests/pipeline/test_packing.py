"""Raw is packed: the same rows in fewer parts, and whatever is asked, taken back, rebuilt or let go of after
that is what it would be without. No process that dies meanwhile leaves anything to repair, and no reader sees
a row twice or not at all."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.conftest import NOON, NewPlant, Plant, ndjson, request, slice_of
from tests.pipeline.test_engine_oracle import FEEDS, SHAPES, Mills, cuts, few, many
from tests.pipeline.test_recover import assert_old_duplicates_are_seen, dump, forget, without
from tests.pipeline.test_retract import Feeding, take_back

from tidemill.accept.catchup import catch_up
from tidemill.accept.decisions import read_decisions
from tidemill.accept.packing import (
    PackedParts,
    fresh,
    groups,
    pack_groups,
    packed_parts,
    packed_slices,
    regrouped,
)
from tidemill.accept.standins import is_shared
from tidemill.config.packing import Pack
from tidemill.lake.table import Table
from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError
from tidemill.model.failpoints import POINTS, observed
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WALK = [point for point in POINTS if point.startswith("pack.")]
BY_HAND = "    pack: {enabled: false}\n"  # packed where the test says so, and nowhere else
CONFIG = f"""
version: 1
engine: {{cores: 2, memory: 512m}}
streams:
  requests:
    schema:
      event_id: {{type: string, required: true}}
      ts: {{type: integer, required: true}}
      event_type: string
      tenant: {{type: string, required: true}}
      api: string
      region: string
      status: integer
      latency_ms: {{type: decimal, scale: 3}}
    event_type: {{column: event_type, allowed: [request]}}
    event_time: {{column: ts, type: unixtimestamp_ms, late_tolerance: 2s}}
    identity: event_id
    tenant: {{column: tenant}}
    skew: {{future: 1d}}
    indexed: [api, region]
    metrics:
      requests: {{kind: counter, dimensions: [api, region, status], measures: [latency_ms]}}
      latency: {{kind: gauge, value: latency_ms, policy: last, dimensions: [region]}}
      visitors: {{kind: counter, dimensions: [api], max_cardinality: 3}}
      codes: {{kind: state, object: api, state: region, dimensions: [status]}}
    aggregation_span: 1h
    subject_to_change_window: 0s
    allow_incomplete_windows: true
    windows:
      visits: {{kind: session, gap: 1m, key: region, aggregates: {{count: count, longest: max(latency_ms)}}}}
      ten_minutes:
        kind: tumbling
        size: 10m
        group_by: region
        aggregates: {{latency: sum(latency_ms), p99: p99(latency_ms)}}
        late: {{policy: reemit, max_lateness: 1d}}
{BY_HAND}"""
# Slices as they are: nothing is compared, and no dataset is made of them.
UNGATED = CONFIG.replace("    identity: event_id\n", "    gate: none\n").replace(
    """    aggregation_span: 1h
    subject_to_change_window: 0s
    allow_incomplete_windows: true
""",
    "",
)
THREE = Pack(slices=3)


def pack(mill: Mill, by: Pack = THREE, stream: str = "requests", *, again: bool = False) -> list[PackedParts]:
    """What is full now, as a round would."""
    acceptor = mill.acceptor(stream)
    catch_up(acceptor)
    there = fresh(acceptor, packed_too=again)
    chosen = regrouped(there, by, acceptor.raw) if again else groups(there, by)
    return pack_groups(acceptor, chosen, mill.clock())


def five(number: int) -> bytes:
    """Slice `number`: five events that begin where the one before ended."""
    return ndjson(*(request(number * 5 + i) for i in range(5)))


def rows(plant: Plant) -> Counter[str]:
    """Every row of raw with all its columns, as often as it is there."""
    found: Counter[str] = Counter()
    snapshot = plant._table("raw").snapshot()
    for part, path in zip(snapshot.parts, snapshot.paths(), strict=True):
        table = pq.read_table(path, partitioning=None)
        assert table.num_rows == part.rows
        for row in table.to_pylist():
            found[json.dumps({**row, **part.partition}, sort_keys=True, default=str)] += 1
    return found


def told(plant: Plant) -> object:
    """What must be the same with packs as without: versions of raw count them, and runs may be merged."""
    found = without(dump(plant), "versions", "runs")
    return found, plant.quarantine(), plant.tiles(), plant.results()


def lived(plant: Plant, slices: Sequence[bytes], *, per_batch: int = 1) -> list[str]:
    with plant.open() as mill:
        ids = []
        for number, content in enumerate(slices, 1):
            ids.append(mill.land("requests", content, name=f"slice {number}").entry.id)
            if number % per_batch == 0:
                mill.tick()
        mill.run_until_idle()
        return ids


# -- P1


@pytest.mark.parametrize("gate", ["event_id", "none"])
@pytest.mark.parametrize("inline", [True, False], ids=["here", "on spark"])
def test_p1_seven_slices_of_five_rows_by_three(new_plant: NewPlant, gate: str, *, inline: bool) -> None:
    config = CONFIG if gate == "event_id" else UNGATED
    plant = new_plant(config if inline else config.replace("memory: 512m", "memory: 512m, inline_bytes: 0"))
    ids = lived(plant, [five(n) for n in range(7)])
    before = rows(plant)
    with plant.open() as mill:
        done = pack(mill)
        assert [one.slices for one in done] == [tuple(ids[:3]), tuple(ids[3:6])]
        assert [one.rows for one in done] == [15, 15]
        raw = mill.acceptor("requests").raw
        parts = packed_parts(raw)
        assert sorted(part.slices for part in parts) == sorted(
            [tuple(sorted(ids[:3])), tuple(sorted(ids[3:6]))]
        )
        assert [part.rows for part in parts] == [15, 15]
        assert {part.created_at for part in parts} == {NOON}
        for part in parts:
            table = pq.read_table(raw.root / part.path, partitioning=None)
            keys = [(r["tenant"].encode(), r["event_time"], r["slice"], r["line"]) for r in table.to_pylist()]
            assert [key[:2] for key in keys] == sorted(key[:2] for key in keys)
            times = table.column("event_time").cast(pa.int64()).to_pylist()
            assert (part.min_time, part.max_time) == (min(times), max(times))
            assert set(table.column("slice").to_pylist()) == set(part.slices)
        assert [one.id for one in fresh(mill.acceptor("requests"))] == [ids[6]]
        assert pack(mill) == []  # each slice once
        mill.run_until_idle()
        assert mill.verify().findings == []
    assert rows(plant) == before
    # two packed parts, the part of the slice that waits, and the word
    assert len(plant._table("raw").snapshot().parts) == 4


def test_parts_are_alike_whoever_wrote_them(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG)
    lived(plant, [five(n) for n in range(4)])
    with plant.open() as mill:
        pack(mill)
        raw = mill.acceptor("requests").raw.snapshot()
    files = [pq.ParquetFile(path) for part, path in zip(raw.parts, raw.paths(), strict=True) if part.rows]
    assert len(files) == 2
    small, packed = sorted(files, key=lambda file: file.metadata.num_rows)
    assert small.schema_arrow.equals(packed.schema_arrow)
    for column in range(small.metadata.num_columns):
        one, other = (file.metadata.row_group(0).column(column) for file in (small, packed))
        assert one.compression == other.compression
        assert one.is_stats_set == other.is_stats_set
        assert ("RLE_DICTIONARY" in one.encodings) == ("RLE_DICTIONARY" in other.encodings)
    (part,) = [part for part in raw.parts if is_shared(part)]
    assert part.mins.keys() == part.maxs.keys() == {"tenant", "event_time", "watermark", "slice"}


def test_a_part_for_each_day_and_what_waits_in_between_is_kept_together(new_plant: NewPlant) -> None:
    """A batch of five slices over two days, of which three fill a group: the others are in one part a day."""
    plant = new_plant(CONFIG)
    late = [ndjson(*(request(n + 10_000 * day, ts=ts(n, day)) for day in (0, 1))) for n in range(5)]
    ids = lived(plant, late, per_batch=5)
    before = rows(plant)
    with plant.open() as mill:
        (done,) = pack(mill)
        assert done.slices == tuple(ids[:3])
        assert [part.rows for part in done.parts] == [3, 3]
        names = [
            Path(part.path).name.partition("-")[0] for part in mill.acceptor("requests").raw.snapshot().parts
        ]
        assert sorted(names) == ["packed", "packed", "rest", "rest", "told", "told"]
        assert [one.id for one in fresh(mill.acceptor("requests"))] == ids[3:]
        mill.run_until_idle()
        assert mill.verify().findings == []
        mill.land("requests", ndjson(request(77, ts=ts(9, 0))))
        mill.tick()
        (done,) = pack(mill)
        assert done.slices[:2] == tuple(ids[3:])
        names = [
            Path(part.path).name.partition("-")[0] for part in mill.acceptor("requests").raw.snapshot().parts
        ]
        assert sorted(names) == ["packed"] * 4 + ["told"] * 2
        mill.run_until_idle()
        assert mill.verify().findings == []
    assert before - rows(plant) == Counter()


def ts(number: int, day: int) -> int:
    return (NOON - day * DAY + number * SECOND) // 1000


# -- P3


@pytest.fixture(scope="module")
def walked(new_plant: NewPlant, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plant, dict[str, Plant]]:
    """A warehouse after a pack, and as it was at every point of it. Copy before you touch."""
    plant = new_plant(CONFIG)
    folder = tmp_path_factory.mktemp("packing")
    lived(plant, [slice_of(n) for n in range(7)], per_batch=2)
    at: dict[str, Plant] = {"before": plant.copy(folder / "before")}

    def keep(point: str) -> None:
        if point in WALK and point not in at:
            at[point] = plant.copy(folder / point)

    with observed(keep), plant.open() as mill:
        assert len(pack(mill)) == 2
        mill.run_until_idle()
    return plant, at


def test_every_fail_point_of_a_pack_is_passed(walked: tuple[Plant, dict[str, Plant]]) -> None:
    assert sorted(walked[1]) == sorted(["before", *WALK])


@pytest.mark.parametrize("point", WALK)
def test_p3_death_while_packing_leaves_a_whole_table(
    walked: tuple[Plant, dict[str, Plant]], point: str, tmp_path: Path
) -> None:
    after, at = walked
    corpse = at[point].copy(tmp_path / "corpse")
    wanted = rows(after)
    assert rows(corpse) == wanted  # no reader sees what was not committed, or misses what was replaced
    with corpse.open() as mill:
        mill.run_until_idle()
        pack(mill)
        mill.run_until_idle()
        found = packed_parts(mill.acceptor("requests").raw)
        assert Counter(name for part in found for name in part.slices).most_common(1)[0][1] == 1
        assert mill.verify().findings == []
    assert rows(corpse) == wanted
    assert told(corpse) == told(after)
    assert corpse.leftovers() == []


# -- P4


def test_p4_packed_again_from_the_oldest_on_it_has_the_same_rows_in_better_order(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG)
    order = [0, 4, 2, 5, 1, 3, 6]  # as they arrive; a pack after each batch of three
    with plant.open() as mill:
        ids = {}
        for number in order:
            ids[number] = mill.land("requests", five(number)).entry.id
            mill.tick()
            pack(mill)
        mill.run_until_idle()
        before, spread = rows(plant), spans(mill)
        assert sorted(packed_slices(mill.acceptor("requests").raw)) == sorted(ids[n] for n in order[:6])
        done = pack(mill, again=True)
        assert [one.slices for one in done] == [
            tuple(ids[n] for n in (0, 1, 2)),
            tuple(ids[n] for n in (3, 4, 5)),
        ]
        assert pack(mill, again=True) == []
        assert sum(spans(mill)) < sum(spread)
        mill.run_until_idle()
        assert mill.verify().findings == []
    assert rows(plant) == before


def spans(mill: Mill) -> list[int]:
    return [part.max_time - part.min_time for part in packed_parts(mill.acceptor("requests").raw)]


# -- afterwards everything is as without


@pytest.fixture(scope="module")
def twins(new_plant: NewPlant) -> tuple[Plant, Plant, list[str]]:
    """The same story without and with packs. Copy before you touch."""
    plain, packed = new_plant(CONFIG), new_plant(CONFIG)
    slices = [slice_of(n) for n in range(8)]
    ids = lived(plain, slices)
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
    assert told(packed) == told(plain)
    assert packed.leftovers() == []


def test_a_stream_that_was_packed_on_the_way_is_the_same(both: tuple[Plant, Plant, list[str]]) -> None:
    plain, packed, ids = both
    with packed.open() as mill:
        assert len(packed_slices(mill.acceptor("requests").raw)) == 6
        assert {part.slices for part in packed_parts(mill.acceptor("requests").raw)}
    assert_alike(plain, packed)
    assert len(ids) == 8


@pytest.mark.parametrize("place", [0, 3, 7])
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
        held = Counter(n for part in packed_parts(mill.acceptor("requests").raw) for n in part.slices)
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
            asked = mill.search("requests", "WHERE api = '/v1/2' AND region = 'eu' LIMIT 500")
            found.append(asked.rows.drop_columns(["arrival"]).to_pylist())  # type: ignore[union-attr]
            if plant is packed:
                before = found[-1]
                mill.land("requests", slice_of(8))
                mill.tick()
                assert pack(mill)  # before the index hears of it
                again = mill.search("requests", "WHERE api = '/v1/2' AND region = 'eu' LIMIT 500")
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
                acceptor = mill.acceptor("requests")
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
    raw = feeding.mill.acceptor(feeding.stream).raw
    held = Counter(name for part in packed_parts(raw) for name in set(part.slices))
    assert all(name not in feeding.gone for name in held)
    assert feeding.mill.verify(feeding.stream).findings == []


@pytest.mark.parametrize("shape", ["requests", "processing"])
@settings(few, max_examples=6)
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


# -- readers meanwhile


def test_readers_see_every_row_once_while_packs_are_made(new_plant: NewPlant) -> None:
    """Three kinds of readers, each by the log, in a loop while slices are packed group after group."""
    plant = new_plant(CONFIG)
    lived(plant, [five(n) for n in range(12)])
    root = plant.warehouse / "raw" / "requests"
    wanted = sorted(f"e-{n:06d}" for n in range(60))

    def by_deltalake() -> list[str]:
        return list(DeltaTable(str(root)).to_pyarrow_table(columns=["event_id"]).column(0).to_pylist())

    def files() -> list[str]:
        table = Table.existing(root)
        assert table is not None
        return table.snapshot().paths()

    def by_duckdb() -> list[str]:
        with duckdb.connect() as connection:
            text = "SELECT event_id FROM read_parquet($files, hive_partitioning = false)"
            return [str(row[0]) for row in connection.execute(text, {"files": files()}).fetchall()]

    def by_pyarrow() -> list[str]:
        found = ds.dataset(files(), format="parquet", partitioning=None)
        return list(found.to_table(columns=["event_id"]).column(0).to_pylist())

    done, looks, wrong = threading.Event(), Counter[str](), list[str]()

    def look(read: Callable[[], list[str]]) -> None:
        while not done.is_set() or not looks[read.__name__]:
            try:
                if sorted(read()) != wanted:
                    wrong.append(read.__name__)
            except Exception as error:  # noqa: BLE001 - the test says which
                wrong.append(f"{read.__name__}: {error}")
            looks[read.__name__] += 1

    readers = [threading.Thread(target=look, args=(read,)) for read in (by_deltalake, by_duckdb, by_pyarrow)]
    for reader in readers:
        reader.start()
    try:
        with plant.open() as mill:
            for count in (2, 1, 3, 4, 2):  # packed, then packed anew in other groups
                while pack(mill, Pack(slices=count)):
                    pass
                pack(mill, Pack(slices=count), again=True)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert len(looks) == 3
