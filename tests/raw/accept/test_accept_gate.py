"""The gate kernel against a dictionary, with keys that collide on purpose: ids decide, never their hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.formats.arrays import Words
from tidemill.formats.decide import content_hash, parse
from tidemill.formats.key_runs import hash_keys, key_ranges
from tidemill.raw.accept import gate as gate_module
from tidemill.raw.accept import run_files
from tidemill.raw.accept import stage as stage_module
from tidemill.raw.accept.gate import CONFLICT, DUPLICATE, GateUnit, KeyedChunk, gate
from tidemill.raw.accept.id_runs import (
    FAN_IN,
    MergeUnit,
    RunUnit,
    covering,
    make_run,
    merge,
    merged_names,
    plan_merge,
)
from tidemill.raw.accept.run_files import pieces_of, read_run, write_run
from tidemill.storage import layout
from tidemill.storage.checksums import read_arrow, write_arrow
from tidemill.storage.ipc import read_ipc, write_ipc
from tidemill.storage.layout import RUN_SUFFIX
from tidemill.storage.tables.parts import FOOTER_KEY


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """So that a run of a few rows has several, and a sieve, and keys are decided a few at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "BLOCK", 3)
        patch.setattr(run_files, "SIEVED", 2)
        patch.setattr(gate_module, "STEP", 4)
        yield


class Record(NamedTuple):
    tenant: str
    event_id: str
    content: int


Batch = list[list[Record]]  # chunks, in order of arrival
RECORDS = st.builds(
    Record,
    st.sampled_from(["", "a", "ab", "é"]),
    st.sampled_from([*"abcdefgh", "ab", "é", "x" * 40, ""]),
    st.sampled_from([0, 1, 2, 2**64 - 1]),
)
STORIES = st.lists(st.lists(st.lists(RECORDS, max_size=12), min_size=1, max_size=3), min_size=1, max_size=5)

Hash = Callable[[pa.DictionaryArray, pa.StringArray], tuple[Words, Words]]


def narrowed(high: int, low: int) -> Hash:
    """The real keys, of which only so many different values are left."""

    def weak(tenant: pa.DictionaryArray, ids: pa.StringArray) -> tuple[Words, Words]:
        first, second = hash_keys(tenant, ids)
        return first % np.uint64(high) << np.uint64(60), second % np.uint64(low)

    return weak


HASHES: dict[str, Hash] = {
    "real keys": hash_keys,
    "all keys equal": narrowed(1, 1),
    "a few keys": narrowed(3, 2),
    "one high lane, real low lanes": narrowed(1, 2**63),
    "few high lanes, one low lane": narrowed(5, 1),
}


class Story:
    """Batches through the kernel, and through a dictionary."""

    def __init__(self, folder: Path, cuts: int, gap: int) -> None:
        self.folder = folder
        self.ranges = key_ranges(cuts)
        self.gap = gap  # lines that did not become records, before each chunk and between its records
        self.runs: list[str] = []
        self.held: dict[tuple[str, str], tuple[int, int, int]] = {}  # content, seq, line
        self.seq = 0

    def tell(self, number: int, batch: Batch) -> None:
        chunks = [self._chunk(number, index, records) for index, records in enumerate(batch)]
        expected: dict[tuple[int, int], tuple[object, ...]] = {}
        for index, (chunk, records) in enumerate(zip(chunks, batch, strict=True)):
            for at, record in enumerate(records):
                line = chunk.first_line + self._row(at)
                holder = self.held.setdefault(record[:2], (record.content, chunk.seq, line))
                if holder != (record.content, chunk.seq, line):
                    kind = DUPLICATE if holder[0] == record.content else CONFLICT
                    expected[index, at] = (kind, record.content, *holder)
        found = self._gate(number, chunks)
        assert found == expected
        assert self.remembered() == self.held

    def _row(self, at: int) -> int:
        return at * (1 + self.gap)

    def _chunk(self, number: int, index: int, records: Sequence[Record]) -> KeyedChunk:
        self.seq += 1
        table = pa.table(
            {
                "row": pa.array([self._row(at) for at in range(len(records))], pa.int32()),
                "tenant": pa.array([r.tenant for r in records], pa.string()).dictionary_encode(),
                "event_id": pa.array([r.event_id for r in records], pa.string()),
                "content": pa.array([r.content for r in records], pa.uint64()),
            }
        )
        keys = self.folder / f"{number}-{index}.keys"
        write_ipc(keys, stage_module._sorted_keys(table))
        return KeyedChunk(self.seq, 1 + self.gap, str(keys))

    def _gate(self, number: int, chunks: Sequence[KeyedChunk]) -> dict[tuple[int, int], tuple[object, ...]]:
        found: dict[tuple[int, int], tuple[object, ...]] = {}
        new = []
        for part, (low, high) in enumerate(self.ranges):
            run = str(self.folder / f"{number}-{part}{RUN_SUFFIX}")
            drops = str(self.folder / f"{number}-{part}.drops")
            (gated,) = gate(GateUnit(low, high, chunks, self.runs, run, drops))
            counted: dict[int, dict[int, int]] = {DUPLICATE: {}, CONFLICT: {}}
            for drop in read_ipc(gated.drops).to_pylist() if gated.drops else []:
                place = (drop["chunk"], drop["at"])
                assert place not in found
                found[place] = (drop["kind"], drop["content"], drop["rival"], drop["seq"], drop["line"])
                of_kind = counted[drop["kind"]]
                of_kind[drop["chunk"]] = of_kind.get(drop["chunk"], 0) + 1
            assert (gated.duplicates, gated.conflicts) == (counted[DUPLICATE], counted[CONFLICT])
            if gated.run is not None:
                assert pieces_of(Path(gated.run)) == [Path(run).stem]
                assert gated.keys == read_run(gated.run).high.size > 0
                new.append(gated.run)
            else:
                assert (gated.keys, Path(run).exists()) == (0, False)
        self.runs += new
        return found

    def remembered(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """What the runs of history hold; each id once, each run in order."""
        found: dict[tuple[str, str], tuple[int, int, int]] = {}
        for path in self.runs:
            rows = read_run(path).table().to_pylist()
            assert [row["high"] for row in rows] == sorted(row["high"] for row in rows)
            for row in rows:
                tenant, event_id = row["key"].decode().split("\0")
                assert (tenant, event_id) not in found
                found[tenant, event_id] = (row["content"], row["seq"], row["line"])
        return found

    def merge_some(self, random: Random) -> None:
        names = {Path(path).name: 1 for path in self.runs if random.random() < 0.6}
        families = {name.rpartition("-")[0] for name in names}  # files of one merge stay together
        chosen = [path for path in self.runs if Path(path).name.rpartition("-")[0] in families]
        if len(chosen) < 2:
            return
        pieces = sorted({piece for path in chosen for piece in pieces_of(Path(path))})
        count = random.choice([1, 2, 3])
        targets = [str(self.folder / name) for name in merged_names(pieces, count)]
        for (low, high), target in zip(key_ranges(count), targets, strict=True):
            assert list(merge(MergeUnit(chosen, low, high, target, pieces))) == [target]
            assert pieces_of(Path(target)) == pieces
        self.runs = [*targets, *(path for path in self.runs if path not in chosen)]
        random.shuffle(self.runs)  # what a run says does not depend on its place


@pytest.mark.parametrize("hashing", HASHES)
@examples(40)
@given(story=STORIES, cuts=st.sampled_from([1, 2, 3]), gap=st.sampled_from([0, 2]), seed=st.integers(0, 99))
def test_outcomes_are_exact_whatever_the_keys(
    hashing: str, story: list[Batch], cuts: int, gap: int, seed: int
) -> None:
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(stage_module, "hash_keys", HASHES[hashing])
        scenario = Story(Path(folder), cuts, gap)
        for number, batch in enumerate(story):
            scenario.tell(number, batch)
            scenario.merge_some(random)
            assert scenario.remembered() == scenario.held


def test_m1_and_m2_in_one_batch_and_over_two(tmp_path: Path) -> None:
    """The first one passes; the same again is a duplicate, another content a conflict."""
    story = Story(tmp_path, 1, 0)
    story.tell(0, [[Record("t", "e", 1), Record("t", "e", 1), Record("t", "e", 2)], [Record("u", "e", 2)]])
    story.tell(1, [[Record("t", "e", 2), Record("t", "e", 1)]])
    assert story.held == {("t", "e"): (1, 1, 1), ("u", "e"): (2, 2, 1)}


# --- runs


def run_of(folder: Path, name: str, pieces: Sequence[str], highs: Sequence[int] = ()) -> str:
    table = pa.table(
        {
            "high": pa.array(highs, pa.uint64()),
            "low": pa.array(highs, pa.uint64()),
            "content": pa.array(highs, pa.uint64()),
            "seq": pa.array([1] * len(highs), pa.int64()),
            "line": pa.array(range(len(highs)), pa.int64()),
            "key": pa.array([f"t\0{high}".encode() for high in highs], pa.binary()),
        }
    )
    write_run(folder / f"{name}{RUN_SUFFIX}", table, pieces)
    return f"{name}{RUN_SUFFIX}"


def test_a_run_says_its_pieces_and_leaves_nothing_else_in_the_folder(tmp_path: Path) -> None:
    name = run_of(tmp_path, "r", ["b", "a"], [1, 5])
    assert pieces_of(tmp_path / name) == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert read_arrow(tmp_path / name).column("high").to_pylist() == [1, 5]


TEXTS = [
    [b"t\0%04d" % n for n in range(20)],
    [b"t\0" + b"x" * (n % 5) for n in range(20)],
    [b""] * 7,
    [b"one"],
]


@pytest.mark.parametrize("texts", TEXTS, ids=["one length", "several", "empty", "single"])
def test_a_run_has_what_was_written(tmp_path: Path, texts: list[bytes]) -> None:
    count = len(texts)
    rows = pa.table(
        {
            "high": pa.array([n * n for n in range(count)], pa.uint64()),
            "content": pa.array([2**64 - 1 - n for n in range(count)], pa.uint64()),
            "seq": pa.array([2**40 + n % 2 for n in range(count)], pa.int64()),
            "line": pa.array([2**33 * n for n in range(count)], pa.int64()),
            "key": pa.array(texts, pa.binary()),
        }
    )
    write_run(tmp_path / "new.run", rows, ["a"])
    write_arrow(tmp_path / "old.run", rows.append_column("low", rows.column("high")))  # as it was before
    for name in ("new.run", "old.run"):
        run = read_run(tmp_path / name)
        assert run.table().to_pylist() == rows.to_pylist()
        assert run.within(4, 50).table().to_pylist() == [r for r in rows.to_pylist() if 4 <= r["high"] < 50]
        some = np.array([n for n in (0, 1, 1, 6, 7, 19) if n < count])
        assert run.origins(some).key.to_pylist() == [texts[n] for n in some]
        assert run.origins(np.empty(0, np.int64)).line.size == 0
    list(merge(MergeUnit([str(tmp_path / "old.run"), str(tmp_path / "new.run")], 0, 2**64,
                         str(tmp_path / "both.run"), ["a"])))  # fmt: skip
    both = read_run(tmp_path / "both.run").table().to_pylist()
    assert both == sorted([*rows.to_pylist()] * 2, key=lambda row: row["high"])


def test_runs_of_earlier_versions_claim_their_ids(tmp_path: Path) -> None:
    told = Story(tmp_path, 2, 0)
    told.tell(0, [[Record("t", f"e{n}", n) for n in range(40)]])
    for number, path in enumerate(told.runs):
        rows = read_run(path).table()
        old = rows.append_column("low", pa.array([0] * rows.num_rows, pa.uint64()))
        write_arrow(tmp_path / f"old-{number}{RUN_SUFFIX}", old)
        told.runs[number] = str(tmp_path / f"old-{number}{RUN_SUFFIX}")
    told.tell(1, [[Record("t", "e7", 7), Record("t", "e8", 9), Record("t", "new", 1)]])
    assert len(told.held) == 41


@pytest.mark.parametrize(
    ("runs", "wanted", "chosen"),
    [
        ({}, "", []),
        ({}, "a", None),
        ({"r1": "a", "r2": "b"}, "ab", ["r1", "r2"]),
        ({"r1": "a", "r2": "b"}, "a", ["r1"]),
        ({"r1": "a", "r2": "b"}, "abc", None),
        ({"r1": "a", "r2": "b", merged_names("ab")[0]: "ab"}, "ab", merged_names("ab")),  # inputs still there
        ({"r1": "a", merged_names("ab")[0]: "ab"}, "a", ["r1"]),  # one that holds more is not taken
        ({merged_names("ab")[0]: "ab"}, "a", None),
        (dict.fromkeys(merged_names("ab", 2), "ab"), "ab", merged_names("ab", 2)),
        ({merged_names("ab", 2)[0]: "ab"}, "ab", None),  # half of a merge is nothing
        ({merged_names("ab", 2)[1]: "ab", "r1": "a", "r2": "b"}, "ab", ["r1", "r2"]),
        ({merged_names("abc")[0]: "abc", merged_names("cd")[0]: "cd", "r": "d"}, "abcd",
         ["r", *merged_names("abc")]),
    ],
)  # fmt: skip
def test_covering(tmp_path: Path, runs: dict[str, str], wanted: str, chosen: list[str] | None) -> None:
    for name, pieces in runs.items():
        run_of(tmp_path, name.removesuffix(RUN_SUFFIX), list(pieces))
    found = covering(tmp_path, frozenset(wanted))
    assert found == (
        None if chosen is None else sorted(f"{name.removesuffix(RUN_SUFFIX)}{RUN_SUFFIX}" for name in chosen)
    )


@pytest.mark.parametrize("files", [1, 2])
def test_runs_are_merged_in_tiers_so_that_they_stay_few(files: int) -> None:
    """A thousand equal batches: never many runs, and no key is rewritten more than a few times."""
    runs: dict[str, int] = {}
    written = 0
    most = 0
    for number in range(1000):
        runs[f"{number:04d}-0{RUN_SUFFIX}"] = 100_000
        while chosen := plan_merge(runs):
            assert len(chosen) >= FAN_IN
            size = sum(runs.pop(name) for name in chosen)
            assert not {name.rpartition("-")[0] for name in runs} & {
                name.rpartition("-")[0] for name in chosen
            }
            runs |= dict.fromkeys(merged_names(chosen, files), size // files)
            written += size
        most = max(most, len(runs))
    assert sum(runs.values()) == 1000 * 100_000
    assert most <= FAN_IN * 4
    assert written <= 4 * 1000 * 100_000


def test_few_runs_or_runs_of_different_sizes_are_left_alone() -> None:
    assert plan_merge({}) == []
    assert plan_merge({f"r{i}{RUN_SUFFIX}": 1000 for i in range(FAN_IN - 1)}) == []
    assert plan_merge({f"r{i}{RUN_SUFFIX}": 64**i for i in range(FAN_IN)}) == []


PAYLOADS = [
    b'{"id":"e1","n":1}', b'{ "n": 1.0, "id":"e1"}', b'{"id":"e2","\\u006e":1}',
    b'{"id":"e3","v":[1,{"a":null}]}', b'{"id":"e4","n":1e99999999999}',
]  # fmt: skip


def test_a_run_made_again_from_raw_is_the_run_that_the_gate_wrote(tmp_path: Path) -> None:
    keys = [("t", "e1"), ("u", "e1"), ("t", "e2"), ("é", "e3"), ("t", "e4")]
    records = [(*key, payload) for key, payload in zip(keys, PAYLOADS, strict=True)]
    story = Story(tmp_path, 1, 0)
    story.tell(0, [[Record(t, i, content_hash(parse(payload, 9))) for t, i, payload in records]])
    raw = tmp_path / "raw.parquet"
    rows = [(t, i, "slice-a", line, p.decode()) for line, (t, i, p) in enumerate(records, start=1)]
    tenant, event_id, slices, lines, payload = zip(*reversed(rows), strict=True)
    pq.write_table(
        pa.table(
            {"tenant": tenant, "event_id": event_id, "slice": slices, "line": lines, "payload": payload}
        ).replace_schema_metadata({FOOTER_KEY: b"{}"}),
        raw,
    )
    target = tmp_path / f"again{RUN_SUFFIX}"
    list(make_run(RunUnit([str(raw)], {"slice-a": 1}, str(target), ["0-0"])))
    assert read_run(target).table().equals(read_run(story.runs[0]).table())
    assert pieces_of(target) == ["0-0"]
    assert layout.gate(tmp_path, "s") == tmp_path / "gate" / "s"


@pytest.mark.parametrize("shortest", [9, 1], ids=["of one length", "of any length"])
def test_any_rows_of_a_run_are_found_in_its_blocks(tmp_path: Path, shortest: int) -> None:
    block = run_files.BLOCK
    rows = block + 1000
    numbers = np.arange(rows)
    texts = [
        f"acme\0{number:09d}".encode()[: 5 + shortest + number % (10 - shortest)] for number in range(rows)
    ]
    table = pa.table(
        {"high": numbers.astype(np.uint64), "content": numbers.astype(np.uint64), "seq": numbers // 7,
         "line": numbers % 7, "key": pa.array(texts, pa.binary())}
    )  # fmt: skip
    write_run(tmp_path / "one.run", table, ["one"])
    run = read_run(tmp_path / "one.run")
    for wanted in ([0], [rows - 1], [5, 5, block - 1, block, block + 7], [], list(range(rows))):
        found = run.origins(np.array(wanted, np.int64))
        assert found.seq.tolist() == [number // 7 for number in wanted]
        assert found.line.tolist() == [number % 7 for number in wanted]
        assert found.key.to_pylist() == [texts[number] for number in wanted]
