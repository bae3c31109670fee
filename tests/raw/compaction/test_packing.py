"""Raw is packed: the same rows in fewer parts, and whatever is asked, taken back, rebuilt or let go of after
that is what it would be without. No process that dies meanwhile leaves anything to repair, and no reader sees
a row twice or not at all."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.pipeline.test_recover import dump, without
from tests.support.pipeline import NOON, NewPlant, Plant, all_on_spark, ndjson, request, slice_of

from tidemill.config.stream_sections import Pack
from tidemill.mill import Mill
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import POINTS, observed
from tidemill.model.time import DAY, SECOND
from tidemill.raw.accept.catch_up import catch_up
from tidemill.raw.compaction.packing import PackedParts, pack_groups
from tidemill.raw.compaction.selection import fresh, groups, packed_parts, regrouped
from tidemill.raw.part_names import is_shared
from tidemill.raw.tables import RAW
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    pass

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
    acceptor = mill.workers.acceptor(stream)
    catch_up(acceptor)
    there = fresh(acceptor, packed_too=again)
    chosen = regrouped(there, by, acceptor.raw) if again else groups(there, by)
    return pack_groups(acceptor, chosen, mill.clock())


def five_events(number: int) -> bytes:
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


def described(plant: Plant) -> object:
    """What must be the same with packs as without: versions of raw count them, and runs may be merged."""
    found = without(dump(plant), "versions", "runs")
    return found, plant.quarantine(), plant.tiles(), plant.results()


def accepted_slices(plant: Plant, slices: Sequence[bytes], *, per_batch: int = 1) -> list[str]:
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
    plant = new_plant(config)
    ids = accepted_slices(plant, [five_events(n) for n in range(7)])
    before = rows(plant)
    if not inline:  # only from here on: this is not about how slices are accepted
        plant.configure(all_on_spark(config))
    with plant.open() as mill:
        done = pack(mill)
        assert [one.slices for one in done] == [tuple(ids[:3]), tuple(ids[3:6])]
        assert [one.rows for one in done] == [15, 15]
        raw = mill.workers.acceptor("requests").raw
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
        assert [one.id for one in fresh(mill.workers.acceptor("requests"))] == [ids[6]]
        assert pack(mill) == []  # each slice once
        mill.run_until_idle()
        assert mill.verify().findings == []
    assert rows(plant) == before
    # two packed parts, the part of the slice that waits, and the word
    assert len(plant._table("raw").snapshot().parts) == 4


def test_parts_are_alike_whoever_wrote_them(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG)
    accepted_slices(plant, [five_events(n) for n in range(4)])
    with plant.open() as mill:
        pack(mill)
        raw = mill.workers.acceptor("requests").raw.snapshot()
    files = [pq.ParquetFile(path) for part, path in zip(raw.parts, raw.paths(), strict=True) if part.rows]
    assert len(files) == 2
    small, packed = sorted(files, key=lambda file: file.metadata.num_rows)
    assert small.schema_arrow.equals(packed.schema_arrow)
    for column in range(small.metadata.num_columns):
        one, other = (file.metadata.row_group(0).column(column) for file in (small, packed))
        assert one.compression == other.compression
        assert one.is_stats_set == other.is_stats_set
        if one.path_in_schema in RAW.names:  # a declared text is coded where it has few values
            assert ("RLE_DICTIONARY" in one.encodings) == ("RLE_DICTIONARY" in other.encodings)
    (part,) = [part for part in raw.parts if is_shared(part)]
    assert part.mins.keys() == part.maxs.keys() == {"tenant", "event_time", "watermark", "slice"}


def test_thin_days_share_a_part_and_what_waits_in_between_is_kept_together(new_plant: NewPlant) -> None:
    """A batch of five slices over two days, of which three fill a group: the others are in one part."""
    plant = new_plant(CONFIG)
    late = [ndjson(*(request(n + 10_000 * day, ts=ts(n, day)) for day in (0, 1))) for n in range(5)]
    ids = accepted_slices(plant, late, per_batch=5)
    before = rows(plant)
    with plant.open() as mill:
        (done,) = pack(mill)
        assert done.slices == tuple(ids[:3])
        assert [part.rows for part in done.parts] == [6]
        names = [
            Path(part.path).name.partition("-")[0]
            for part in mill.workers.acceptor("requests").raw.snapshot().parts
        ]
        assert sorted(names) == ["packed", "rest", "told"]
        assert [one.id for one in fresh(mill.workers.acceptor("requests"))] == ids[3:]
        mill.run_until_idle()
        assert mill.verify().findings == []
        mill.land("requests", ndjson(request(77, ts=ts(9, 0))))
        mill.tick()
        (done,) = pack(mill)
        assert done.slices[:2] == tuple(ids[3:])
        names = [
            Path(part.path).name.partition("-")[0]
            for part in mill.workers.acceptor("requests").raw.snapshot().parts
        ]
        assert sorted(names) == ["packed"] * 2 + ["told"]
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
    accepted_slices(plant, [slice_of(n) for n in range(7)], per_batch=2)
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
        found = packed_parts(mill.workers.acceptor("requests").raw)
        assert Counter(name for part in found for name in part.slices).most_common(1)[0][1] == 1
        assert mill.verify().findings == []
    assert rows(corpse) == wanted
    assert described(corpse) == described(after)
    assert corpse.leftovers() == []


def test_a_part_that_cannot_be_read_stops_the_pack_and_leaves_nothing_behind(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG)
    accepted_slices(plant, [five_events(n) for n in range(3)])
    path = Path(plant._table("raw").snapshot().paths()[0])
    whole = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    (payload,) = [column for column in columns if column.path_in_schema == "payload"]
    place = payload.data_page_offset
    path.write_bytes(
        whole[:place] + bytes(payload.total_compressed_size) + whole[place + payload.total_compressed_size :]
    )
    with plant.open() as mill:
        version = mill.workers.acceptor("requests").raw.version
        with pytest.raises(StorageError):
            pack(mill)
        assert mill.workers.acceptor("requests").raw.refresh() == version
        assert plant.leftovers() == []
        path.write_bytes(whole)
        assert len(pack(mill)) == 1


# -- P4


def test_p4_packed_again_from_the_oldest_on_it_has_the_same_rows_in_better_order(new_plant: NewPlant) -> None:
    plant = new_plant(CONFIG)
    order = [0, 4, 2, 5, 1, 3, 6]  # as they arrive; a pack after each batch of three
    with plant.open() as mill:
        ids = {}
        for number in order:
            ids[number] = mill.land("requests", five_events(number)).entry.id
            mill.tick()
            pack(mill)
        mill.run_until_idle()
        before, spread = rows(plant), spans(mill)
        parts = packed_parts(mill.workers.acceptor("requests").raw)
        assert sorted({name for part in parts for name in part.slices}) == sorted(ids[n] for n in order[:6])
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
    return [part.max_time - part.min_time for part in packed_parts(mill.workers.acceptor("requests").raw)]


# -- readers meanwhile


def test_readers_see_every_row_once_while_packs_are_made(new_plant: NewPlant) -> None:
    """Three kinds of readers, each by the log, in a loop while slices are packed group after group."""
    plant = new_plant(CONFIG)
    accepted_slices(plant, [five_events(n) for n in range(12)])
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
