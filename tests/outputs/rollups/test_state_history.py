"""The state history: observations and admitted keys follow raw, whatever happens to them, to the process, or
to the ledger."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.outputs.rollups.test_rollups_states import Seen, counts_of, merged, naive

from tidemill.config import EngineSettings as EngineSettings
from tidemill.config import Limits, Stream
from tidemill.engine import Engine
from tidemill.engine.session import SessionSettings
from tidemill.formats.read_plan import plan_for
from tidemill.ingest.landing import Landing
from tidemill.model.failpoints import observed as observed_points
from tidemill.model.levels import BASE
from tidemill.model.metrics import OTHER
from tidemill.model.slices import SliceEntry
from tidemill.model.time import DAY, MINUTE, SECOND
from tidemill.outputs.rollups import state_history as state_history_module
from tidemill.outputs.rollups.cell_files import read_cells
from tidemill.outputs.rollups.events import metric_plan
from tidemill.outputs.rollups.history_kernel import note
from tidemill.outputs.rollups.kernel import Tap
from tidemill.outputs.rollups.observation_runs import FAN_IN
from tidemill.outputs.rollups.spec import RollupSpec, spec_for
from tidemill.outputs.rollups.state_history import StateHistory
from tidemill.raw.accept.batch import Acceptor, Batch
from tidemill.raw.accept.catch_up import rebuild_runs
from tidemill.raw.batch_removal import remove_batches
from tidemill.raw.expiry import expirable, expire_raw
from tidemill.raw.recovered_batches import part_facts, records_of
from tidemill.storage import layout
from tidemill.storage.checksums import read_arrow
from tidemill.storage.state.protocol import Retraction, State
from tidemill.storage.state.sqlite import open_state

pytestmark = pytest.mark.long

START = 1_704_067_200 * SECOND
METRICS: dict[str, dict[str, object]] = {
    "near": {"kind": "state", "object": "object", "state": "state", "dimensions": ["region"]},
    "far": {
        "kind": "state",
        "object": "object",
        "state": "state",
        "dimensions": ["region"],
        "transitions": {"ever": {"from": "any", "until": ["d"]}, "some": {"from": ["a", "b"], "to": ["c"]}},
    },
    "few": {
        "kind": "state",
        "object": "object",
        "state": "state",
        "dimensions": ["region"],
        "max_cardinality": 1,
    },
    "seen": {"kind": "counter", "dimensions": ["object"], "max_cardinality": 2},
}


def stream_of(metrics: dict[str, dict[str, object]]) -> Stream:
    return Stream.model_validate(
        {
            "name": "orders",
            "schema": {
                "id": "string",
                "ts": "integer",
                "object": "string",
                "state": "string",
                "region": "string",
            },
            "identity": "id",
            "event_time": {"column": "ts", "type": "unixtimestamp_us"},
            "tenant": {"value": "acme"},
            "metrics": metrics,
        }
    )


@dataclass(frozen=True)
class Noting:
    """A tap that leaves what the state history needs."""

    spec: RollupSpec

    @property
    def columns(self) -> Sequence[str]:
        return Tap(self.spec).columns

    def __call__(self, rows: pa.Table, folder: Path, name: str) -> None:
        note(self.spec, rows, folder, name)


class Bench:
    """A stream on disk with its state history; `reopen` is what a new process does."""

    def __init__(self, root: Path, metrics: dict[str, dict[str, object]] | None = None) -> None:
        self.warehouse = root / "warehouse"
        self.warehouse.mkdir(parents=True)
        self.stream = stream_of(METRICS if metrics is None else metrics)
        self.spec = spec_for(self.stream)
        self.state: State = open_state(root / "state.db")
        self.landed: list[list[Seen]] = []
        self.ids: list[str] = []
        self.contributions: dict[str, list[pa.Table]] = {metric.name: [] for metric in self.spec.metrics}
        self.retracted = 0
        self.reopen()

    def reopen(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine(settings=SessionSettings(cores=2), inline_bytes=1 << 60)
        self.acceptor = Acceptor(
            self.warehouse,
            self.stream,
            Limits(),
            EngineSettings(),
            self.engine,
            self.state,
            Noting(self.spec),
        )
        self.state_history = self.fresh_state_history()

    def fresh_state_history(self) -> StateHistory:
        plan = metric_plan(plan_for(self.stream, Limits()))
        return StateHistory(self.warehouse, self.spec, plan, self.engine, self.state, self.acceptor.raw)

    def land(self, seen: Sequence[Seen]) -> None:
        rows = [
            {"id": s.id, "ts": s.time, "object": s.object, "state": s.state, "region": s.region} for s in seen
        ]
        lines = "".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows)
        landing = Landing(self.warehouse, self.state)
        landed = landing.land_bytes("orders", lines.encode(), arrival=START + 10 * DAY + len(self.landed))
        self.ids.append(landed.entry.id)
        self.landed.append([s._replace(seq=len(self.ids)) for s in seen])

    def accept(self) -> Batch:
        self.state_history.catch_up()
        batch = self.acceptor.accept()
        assert batch is not None
        return batch

    def add(self, batch: Batch) -> None:
        assert batch.taps is not None
        slices = {result.slice: self.seqs[result.slice] for result in batch.record.results}
        touched = self.state_history.add(batch.id, slices, batch.taps)
        assert touched is not None
        for path in sorted(batch.taps.glob("states-*.cells")):
            for name, table in read_cells(str(path)).items():
                self.contributions[name].append(table)
        self.acceptor.finish()

    def take(self, *many: Sequence[Seen]) -> None:
        """Land slices and take them up as one batch."""
        for seen in many:
            self.land(seen)
        self.add(self.accept())

    @property
    def seqs(self) -> dict[str, int]:
        return {entry.id: entry.seq for entry in self.state.slices("orders")}

    def retract(self, number: int) -> None:
        """As `tidemill retract` does in a stream whose metrics go by what came before."""
        entries = self.state.slices("orders")
        undone = {e.batch for e in entries if e.seq >= number and e.batch is not None}
        again = {e.id: e.counts.accepted for e in entries if e.batch in undone and e.seq != number}
        remove_batches(self.acceptor.raw, {str(batch) for batch in undone}, {"retract": "x"}, 0)
        self.retracted += 1
        act = Retraction(self.retracted, "orders", self.ids[number - 1], "wrong", 99, again)
        self.state.apply_retraction(act, [], self.acceptor.raw.version, self.acceptor.quarantine.version)
        self.state.replace_runs("orders", self.state.runs("orders"), rebuild_runs(self.acceptor))
        self.landed[number - 1] = []
        self.acceptor.finish()

    def recover(self, path: Path, seqs: Sequence[int]) -> None:
        """A new state, from the ledger with these places and from raw."""
        entries = [SliceEntry(seq, e.slice) for seq, e in zip(seqs, self.state.slices(), strict=True)]
        facts = [fact for part in self.acceptor.raw.snapshot().paths() for fact in part_facts(part)]
        records = records_of("orders", facts, self.acceptor.raw.version, 0)
        self.state.close()
        self.state = open_state(path)
        self.state.restore(sorted(entries, key=lambda entry: entry.seq), list(records.values()))
        self.reopen()

    # -- what there is

    @property
    def all_seen(self) -> list[Seen]:
        return [seen for landed in self.landed for seen in landed]

    def desired(self) -> dict[int, frozenset[str]]:
        found = {t.state.key.start: t.desired for t in self.state.stale_tiles("orders")}
        return {start: names for start, names in sorted(found.items()) if names}

    def known(self) -> dict[str, list[tuple[object, ...]]]:
        """Everything that the trails hold, by metric."""
        found: dict[str, list[tuple[object, ...]]] = {}
        for path in sorted(self.state_history.folder.glob("*.trail")):
            rows = [tuple(row.values()) for row in read_arrow(str(path)).to_pylist()]
            found.setdefault(path.stem.partition("~")[2], []).extend(rows)
        return {metric: sorted(rows, key=repr) for metric, rows in found.items()}

    def admitted(self) -> dict[str, set[tuple[object, ...]]]:
        roster = self.state_history.admitted_keys
        assert roster is not None
        return {name: {tuple(r.values()) for r in roster.keys(name).to_pylist()} for name in roster.metrics}

    def check(self, folder: Path) -> None:
        """All ways to what a state metric holds agree, and with the rules one observation after the other."""
        folder.mkdir(parents=True)
        recounted = self.state_history.recount(self.acceptor.raw.snapshot().paths(), self.seqs, folder)
        starts = {BASE.tile_of(seen.time) for seen in self.all_seen}
        (folder / "tiles").mkdir()
        reported = self.state_history.state_cells_for(sorted(starts), folder / "tiles")
        for metric in self.spec.metrics:
            if metric.following is None:
                continue
            wanted = naive(metric, self.renamed(self.all_seen, metric.limit))
            from_raw = list(recounted.cells)
            assert merged(counts_of(read_cells(p).get(metric.name, _none())) for p in from_raw) == wanted
            assert merged(counts_of(read_cells(p).get(metric.name, _none())) for p in reported) == wanted
        assert recounted.touched == self.state_history.touched
        if recounted.admitted_keys is not None:
            for name in recounted.admitted_keys.metrics:
                rows = {tuple(r.values()) for r in recounted.admitted_keys.keys(name).to_pylist()}
                assert rows == self.admitted()[name]

    def renamed(self, seen: Sequence[Seen], limit: int | None) -> list[Seen]:
        first = next((s.region for s in seen if s.object and s.state), None)
        if limit is None:
            return list(seen)
        return [s if s.region == first else s._replace(region=OTHER) for s in seen]

    def check_contributions(self) -> None:
        for metric in self.spec.metrics:
            if metric.following is not None:
                parts = [counts_of(table) for table in self.contributions[metric.name]]
                assert merged(parts) == naive(metric, self.renamed(self.all_seen, metric.limit))


def _none() -> pa.Table:
    return pa.table({"count": pa.array([], pa.int64())})


def seen_of(seed: int, count: int, slices: int) -> list[list[Seen]]:
    """Slices of events of a few objects, in no order of time."""
    dice = random.Random(seed)
    return [
        [
            Seen(
                dice.choice("opqr"),
                dice.choice("abcd"),
                START + dice.choice([0, 1, 5, 700, 2400, 5000]) * SECOND + dice.randrange(3),
                f"{number}-{i:03d}",
                dice.choice(["eu", "us"]),
            )
            for i in range(count)
        ]
        for number in range(slices)
    ]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "bench")
    yield made
    made.state.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_batches_add_is_what_the_rules_say_of_all_of_it(bench: Bench, tmp_path: Path, seed: int) -> None:
    slices = seen_of(seed, 12, 6)
    bench.take(*slices[:2])
    bench.take(slices[2])
    bench.reopen()
    bench.take(*slices[3:])
    bench.check_contributions()
    bench.check(tmp_path / "check")


def test_the_tiles_that_a_late_observation_changes_are_told_to_the_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"near": METRICS["near"]})
    later, earlier = START + 60 * MINUTE, START
    bench.take([Seen("o", "b", later, "1", "eu")])
    bench.take([Seen("o", "a", earlier, "2", "eu")])
    tiles = bench.desired()
    assert tiles == {earlier: {bench.ids[1]}, later: {bench.ids[0], bench.ids[1]}}
    assert bench.state_history.touched == {later: {bench.ids[1]}}
    bench.take([Seen("p", "a", START + 90 * MINUTE, "3", "eu")])
    assert bench.state_history.touched == {later: {bench.ids[1]}}


def test_batches_are_not_looked_at_when_raw_did_not_change(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.take(*seen_of(1, 5, 2))
    before = {path: path.stat().st_mtime_ns for path in bench.state_history.folder.iterdir()}
    monkeypatch.delattr(StateHistory, "_batches")  # would fail if it were asked
    bench.state_history.catch_up()
    assert {path: path.stat().st_mtime_ns for path in bench.state_history.folder.iterdir()} == before


def test_a_stream_without_states_and_limits_needs_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"all": {"kind": "counter", "dimensions": ["region"]}})
    bench.take([Seen("o", "a", START, "1", "eu")])
    assert not bench.state_history.needed
    assert bench.state_history.admitted_keys is None
    assert not bench.state_history.folder.exists()


# -- loss, crashes, retractions


def _lose_a_trail(folder: Path) -> None:
    sorted(folder.glob("*~near.trail"))[0].unlink()


def _damage_a_trail(folder: Path) -> None:
    path = sorted(folder.glob("*~far.trail"))[-1]
    path.write_bytes(path.read_bytes()[:-20])


def _lose_the_log(folder: Path) -> None:
    layout.state_history_log(folder).unlink()


def _tear_the_log(folder: Path) -> None:
    layout.state_history_log(folder).write_bytes(layout.state_history_log(folder).read_bytes()[:-9])


def _damage_the_log(folder: Path) -> None:
    layout.state_history_log(folder).write_bytes(b"{" + layout.state_history_log(folder).read_bytes())


def _lose_the_roster(folder: Path) -> None:
    (folder / "seen.roster").unlink()


def _lose_everything(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


LOSSES = (
    _lose_a_trail, _damage_a_trail, _lose_the_log, _tear_the_log, _damage_the_log, _lose_the_roster,
    _lose_everything,
)  # fmt: skip


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__.strip("_"))
def test_what_is_lost_is_made_again_from_raw(bench: Bench, tmp_path: Path, lose: object) -> None:
    slices = seen_of(2, 10, 4)
    for each in slices[:3]:
        bench.take(each)
    known, admitted, touched = bench.known(), bench.admitted(), bench.state_history.touched
    assert callable(lose)
    lose(bench.state_history.folder)
    bench.reopen()
    bench.state_history.catch_up()
    assert (bench.known(), bench.admitted(), bench.state_history.touched) == (known, admitted, touched)
    bench.take(slices[3])
    bench.check(tmp_path / "check")


def test_a_state_that_was_made_anew_hears_everything_again(bench: Bench, tmp_path: Path) -> None:
    slices = seen_of(5, 10, 4)
    for each in slices:
        bench.take(each)
    reported, known = bench.desired(), bench.known()
    bench.recover(tmp_path / "anew.db", [entry.seq for entry in bench.state.slices()])
    assert bench.desired() != reported
    bench.state_history.count_all_states()
    assert bench.desired() == reported
    assert bench.known() == known


def test_a_ledger_in_another_order_makes_another_state_history(bench: Bench, tmp_path: Path) -> None:
    slices = seen_of(5, 10, 3)
    for each in slices:
        bench.take(each)
    bench.recover(tmp_path / "anew.db", [3, 2, 1])
    bench.landed.reverse()
    bench.state_history.count_all_states()
    bench.check(tmp_path / "check")


def test_other_metrics_make_another_state_history(bench: Bench, tmp_path: Path) -> None:
    bench.take(*seen_of(2, 10, 3))
    metrics = {name: METRICS[name] | {"dimensions": []} for name in ("near", "far")}
    bench.stream = stream_of(metrics)
    bench.spec = spec_for(bench.stream)
    bench.reopen()
    bench.state_history.catch_up()
    assert bench.known().keys() == {"near", "far"}
    assert len(bench.known()["near"]) == 30


class _DiedError(Exception):
    """What a killed process does not run any further."""


@pytest.mark.parametrize(
    "point", ["state_history.after_trails", "state_history.after_state", "state_history.after_log"]
)
def test_a_crash_leaves_nothing_that_is_not_mended(bench: Bench, tmp_path: Path, point: str) -> None:
    slices = seen_of(3, 10, 4)
    bench.take(*slices[:2])
    bench.land(slices[2])
    batch = bench.accept()

    def die(name: str) -> None:
        if name == point:
            raise _DiedError

    with observed_points(die), pytest.raises(_DiedError):
        bench.add(batch)
    bench.reopen()
    bench.state_history.catch_up()
    reported = bench.desired()
    bench.state_history.count_all_states()
    assert bench.desired() == reported
    assert {start for start, _ in bench.state_history.touched.items()} <= reported.keys()
    bench.acceptor.finish()
    bench.take(slices[3])
    bench.check(tmp_path / "check")


def test_a_batch_that_nobody_took_up_is_taken_up_from_raw(bench: Bench, tmp_path: Path) -> None:
    slices = seen_of(4, 8, 3)
    bench.take(slices[0])
    bench.land(slices[1])
    bench.accept()
    bench.acceptor.finish()
    bench.reopen()
    bench.land(slices[2])
    batch = bench.accept()
    bench.add(batch)
    bench.check(tmp_path / "check")


def test_a_batch_that_comes_out_of_turn_is_taken_up_from_raw(bench: Bench, tmp_path: Path) -> None:
    slices = seen_of(4, 8, 2)
    for each in slices:
        bench.land(each)
        batch = bench.acceptor.accept()
        assert batch is not None
    assert batch.taps is not None
    assert bench.state_history.add(batch.id, {bench.ids[1]: 2}, batch.taps) is None
    assert not list(batch.taps.glob("states-*.cells"))
    bench.acceptor.finish()
    bench.check(tmp_path / "check")


@pytest.mark.parametrize("number", [1, 3, 5])
def test_after_a_retraction_it_is_as_if_the_slice_had_never_come(
    bench: Bench, tmp_path: Path, number: int
) -> None:
    slices = seen_of(5, 10, 5)
    for each in slices:
        bench.take(each)
    bench.retract(number)
    bench.reopen()
    bench.state_history.catch_up()
    assert all(row[-1] < number for rows in bench.known().values() for row in rows)
    if number < 5:
        bench.add(bench.accept())
    bench.check(tmp_path / "check")
    reported = bench.desired()
    for start, names in bench.state_history.touched.items():
        assert names <= {name.partition("~")[0] for name in reported[start]}


@pytest.mark.long
def test_trails_are_merged_and_can_still_be_cut(bench: Bench, tmp_path: Path) -> None:
    slices = seen_of(6, 3, FAN_IN + 2)
    for each in slices[:FAN_IN]:
        bench.take(each)
    known, touched = bench.known(), bench.state_history.touched
    assert bench.state_history.tidy() == FAN_IN
    assert (bench.known(), bench.state_history.touched) == (known, touched)
    assert len(list(bench.state_history.folder.glob("*~near.trail"))) == 1
    assert bench.state_history.tidy() == 0
    bench.reopen()
    bench.take(slices[FAN_IN])
    bench.check(tmp_path / "merged")
    bench.retract(FAN_IN - 3)
    bench.reopen()
    bench.take(slices[FAN_IN + 1])
    bench.check(tmp_path / "cut")


def test_what_was_seen_outlives_raw(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", {"near": METRICS["near"]})
    (metric,) = bench.spec.declared_metrics
    bench.take([Seen("o", "a", START, "1", "eu"), Seen("p", "a", START, "2", "eu")])
    bench.take([Seen("o", "b", START + 3 * DAY, "3", "eu")])
    before = START + 2 * DAY
    gone = expirable(bench.acceptor.raw.snapshot(), before, counted_late=False)
    expire_raw(bench.acceptor, gone.whole, before, before + DAY)
    bench.reopen()
    bench.take([Seen("p", "c", START + 4 * DAY, "4", "eu")])
    bench.check_contributions()
    assert bench.state_history.tidy() == 0
    bench.retract(3)
    bench.reopen()
    bench.take([Seen("p", "d", START + 4 * DAY, "5", "eu")])
    paths = bench.acceptor.raw.snapshot().paths()
    reported = bench.state_history.state_cells_for({START + 4 * DAY: paths}, tmp_path)
    wanted = {
        key: count for key, count in naive(metric, bench.all_seen).items() if key[-1] == START + 4 * DAY
    }
    assert merged(counts_of(read_cells(path)["near"]) for path in reported) == wanted
    assert ("acme", "eu", None, "change", "a", "d", START + 4 * DAY) in wanted


def test_large_work_is_spread_over_ranges_of_keys(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_history_module, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(state_history_module, "ROWS_AT_ONCE", 1)
    slices = seen_of(7, 20, 4)
    for each in slices:
        bench.take(each)
    bench.check_contributions()
    bench.check(tmp_path / "check")
    known = bench.known()
    assert len(list(bench.state_history.folder.glob("*~near.trail"))) > len(slices)
    _lose_everything(bench.state_history.folder)
    bench.reopen()
    bench.state_history.catch_up()
    assert bench.known() == known


def test_its_kernels_run_on_spark(bench: Bench, tmp_path: Path, spark: object) -> None:
    from pyspark.sql import SparkSession

    assert isinstance(spark, SparkSession)
    bench.reopen(Engine(spark, inline_bytes=0))
    bench.acceptor.tap = Tap(bench.spec)  # Spark's workers know what is installed, not the tests
    slices = seen_of(8, 10, 2)
    for each in slices:
        bench.take(each)
    bench.check_contributions()
    bench.check(tmp_path / "check")
