"""A project with streaming windows and their oracle side by side: whatever happens to the project, after each
round what stands is what the oracle says of the rows that were accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st
from tests.pipeline.test_engine_oracle import rows_of
from tests.support.oracles.project import project_text
from tests.support.strategies.streaming import (
    SCALES,
    TICKS,
    UNITS,
    StreamingCase,
    declaration,
    records,
    streaming_cases,
    window_specs,
)
from tests.support.streaming_results import agree, by_id, of_table

from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.mill import Mill, recover
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus
from tidemill.model.streaming import Close, Function, Value, WindowKind, WindowSpec
from tidemill.model.time import SECOND, Interval
from tidemill.outputs.windows.announce import AVAILABLE
from tidemill.outputs.windows.open_sessions import carries_sums
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock
from tidemill.testing.streaming import StreamingOracle, StreamingRow, StreamingSlice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = TICKS.name
FEW_BUCKETS = 3  # cores: also how many buckets there are when everything is worth one

FLUSH, REOPEN, RETRACT, REDECLARE, FORGET, DIE = "flush", "reopen", "retract", "redeclare", "forget", "die"
CALM = frozenset({FLUSH, REOPEN})
ALL = frozenset({FLUSH, REOPEN, RETRACT, REDECLARE, FORGET, DIE})


class Script(NamedTuple):
    """A feed, the windows that are declared first and those that may be declared instead, and dice."""

    case: StreamingCase
    specs: tuple[WindowSpec, ...]
    others: tuple[WindowSpec, ...]
    span: int | None  # of aggregation windows
    incomplete: bool
    seed: int


@st.composite
def scripts(draw: st.DrawFn, max_slices: int = 7, *, sums: bool = False) -> Script:
    """`sums`: the first window is a session whose rows are not carried from round to round."""
    unit = draw(st.sampled_from(UNITS))
    case = draw(streaming_cases(units=(unit,), min_rows=1, max_slices=max_slices))
    closes = st.sampled_from([Close.WATERMARK, Close.WATERMARK, Close.COMPLETE][: 3 if unit >= SECOND else 1])
    more = closes.flatmap(lambda close: window_specs(unit, close=close))
    if sums:
        merged = [each for each in Function if each not in (Function.STDDEV, Function.PERCENTILE)]
        kinds = [WindowKind.SESSION]
        spec = draw(window_specs(unit, kinds=kinds, functions=merged, without="f"))
        assert carries_sums(spec)
        case = case._replace(spec=spec)
    specs = [case.spec, *draw(st.lists(more, max_size=2))]
    others = draw(st.lists(more, max_size=2))
    any_complete = any(spec.close is Close.COMPLETE for spec in [*specs, *others])
    return Script(
        case=case,
        specs=tuple(replace(spec, name=f"w{number}") for number, spec in enumerate(specs)),
        others=tuple(others),
        span=unit * draw(st.sampled_from([1, 2, 5])) if any_complete else None,
        incomplete=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@dataclass
class StreamingComparison:
    """A project on disk; `moods` are what may happen to it beside rows that come and rounds that pass."""

    root: Path
    script: Script
    moods: frozenset[str] = CALM
    spark: SparkSession | None = None
    engine: Mapping[str, int] = field(default_factory=dict)
    clock: FakeClock = field(init=False)
    random: Random = field(init=False)
    specs: dict[str, WindowSpec] = field(init=False)
    mill: Mill | None = None
    watermark: int | None = None
    may_go_back: bool = False  # the watermark, since a slice was taken back
    cleared: bool = False  # results of other declarations were told of and are gone
    landed: list[bytes] = field(default_factory=list)
    fields: dict[str, Mapping[str, Value]] = field(default_factory=dict)  # by the id of the record
    steps: list[str] = field(default_factory=list)  # what happened, to be read when it ends badly

    def __post_init__(self) -> None:
        self.clock = FakeClock(self.script.case.slices[0].arrival)
        self.random = Random(f"{self.script.seed} {self.script.case.spec} {len(self.script.case.slices)}")
        self.specs = {spec.name: spec for spec in self.script.specs}
        self.configure()

    def configure(self) -> None:
        case = self.script.case
        ticks = replace(
            TICKS,
            late_tolerance=case.tolerance,
            idle_timeout=case.idle_timeout,
            max_buffer_bytes=None if case.max_bytes is None else max(1, case.max_bytes),
        )
        project = json.loads(project_text([ticks], cores=FEW_BUCKETS, **self.engine))
        project["streams"][STREAM]["windows"] = {name: declaration(s) for name, s in self.specs.items()}
        if self.script.span is not None:
            project["streams"][STREAM] |= {
                "aggregation_span": f"{self.script.span}us",
                "allow_incomplete_windows": self.script.incomplete,
                "gap_tolerance": "0us",
                "late_slices": {"policy": "reemit", "max_lateness": f"{9 * self.script.span}us"},
            }
        (self.root / "tidemill.yaml").write_text(json.dumps(project))

    def open(self) -> Mill:
        if self.mill is None:
            self.mill = Mill.open(self.root, spark=self.spark, clock=self.clock)
        return self.mill

    def close(self) -> None:
        if self.mill is not None:
            self.mill.close()
            self.mill = None

    # -- what happens

    def play(self) -> None:
        for slice_ in self.script.case.slices:
            self.clock.set(max(self.clock(), slice_.arrival))
            self.land(slice_)
            if self.random.random() < 0.6:
                self.round()
            if self.moods and self.random.random() < 0.4:
                getattr(self, self.random.choice(sorted(self.moods)))()
        self.clock.set(max(self.clock(), self.script.case.now))
        self.round()
        self.prove()

    def land(self, slice_: StreamingSlice) -> None:
        lines = [*records(slice_)]
        for line, (_, _, _, fields) in zip(lines, slice_.rows, strict=True):
            self.fields[json.loads(line)["id"]] = fields
        again = self.random.sample(self.landed, min(len(self.landed), self.random.choice([0, 0, 0, 1, 4])))
        self.landed += lines
        lines += again
        bounds: dict[str, int] = {}
        span = self.script.span
        if span is not None and self.random.random() < 0.8:
            times = [json.loads(line)["at"] for line in lines]
            bounds = {"start": min(times) // span * span, "end": (max(times) // span + 1) * span}
        self.steps.append(f"land {slice_.name} {len(lines)} {bounds}")
        content = b"".join(line + b"\n" for line in lines)
        self.open().land(STREAM, content, source=slice_.source, format="ndjson", **bounds)

    def round(self) -> None:
        if DIE in self.moods and self.random.random() < 0.2:
            self.die()
        self.steps.append("round")
        mill = self.open()
        mill.tick()
        assert not mill.state.pending(STREAM, 1)
        self.agree()
        if self.random.random() < 0.3:
            before = self.versions()
            assert mill.tick().idle
            assert self.versions() == before
        if self.random.random() < 0.15:
            self.prove()

    def prove(self) -> None:
        audit = self.open().verify()
        assert audit.ok, audit.findings

    def flush(self) -> None:
        if is_deciding_again(self.open().state, STREAM) or self.script.span is not None:
            self.round()
        mill = self.open()
        self.steps.append("flush")
        mill.flush()
        self.agree(flush=True)
        before = self.versions()
        mill.flush()
        assert self.versions() == before

    def reopen(self) -> None:
        self.steps.append("reopen")
        self.close()

    def retract(self) -> None:
        mill = self.open()
        slices = [entry.id for entry in mill.ledger(STREAM) if entry.status is SliceStatus.ACCEPTED]
        if slices:
            gone = self.random.choice(slices)
            self.steps.append(f"retract {gone}")
            mill.retract(mill.plan_retraction(gone, "sent by mistake"))
            self.may_go_back = True
            if self.random.random() < 0.5:
                self.round()

    def redeclare(self) -> None:
        """One window more, one less, or one by another declaration."""
        self.close()
        name = self.random.choice([*self.specs, "w0", "w7"])
        known = [*self.script.specs, *self.script.others]
        if name in self.specs and len(self.specs) > 1 and self.random.random() < 0.3:
            del self.specs[name]
        else:
            self.specs[name] = replace(self.random.choice(known), name=name)
        self.steps.append(f"redeclare {name} {self.specs.get(name)}")
        self.cleared = True
        self.configure()
        if self.random.random() < 0.5:
            self.round()

    def forget(self) -> None:
        """The state is lost, and made again from the warehouse."""
        self.steps.append("forget")
        self.close()
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (self.root / "warehouse" / name).unlink(missing_ok=True)
        recover(self.root, spark=self.spark, clock=self.clock)
        if self.random.random() < 0.5:
            self.round()

    def die(self) -> None:
        """In a round, or a flush, at one of the points of results: what goes on is what is on disk then."""
        corpse = self.root.with_name(f"{self.root.name} died")
        passed, nth = count(1), self.random.choice([1, 2, 3, 4, 5, 8])
        flushes = self.random.random() < 0.3

        def tell(point: str) -> None:
            if point.startswith("results.") and next(passed) == nth:
                self.steps.append(f"died at {point} {'of a flush' if flushes else ''}")
                shutil.copytree(self.root, corpse)

        mill = self.open()
        with observed(tell):
            if flushes:
                mill.flush()
            else:
                mill.tick()
        self.close()
        if corpse.exists():
            shutil.rmtree(self.root)
            corpse.rename(self.root)

    def versions(self) -> dict[str, int]:
        tables = {name: Table.existing(self.folder(name)) for name in self.specs}
        return {name: table.version for name, table in tables.items() if table is not None}

    def folder(self, window: str) -> Path:
        return self.root / "warehouse" / "windows" / STREAM / window

    # -- comparing

    def agree(self, *, flush: bool = False) -> None:
        mill = self.open()
        now_at = mill.watermark(STREAM)
        if not self.may_go_back and self.watermark is not None:
            assert now_at is not None
            assert now_at >= self.watermark
        self.watermark, self.may_go_back = now_at, False
        rows = self.rows(mill)
        for spec in self.specs.values():
            if spec.close is Close.COMPLETE:
                self.agree_on_complete(mill, spec, rows)
            else:
                self.agree_on(mill, spec, rows, flush=flush)
            self.agree_on_revisions(mill, spec)
        self.agree_on_events(mill)

    def rows(self, mill: Mill) -> list[StreamingRow]:
        """What was accepted; the ledger says which watermark each met, which others tests hold against it."""
        ledger = {entry.id: entry for entry in mill.ledger(STREAM)}
        found = []
        for row in rows_of(mill, "raw", STREAM):
            entry = ledger[str(row["slice"])]
            assert entry.status is SliceStatus.ACCEPTED
            assert entry.watermark == row["watermark"]
            found.append(
                StreamingRow(
                    tenant=str(row["tenant"]),
                    time=int(str(row["event_time"])),
                    seq=entry.seq,
                    line=int(str(row["line"])),
                    slice=entry.name,
                    size=len(str(row["payload"]).encode()),
                    fields=self.fields[str(row["event_id"])],
                    met=entry.watermark,
                )
            )
        return found

    def agree_on(self, mill: Mill, spec: WindowSpec, rows: Sequence[StreamingRow], *, flush: bool) -> None:
        oracle = StreamingOracle(spec, SCALES)
        expected = by_id(spec, oracle.numbered(rows, self.watermark, flush=flush))
        # A stop let windows out by what they held then: whether they meet `having` now is not looked at yet.
        anyhow = StreamingOracle(replace(spec, having=None), SCALES)
        opened = {which[0] for which in by_id(spec, anyhow.numbered(rows, None, flush=True))}
        opened -= {which[0] for which in expected}
        found = of_table(spec, mill.results(STREAM, spec.name))
        beside = {which: steps for which, steps in found.items() if which not in expected}
        for which, (result, trigger) in beside.items():  # a stop let it out, and it is not looked at yet
            ahead = self.watermark is None or result.start + spec.opens_after > self.watermark
            assert trigger == "stop", (which, result, trigger)
            assert not flush
            assert which[0] in opened or ahead, (which, result)
        agree(spec, expected, {k: steps[0] for k, steps in found.items() if k not in beside})

    def agree_on_complete(self, mill: Mill, spec: WindowSpec, rows: Sequence[StreamingRow]) -> None:
        built: dict[Interval, frozenset[str]] = {}
        for window in mill.state.windows(STREAM):
            kept = mill.state.window(window.key)
            if window.file is not None and kept is not None:
                built[window.key.interval] = frozenset(m.name for m in kept[1] if m.observed)
        results = StreamingOracle(spec, SCALES).complete(rows, built)
        found = {which: steps[0] for which, steps in of_table(spec, mill.results(STREAM, spec.name)).items()}
        agree(spec, by_id(spec, [(0, result) for result in results]), found)

    def agree_on_revisions(self, mill: Mill, spec: WindowSpec) -> None:
        """They count from one, without holes; what was taken back stood before."""
        revisions: dict[object, list[tuple[int, bool]]] = {}
        for row in mill.results(STREAM, spec.name, revisions=True).to_pylist():
            which = (row["window_id"], *(row[name] for name in spec.grouped_by))
            hidden = row["withdrawn"] and spec.having is None
            revisions.setdefault(which, []).append((row["revision"], hidden))
        for which, steps in revisions.items():
            assert [number for number, _ in sorted(steps)] == list(range(1, len(steps) + 1)), (spec, which)
            gone = [withdrawn for _, withdrawn in sorted(steps)]
            assert not any(a and b for a, b in zip([True, *gone], gone, strict=False)), (spec, which)

    def agree_on_events(self, mill: Mill) -> None:
        """Each is told once, and what they tell of is what the tables hold."""
        events = mill.state.outbox(0, 100_000, STREAM)
        assert len({event.id for event in events}) == len(events)
        for spec in () if self.cleared else self.specs.values():
            of = [e.data for e in events if e.type == AVAILABLE and e.data["window"] == spec.name]
            steps = sum(int(str(data["results"])) + int(str(data["withdrawn"])) for data in of)
            triggers = mill.results(STREAM, spec.name, revisions=True).column("trigger").to_pylist()
            assert steps == len(triggers) - triggers.count("having"), spec


class StreamingProjects:
    """Makes projects, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()

    @contextmanager
    def playing(
        self,
        script: Script,
        moods: frozenset[str] = CALM,
        *,
        spark: SparkSession | None = None,
        engine: Mapping[str, int] | None = None,
    ) -> Iterator[StreamingComparison]:
        root = self._folder / f"p{next(self._numbers)}"
        root.mkdir()
        playing = StreamingComparison(root, script, moods, spark, engine or {})
        try:
            yield playing
        except BaseException as error:
            error.add_note("\n".join(playing.steps))
            raise
        finally:
            playing.close()
            shutil.rmtree(root, ignore_errors=True)
            shutil.rmtree(root.with_name(f"{root.name} died"), ignore_errors=True)
