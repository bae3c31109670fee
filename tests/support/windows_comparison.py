"""A project and the oracle of windows side by side: every act is done to both, and after each round they are
compared. The process may die or lose its state on the way."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from tests.pipeline.test_engine_oracle import agree_on_quarantine, rows_of
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import READINGS
from tests.support.oracles.strictjson import canonical, read_object
from tests.support.oracles.windows import (
    Act,
    Land,
    OracleDataset,
    OracleRules,
    OracleWindow,
    Retract,
    Tick,
    WindowOracle,
    dataset_columns,
)

from tidemill.ingest.retraction_log import RetractionLog
from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError, RetractedError
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus
from tidemill.model.time import SECOND, format_instant
from tidemill.model.windows import Phase, Window, WindowStatus
from tidemill.outputs.datasets.catalog import dataset_of, open_dataset
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = READINGS.name
LEASE = 60 * SECOND
JSON_COLUMNS = [n for n, f in READINGS.fields.items() if f.type in ("object", "array", "any")]


@dataclass
class WindowsComparison:
    """A project on disk and the oracle; every act is done to both, and after each tick they are compared."""

    root: Path
    rules: OracleRules
    spark: SparkSession | None = None
    reopen: bool = False  # for every act, as another process would
    one_at_a_time: bool = False  # every slice in a batch of its own, also when several are sent back
    clock: FakeClock = field(default_factory=lambda: FakeClock(0))
    mill: Mill | None = None
    oracle: WindowOracle = field(init=False)
    died: bool = False
    recovered: bool = False  # then what was withdrawn long ago is not told again

    def __post_init__(self) -> None:
        self.oracle = WindowOracle(READINGS, self.rules)

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def open(self) -> Mill:
        if self.mill is None:
            self.mill = Mill.open(self.root, spark=self.spark, clock=self.clock)
            if self.one_at_a_time:
                small = self.mill.project.engine.model_copy(update={"batch_bytes": 1})
                self.mill.workers.acceptor(STREAM).settings = small
        return self.mill

    def close(self) -> None:
        if self.mill is not None:
            self.mill.close()
            self.mill = None

    # -- acts

    def play(self, acts: Sequence[Act]) -> WindowsComparison:
        for act in self.spread(acts):
            self.do(act)
            if self.reopen:
                self.close()
            if isinstance(act, Tick):
                self.agree(act.at)
        return self

    def spread(self, acts: Sequence[Act]) -> Iterator[Act]:
        """With one slice in a batch, a round for each that lands: the oracle judges all of them at once."""
        for act in acts:
            around = [Tick(act.at)] if self.one_at_a_time and isinstance(act, Land) else []
            yield from (*around, act, *around)

    def do(self, act: Act) -> None:
        self.clock.set(act.at)
        if not self.attempt(act):
            return
        if isinstance(act, Land):
            self.oracle.land(act)
        elif isinstance(act, Retract):
            self.oracle.retract(act.slice)
        else:
            self.oracle.tick(act.at)

    def attempt(self, act: Act) -> bool:
        """To the mill alone; whether it may be done. To do it a second time changes nothing."""
        if isinstance(act, Land):
            return self.land(act)
        if isinstance(act, Retract):
            return self.retract(act)
        self.tick()
        return True

    def land(self, act: Land) -> bool:
        """Whether it may land: nothing at all, without bounds, may not."""
        bounds = {"start": act.declared.start, "end": act.declared.end} if act.declared else {}
        try:
            landed = self.open().land(STREAM, act.content, source=act.source, format="ndjson", **bounds)
        except RetractedError:  # it changes nothing: what was retracted stays so
            return False
        except InputError:
            assert not act.records
            assert act.declared is None
            return False
        assert landed.entry.id == act.slice
        return True

    def retract(self, act: Retract) -> bool:
        mill = self.open()
        if mill.state.slice(act.slice) is None:  # it was not allowed to land
            return False
        reported = {line.act.slice for line in RetractionLog(self.warehouse).lines()}
        if act.slice not in reported:  # else whoever comes next finishes it
            mill.retract(mill.plan_retraction(act.slice, "sent by mistake"))
        return True

    def tick(self) -> None:
        mill, now = self.open(), self.clock()
        mill.tick()
        while mill.state.pending(STREAM, 1):
            assert self.one_at_a_time
            mill.tick()
        held = mill.state.windows(STREAM, Phase.BUILDING)
        if held:  # a builder beside the daemon takes what a dead one held, when its lease has run out
            assert self.died
            self.clock.set(max(window.lease_until or 0 for window in held))
            mill.build(threading.Event(), 0.0, lambda _done: None, once=True)
            self.clock.set(now)

    def die(self, act: Act, nth: int) -> None:
        """Do it and die at the `nth` point that it passes, if it comes so far: what goes on is what is on
        disk at that moment."""
        self.clock.set(act.at)
        corpse = self.root.with_name(f"{self.root.name} died")
        passed = count(1)

        def tell(_point: str) -> None:
            if next(passed) == nth:
                shutil.copytree(self.root, corpse)

        with observed(tell):
            self.attempt(act)
        self.close()
        if corpse.exists():
            self.died = True
            shutil.rmtree(self.root)
            corpse.rename(self.root)

    def recover(self) -> None:
        """The state is lost, and made again from the warehouse."""
        self.close()
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (self.warehouse / name).unlink(missing_ok=True)
        recover(self.root, spark=self.spark, clock=self.clock)
        self.recovered = True

    def dump(self) -> dict[str, list[dict[str, object]]]:
        """What a fresh state must have, too."""
        dumped = self.open().state.dump()
        del dumped["outbox"]  # what was withdrawn long ago is not told again
        dumped["versions"] = [row for row in dumped["versions"] if row["version"]]
        return dumped

    # -- comparing

    def agree(self, now: int) -> None:
        """After a round at `now`."""
        mill = self.open()
        expected = self.oracle.windows(now)
        found = {window.key.start: window for window in mill.state.windows(STREAM)}
        assert {start: self.seen(window) for start, window in found.items()} == {
            start: self.wanted(window) for start, window in expected.items()
        }
        self.agree_on_events(mill)
        for start, window in found.items():
            assert (window.file is not None) == (start in self.oracle.datasets)
            if window.file is not None:
                self.agree_on_rows(window, self.oracle.datasets[start])
        self.agree_on_standing(now)

    def seen(self, window: Window) -> OracleWindow:
        """A window as the state has it."""
        found = self.open().state.window(window.key)
        assert found is not None
        assert found[0] == window
        members = found[1]
        assert window.phase is (Phase.BUILT if window.observed is not None else Phase.WAITING)
        assert (window.reason is None) == window.ready == (window.phase is Phase.BUILT)
        assert window.desired is not None
        if window.observed is not None:
            assert {m.name for m in members if m.observed} == {m.name for m in members if m.desired}
        final = {view.window.key for view in self.open().windows.windows(STREAM, WindowStatus.FINAL)}
        return OracleWindow(
            interval=window.key.interval,
            members=frozenset(member.name for member in members),
            used=frozenset(member.name for member in members if member.desired),
            ignored=frozenset(member.name for member in members if member.ignored == "late"),
            hash=window.desired,
            ready=window.ready,
            reason=window.reason,
            observed=window.observed,
            revision=window.revision,
            sealed=window.sealed,
            final=window.key in final,
        )

    def wanted(self, window: OracleWindow) -> OracleWindow:
        """As the oracle has it. It seals at the newest place that was used, the state at the newest of those
        that came late, which is what a dataset lets one say again; the same slices count by either."""
        if window.sealed is None:
            return window
        last = window.interval.end + self.rules.stc + self.rules.max_lateness
        late = [
            member.seq
            for member in self.oracle.members(window.interval.start)
            if member.name in window.used and member.arrival > last
        ]
        return window._replace(sealed=max(late, default=0))

    def agree_on_events(self, mill: Mill) -> None:
        """What the outbox has is what all rounds together did, each told once."""
        events = [event for _, event in mill.events()]
        assert len({event["id"] for event in events}) == len(events)
        reported = []
        for event in events:
            data = event["data"]
            assert isinstance(data, dict)
            kind = str(event["type"]).rsplit(".", 1)[1]
            more = [data[name] for name in ("hash", "rows", "slices")] if kind == "available" else []
            reported.append((kind, data["start"], data["revision"], *more))
        wanted = []
        revisions: dict[int, int] = {}
        for done in self.oracle.rounds:
            for made in done.built:
                revisions[made.start] = made.revision
                start = format_instant(made.start)
                wanted.append(
                    ("available", start, made.revision, made.hash, len(made.rows), len(made.slices))
                )
            wanted += [("withdrawn", format_instant(start), revisions[start]) for start in done.withdrawn]
        if self.recovered:
            reported, wanted = ([one for one in them if one[0] == "available"] for them in (reported, wanted))
        assert sorted(reported, key=str) == sorted(wanted, key=str)

    def agree_on_rows(self, window: Window, made: OracleDataset) -> None:
        assert window.file is not None
        table = pa.ipc.open_file(self.warehouse / window.file).read_all()
        about = open_dataset(self.warehouse, dataset_of(self.warehouse, window)).metadata
        assert (about["revision"], about["hash"], about["rows"]) == (made.revision, made.hash, len(made.rows))
        assert about["slices"] == sorted(made.slices)
        assert table.column_names == dataset_columns(READINGS)
        assert (window.rows, window.revision) == (len(made.rows), made.revision)
        index = table.column_names.index("event_time")
        table = table.set_column(index, "event_time", table.column("event_time").cast(pa.int64()))
        rows = table.to_pylist()
        for row in rows:
            for name in JSON_COLUMNS:
                if row[name] is not None:
                    row[name] = canonical(read_object(f'{{"it":{row[name]}}}', 64)["it"])
        assert rows == list(made.rows)

    def agree_on_standing(self, now: int) -> None:
        """Asked later, without a round in between, windows stand where the oracle says."""
        mill = self.open()
        for later in (now, now + 1, now + self.rules.stc, now + 9 * self.rules.span):
            self.clock.set(later)
            found = {view.window.key.start: view.status for view in mill.windows.windows(STREAM)}
            expected = {start: standing(window) for start, window in self.oracle.windows(later).items()}
            assert found == expected, later
        self.clock.set(now)

    def agree_on_records(self) -> None:
        """Raw, quarantine and ledger, at the end."""
        mill, expected = self.open(), self.oracle.gate
        names = ("tenant", "event_id", "event_time", "slice", "line", "payload", "watermark")
        assert sorted(tuple(str(row[n]) for n in names) for row in rows_of(mill, "raw", STREAM)) == sorted(
            tuple(map(str, (*row[:5], row.payload.decode(), row.watermark))) for row in expected.raw
        )
        agree_on_quarantine(mill, STREAM, expected)
        left = [e for e in mill.ledger(STREAM) if e.status is not SliceStatus.RETRACTED]
        assert {entry.status for entry in left} <= {SliceStatus.ACCEPTED}
        assert {entry.id: entry.counts for entry in left} == expected.counts
        assert {entry.id: entry.observed for entry in left} == expected.observed


def standing(window: OracleWindow) -> WindowStatus:
    if window.observed == window.hash:
        return WindowStatus.FINAL if window.final else WindowStatus.BUILT
    return WindowStatus.READY if window.ready else WindowStatus.WAITING


# --- projects


class WindowProjects:
    """Makes projects of one stream with windows of given rules."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()

    def new(self) -> Path:
        root = self._folder / f"p{next(self._numbers)}"
        root.mkdir()
        return root

    @contextmanager
    def playing(
        self,
        rules: OracleRules,
        *,
        spark: SparkSession | None = None,
        engine: Mapping[str, int] | None = None,
        concurrency: int = 2,
        reopen: bool = False,
        one_at_a_time: bool = False,
    ) -> Iterator[WindowsComparison]:
        root = self.new()
        configure(root, rules, engine=engine, concurrency=concurrency)
        playing = WindowsComparison(root, rules, spark, reopen, one_at_a_time)
        try:
            yield playing
        finally:
            playing.close()
        shutil.rmtree(root)


def configure(
    root: Path,
    rules: OracleRules,
    *,
    engine: Mapping[str, int] | None = None,
    concurrency: int = 2,
) -> None:
    project = json.loads(project_text([READINGS], cores=2, **(engine or {})))
    late = {"policy": "reemit", "max_lateness": f"{rules.max_lateness}us"}
    project["streams"][STREAM] |= {
        "aggregation_span": f"{rules.span}us",
        "subject_to_change_window": f"{rules.stc}us",
        "allow_incomplete_windows": rules.allow_incomplete,
        "gap_tolerance": f"{rules.gap_tolerance}us",
        "late_slices": late if rules.max_lateness else "discard",
    }
    project["builder"] = {"concurrency": concurrency, "lease": f"{LEASE}us", "attempts": 100}
    (root / "tidemill.yaml").write_text(json.dumps(project))
