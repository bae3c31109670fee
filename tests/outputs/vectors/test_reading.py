"""Vectors at an instant, from chains and raw: the bits that all their deltas give, whatever was compacted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.oracles.vectors import VectorOracle
from tests.support.selection import one_in

from tidemill.mill import Mill
from tidemill.model.deltas import Delta, Op
from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.time import SECOND, format_instant, parse_instant
from tidemill.outputs.vectors.parts import ChainParts
from tidemill.outputs.vectors.reader import MOST_COMPONENTS, VectorReader
from tidemill.outputs.vectors.table import DELTA, ROWS, STATS, ChainFooter, Made, bucket_of, chain_table
from tidemill.storage.tables.parts import write_part
from tidemill.testing import FakeClock

BEGIN = parse_instant("2024-01-15T10:00:00Z")
PROJECT = """
version: 1
streams:
  moves:
    kind: delta
    vector: {dimension: 3}
    compaction: {%s}
    schema:
      id: {type: string, required: true}
      vector_id: {type: any, required: true}
      at: {type: string, required: true}
      op: {type: string, required: true}
      values: array
      indices: array
      %s
    identity: id
    event_time: {column: at, type: iso8601}
    %s
  plain:
    schema: {a: string}
    identity: [a]
"""
NEVER = "delta_threshold: 1000000, max_chain_length: 1000000, time_threshold: 3650d"
STRATEGIES = {
    "full_merge": "strategy: full_merge",
    "tiered_merge": "strategy: tiered_merge, keep_recent: 2",
    "time_boundary": "strategy: time_boundary, interval: 5s",
    "adaptive": "strategy: adaptive, keep_recent: 3",
    "none": f"background: false, {NEVER}",
}


@dataclass
class Bench:
    """A project, and the truth about it."""

    mill: Mill
    clock: FakeClock
    oracle: VectorOracle = field(default_factory=lambda: VectorOracle(3))
    number: int = 0

    def delta(
        self, vector: str, second: float, op: Op, *values: float, at: tuple[int, ...] | None = None
    ) -> Delta:
        self.number += 1
        return Delta(vector, f"d{self.number:04}", BEGIN + int(second * SECOND), op, values, at)

    def land(self, *deltas: Delta) -> str:
        self.oracle.add(*deltas)
        return self.mill.land("moves", lines(deltas)).entry.id

    def tick(self, *deltas: Delta) -> str:
        landed = self.land(*deltas) if deltas else ""
        self.mill.run_until_idle()
        return landed

    def accept(self, *deltas: Delta) -> None:
        """As a round that was killed before it came to the chains."""
        self.land(*deltas)
        assert self.mill.workers.acceptor("moves").accept() is not None

    def check(self, ids: Sequence[str] | None = None, instants: Iterable[int | None] = (None,)) -> None:
        asked = list(ids if ids is not None else self.oracle.ids)
        for at in instants:
            found = self.mill.vectors("moves", asked, at)
            assert found.column("vector_id").to_pylist() == asked
            for row in found.to_pylist():
                want = self.oracle.at(row["vector_id"], at)
                assert row["exists"] == (want is not None), (row, at)
                assert bits(row["values"]) == bits(want), (row, at)

    def instants(self) -> list[int | None]:
        """Before, at, and after every delta, and now."""
        times = sorted({delta.ts for delta in self.oracle.deltas})
        return [None, *sorted({t + d for t in times for d in (-1, 0)}), times[-1] + SECOND]


def bits(vector: Sequence[float] | None) -> bytes | None:
    return None if vector is None else np.array(vector, np.float64).tobytes()


def lines(deltas: Iterable[Delta]) -> bytes:
    def record(delta: Delta) -> dict[str, object]:
        said: dict[str, object] = {"id": delta.delta_id, "vector_id": delta.vector_id, "op": delta.op.value}
        said |= {"at": format_instant(delta.ts)}
        if delta.op is not Op.DELETE:
            said["values"] = list(delta.values)
        return said if delta.indices is None else said | {"indices": list(delta.indices)}

    return "".join(json.dumps(record(delta)) + "\n" for delta in deltas).encode()


def opened(folder: Path, compaction: str, column: str = "", more: str = "") -> Bench:
    (folder / "tidemill.yaml").write_text(PROJECT % (compaction, column, more))
    clock = FakeClock(parse_instant("2024-01-16T00:00:00Z"))
    return Bench(Mill.open(folder, clock=clock), clock)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = opened(tmp_path, STRATEGIES["tiered_merge"])
    yield made
    made.mill.close()


def many(bench: Bench, count: int, seed: int) -> list[Delta]:
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        op = chance.choice([*Op, Op.ADD, Op.ADD, Op.SET, Op.SCALE])
        sparse = op in (Op.ADD, Op.SET, Op.SCALE, Op.OFFSET) and chance.random() < 0.6
        at = tuple(sorted(chance.sample(range(3), chance.randint(1, 3)))) if sparse else None
        size = {Op.DELETE: 0, Op.OFFSET: 1}.get(op, 3 if at is None else len(at))
        values = [chance.uniform(-2, 2) for _ in range(size)]
        made.append(bench.delta(f"v{chance.randrange(4)}", chance.randrange(25), op, *values, at=at))
    return made


@pytest.mark.long
@pytest.mark.parametrize("strategy", one_in(2, STRATEGIES))
def test_at_every_instant_the_bits_are_those_of_all_deltas(tmp_path: Path, strategy: str) -> None:
    bench = opened(tmp_path, STRATEGIES[strategy])
    with bench.mill:
        for round_ in range(3):  # deltas come out of order: each round has some before what is compacted
            bench.tick(*many(bench, 25, round_))
            bench.check(instants=bench.instants())
        bench.accept(*many(bench, 10, 9))
        bench.check(instants=bench.instants())


def test_deltas_that_no_chain_has_yet_are_there(bench: Bench) -> None:
    bench.tick(bench.delta("v", 1, Op.REPLACE, 1, 2, 3))
    bench.accept(bench.delta("v", 2, Op.ADD, 0.5, at=(1,)), bench.delta("w", 3, Op.SET, 7, at=(2,)))
    bench.check(["v", "w"])
    chain = bench.mill.chain("moves", "v")
    assert [(link.op, link.waiting) for link in chain.links] == [(Op.REPLACE, False), (Op.ADD, True)]


def test_a_delta_before_a_checkpoint_that_waits_is_in_its_place(bench: Bench) -> None:
    bench.tick(*(bench.delta("v", second, Op.SCALE, 3.0) for second in (2, 4, 6, 8)))
    assert bench.mill.chain("moves", "v").merged == 2
    bench.accept(bench.delta("v", 1, Op.SET, 0.1, at=(0,)))
    bench.check(["v"], bench.instants())


def test_with_the_same_time_the_id_says_what_comes_first(bench: Bench) -> None:
    later, sooner = bench.delta("v", 5, Op.ADD, 1.0, at=(0,)), bench.delta("v", 5, Op.SCALE, 4.0)
    bench.tick(sooner)
    bench.accept(later)
    assert bench.mill.vectors("moves", ["v"]).column("values").to_pylist() == [[4.0, 0.0, 0.0]]
    bench.check(["v"])


def test_a_retracted_slice_is_as_if_it_had_never_come(bench: Bench) -> None:
    bench.tick(bench.delta("v", 1, Op.REPLACE, 1, 2, 3))
    wrong = [bench.delta("v", 2, Op.SCALE, 100.0)]
    slice_id = bench.tick(*wrong)
    bench.tick(bench.delta("v", 3, Op.ADD, 1.0, at=(0,)))
    bench.mill.retract(bench.mill.plan_retraction(slice_id, "wrong"))
    bench.oracle.deltas = [delta for delta in bench.oracle.deltas if delta not in wrong]
    now = bench.mill.vectors("moves", ["v"])  # the slice behind it is judged again, and counts once it is
    assert now.column("values").to_pylist() == [[1, 2, 3]]
    assert now.column("pending").to_pylist() == [True]
    bench.tick()
    bench.check(["v"], bench.instants())
    assert bench.mill.vectors("moves", ["v"]).column("pending").to_pylist() == [False]


def test_until_slices_are_decided_again_a_vector_is_pending_and_not_gone(bench: Bench) -> None:
    slice_id = bench.tick(bench.delta("other", 1, Op.REPLACE, 1, 2, 3))
    bench.tick(bench.delta("v", 2, Op.REPLACE, 4, 5, 6))
    bench.mill.retract(bench.mill.plan_retraction(slice_id, "wrong"))
    (row,) = bench.mill.vectors("moves", ["v"]).to_pylist()
    assert (row["exists"], row["values"], row["pending"]) == (None, None, True)
    bench.tick()
    (row,) = bench.mill.vectors("moves", ["v"]).to_pylist()
    assert (row["exists"], row["values"], row["pending"]) == (True, [4, 5, 6], False)


def test_a_vector_that_is_not_finite_any_more_says_so(bench: Bench) -> None:
    bench.tick(bench.delta("v", 1, Op.REPLACE, 1e308, 2, 3), bench.delta("w", 1, Op.REPLACE, 1, 2, 3))
    bench.tick(bench.delta("v", 2, Op.SCALE, 1e308))
    found = bench.mill.vectors("moves", ["v", "w", "nobody"])
    assert found.column("overflow").to_pylist() == [True, False, False]
    before = bench.mill.vectors("moves", ["v"], BEGIN + SECOND)
    assert before.column("overflow").to_pylist() == [False]


def test_rows_come_in_the_order_asked_for_and_as_often(bench: Bench) -> None:
    bench.tick(bench.delta("a", 1, Op.SET, 1, at=(0,)), bench.delta("b", 2, Op.SET, 2, at=(0,)))
    found = bench.mill.vectors("moves", ["b", "nobody", "a", "b"])
    assert found.schema == pa.schema(
        {
            "vector_id": pa.string(),
            "exists": pa.bool_(),
            "ts": pa.timestamp("us", tz="UTC"),
            "values": pa.list_(pa.float64(), 3),
            "overflow": pa.bool_(),
            "pending": pa.bool_(),
        }
    )
    assert found.column("exists").to_pylist() == [True, False, True, True]
    assert found.column("ts").cast(pa.int64()).to_pylist() == [
        BEGIN + 2 * SECOND, None, BEGIN + SECOND, BEGIN + 2 * SECOND,
    ]  # fmt: skip
    assert found.column("values").to_pylist() == [[2, 0, 0], None, [1, 0, 0], [2, 0, 0]]


def test_a_deleted_vector_is_not_there_and_says_since_when(bench: Bench) -> None:
    bench.tick(bench.delta("v", 1, Op.REPLACE, 1, 2, 3), bench.delta("v", 2, Op.DELETE))
    (row,) = bench.mill.vectors("moves", ["v"]).to_pylist()
    assert (row["exists"], row["values"]) == (False, None)
    assert format_instant(BEGIN + 2 * SECOND) == "2024-01-15T10:00:02Z"
    bench.tick(bench.delta("v", 3, Op.ADD, 1.0, at=(2,)))
    assert bench.mill.vectors("moves", ["v"]).column("values").to_pylist() == [[0, 0, 1]]


def test_an_id_may_be_a_number(bench: Bench) -> None:
    bench.mill.land(
        "moves", b'{"id":"n","vector_id":7,"at":"2024-01-15T10:00:00Z","op":"set","values":[1],"indices":[0]}'
    )
    bench.tick()
    assert bench.mill.vectors("moves", [7, "7"]).column("exists").to_pylist() == [True, True]


def test_nothing_accepted_is_no_vector(bench: Bench) -> None:
    assert bench.mill.vectors("moves", ["v"]).column("exists").to_pylist() == [False]
    assert bench.mill.vectors("moves", []).num_rows == 0
    with pytest.raises(NotFoundError, match="no delta of a vector 'v'"):
        bench.mill.chain("moves", "v")


def test_a_stream_of_events_has_no_vectors(bench: Bench) -> None:
    with pytest.raises(InputError, match="'plain' has no vectors"):
        bench.mill.vectors("plain", ["v"])
    with pytest.raises(InputError, match="'plain' has no vectors"):
        bench.mill.chain("plain", "v")


def test_an_answer_that_would_not_fit_is_refused(bench: Bench) -> None:
    with pytest.raises(InputError, match="do not fit an answer"):
        bench.mill.vectors("moves", range(MOST_COMPONENTS // 3 + 1))


def test_vectors_of_tenants_are_apart(tmp_path: Path) -> None:
    bench = opened(tmp_path, NEVER, "who: {type: string, required: true}", "tenant: {column: who}")
    said = b'{"id":"1","vector_id":"v","at":"2024-01-15T10:00:00Z","op":"set","values":[%d],"who":"%s",'
    said += b'"indices":[0]}'
    with bench.mill as mill:
        mill.land("moves", said % (1, b"ann"))
        bench.tick()
        assert mill.vectors("moves", ["v"]).column("values").to_pylist() == [[1, 0, 0]]  # the only one
        mill.land("moves", said % (2, b"bob"))
        bench.tick()
        assert mill.vectors("moves", ["v"], tenant="ann").column("values").to_pylist() == [[1, 0, 0]]
        assert mill.vectors("moves", ["v"], tenant="bob").column("values").to_pylist() == [[2, 0, 0]]
        with pytest.raises(InputError, match="several tenants"):
            mill.vectors("moves", ["v"])


def test_what_neither_chain_nor_raw_tells_is_refused(bench: Bench) -> None:
    bench.tick(*(bench.delta("v", second, Op.ADD, 0.1, at=(0,)) for second in range(6)))
    mill = bench.mill
    gone = VectorReader(
        mill.project.streams, mill.state, mill.warehouse.readers, lambda _stream: BEGIN + 2 * SECOND
    )
    kept = gone.vectors("moves", ["v"], BEGIN + 5 * SECOND)
    assert kept == mill.vectors("moves", ["v"], BEGIN + 5 * SECOND)
    with pytest.raises(NotFoundError, match="raw before 2024-01-15T10:00:02Z has expired"):
        gone.vectors("moves", ["v"], BEGIN + SECOND)


def test_reads_make_a_chain_hot(tmp_path: Path) -> None:
    settings = "strategy: adaptive, keep_recent: 5, delta_threshold: 2, time_threshold: 3650d"
    bench = opened(tmp_path, settings)
    with bench.mill as mill:
        bench.tick(
            *(bench.delta(name, n, Op.ADD, 0.1, at=(0,)) for name in ("hot", "cold") for n in range(5))
        )
        for _ in range(200):  # times five deltas that each of them applies
            mill.vectors("moves", ["hot"])
        bench.tick()
        assert [len(mill.chain("moves", name).deltas) for name in ("hot", "cold")] == [0, 5]
        bench.check(["hot", "cold"], bench.instants())


def test_what_was_read_is_not_read_again_until_it_changes(bench: Bench) -> None:
    bench.tick(*(bench.delta(f"v{n}", n, Op.SET, n, at=(0,)) for n in range(20)))
    bench.check()
    desk = bench.mill.workers.vector_reader
    before = desk.parts.groups_read
    assert before > 0
    bench.check()
    assert desk.parts.groups_read == before
    bench.tick(bench.delta("v3", 30, Op.SET, 5, at=(1,)))
    bench.check()
    assert desk.parts.groups_read > before


def grouped(folder: Path, names: Sequence[str], per_group: int) -> ChainParts:
    """A chain table of one bucket, with small row groups; and who reads it."""
    table = chain_table(folder, "moves")
    bucket, size = bucket_of(names[0]), len(names)
    stamp = pa.array(range(size), pa.int64()).cast(ROWS.field("ts").type)
    rows = pa.Table.from_arrays(
        [
            pa.array(["t"] * size), pa.array(names), pa.array([DELTA] * size), stamp,
            pa.array([f"d{n}" for n in range(size)]), pa.array(["add"] * size),
            pa.array([[0]] * size, pa.list_(pa.int32())), pa.array([[1.0]] * size),
            pa.array([1] * size), stamp, pa.array([0] * size),
        ],
        schema=ROWS,
    )  # fmt: skip
    staged = write_part(
        table.staging("one"), "chain-1.parquet", rows, partition={"bucket": bucket},
        footer=ChainFooter(bucket, Made(1, "h"), 0, size, None, 0, "d").to_footer(), stats_columns=STATS,
        row_group_rows=per_group,
    )  # fmt: skip
    table.commit(table.publish([staged]), [], info={}, now=0)
    return ChainParts(kept_bytes=1 << 20)


def same_bucket(count: int) -> list[str]:
    names = (f"v{n:05}" for n in range(100 * count))
    return [name for name in names if bucket_of(name) == "03"][:count]


def test_only_row_groups_that_can_hold_a_vector_are_read(tmp_path: Path) -> None:
    names = same_bucket(40)
    parts, snapshot = grouped(tmp_path, names, 4), chain_table(tmp_path, "moves").snapshot()
    found = parts.rows(snapshot, "t", [names[9], names[10], names[30]])
    assert found.column("vector_id").to_pylist() == [names[9], names[10], names[30]]
    assert parts.groups_read == 2
    assert parts.rows(snapshot, "somebody else", names).num_rows == 0


def test_a_table_that_was_declared_in_another_way_counts_for_nothing(tmp_path: Path) -> None:
    parts, snapshot = grouped(tmp_path, same_bucket(4), 4), chain_table(tmp_path, "moves").snapshot()
    assert parts.made(snapshot, "d") == Made(1, "h")
    assert parts.made(snapshot, "another way") == Made()
    assert parts.made(None, "d") == Made()


def test_what_is_kept_of_parts_has_a_bound(tmp_path: Path) -> None:
    names = same_bucket(40)
    grouped(tmp_path, names, 4)
    small, snapshot = ChainParts(kept_bytes=1), chain_table(tmp_path, "moves").snapshot()
    assert small.rows(snapshot, "t", names).num_rows == 40
    assert small.rows(snapshot, "t", names).num_rows == 40
    assert small.groups_read == 20  # nothing fits, so all is read twice
