"""A project with metrics of all kinds and the oracle side by side: every act is done to both, then they are
compared, row by row at every level. The process may die, and trails and state may be lost on the way."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from tests.pipeline.test_engine_oracle import as_read, as_slice, content
from tests.support.oracles.metrics import MetricOracle
from tests.support.oracles.oracle import Landing, Oracle
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import OracleStream

from tidemill.ingest.retraction_log import RetractionLog
from tidemill.mill import Mill, recover
from tidemill.model.failpoints import observed
from tidemill.model.levels import LEVELS
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("raw", "quarantine", "rollups", "index")
Plain = tuple[tuple[str, object], ...]


@dataclass
class MetricsComparison:
    """A project on disk and the oracle of its one stream."""

    root: Path
    stream: OracleStream
    spark: SparkSession | None = None
    clock: FakeClock = field(default_factory=lambda: FakeClock(0))
    mill: Mill | None = None
    oracle: Oracle = field(init=False)
    sent: list[str] = field(default_factory=list)  # the slice of each landing, also when it is there already
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.stream)

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def open(self) -> Mill:
        if self.mill is None:
            self.mill = Mill.open(self.root, spark=self.spark, clock=self.clock)
        return self.mill

    def close(self) -> None:
        if self.mill is not None:
            self.mill.close()
            self.mill = None

    # -- acts

    def land(self, landing: Landing) -> None:
        self.clock.set(max(self.clock(), landing.arrival))
        content = as_slice(landing.records)
        landed = self.open().land(self.stream.name, content, source=landing.source, format="ndjson")
        self.sent.append(landed.entry.id)
        slice = landed.entry.slice
        self.oracle.land(landed.entry.id, as_read(landing.records), slice.arrival, slice.source)

    def tick(self) -> None:
        self.open().tick()

    def settle(self) -> None:
        mill = self.open()
        mill.run_until_idle()
        assert mill.state.pending(self.stream.name, 1) == []
        assert mill.state.stale_tiles(self.stream.name) == []

    @property
    def left(self) -> list[str]:
        return [each for each in dict.fromkeys(self.sent) if each not in self.gone]

    def retract(self, slice_id: str) -> None:
        mill = self.open()
        reported = {line.act.slice for line in RetractionLog(self.warehouse).lines()}
        if slice_id not in reported:  # else whoever comes next finishes it
            mill.retract(mill.plan_retraction(slice_id, "sent by mistake"))
        self.gone.add(slice_id)

    def die(self, nth: int, taking_back: str | None = None) -> str | None:
        """Work, or take a slice back, and die at the `nth` point that is passed, if it comes so far: what
        goes on is what is on disk at that moment. Which point it was."""
        corpse = self.root.with_name(f"{self.root.name} died")
        passed = count(1)
        died: list[str] = []

        def tell(point: str) -> None:
            if next(passed) == nth:
                shutil.copytree(self.root, corpse)
                died.append(point)

        with observed(tell):
            if taking_back is None:
                self.tick()
            else:
                self.retract(taking_back)
        self.close()
        if corpse.exists():
            shutil.rmtree(self.root)
            corpse.rename(self.root)
            if taking_back is not None:
                self.retract(taking_back)
        return died[0] if died else None

    def lose_trails(self) -> None:
        """They are made again from raw when they are needed."""
        self.close()
        shutil.rmtree(self.warehouse / "trails", ignore_errors=True)

    def recover(self) -> None:
        """The state is lost, and made again from the warehouse."""
        self.close()
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (self.warehouse / name).unlink(missing_ok=True)
        if self.sent:
            recover(self.root, spark=self.spark, clock=self.clock)

    # -- comparing

    def expected(self) -> MetricOracle:
        return MetricOracle(self.stream, self.oracle.rebuilt(without=self.gone).accepted)

    def agree(self) -> None:
        """After a settled round."""
        agree(self.open(), self.stream.name, self.expected())

    def prove(self) -> None:
        audit = self.open().verify()
        assert audit.ok, audit.findings

    def content(self) -> list[str]:
        return content(self.open(), self.stream.name)


def agree(mill: Mill, stream: str, expected: MetricOracle) -> None:
    """The table holds the rows that the oracle says, each once, at all five levels, in order."""
    found = table_rows(mill, stream)
    for level in LEVELS:
        rows, wanted = as_counter(found[level.name]), as_counter(expected.rows(level.name))
        assert (rows - wanted, wanted - rows) == (Counter(), Counter()), level.name
    tiles = expected.tiles()
    for level in LEVELS:
        for tile in mill.state.tiles(stream, level.name):
            assert tile.rows == len(tiles.pop(tile.key, [])), tile.key
    assert tiles == {}


def as_counter(rows: Sequence[Mapping[str, object]]) -> Counter[Plain]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def table_rows(mill: Mill, stream: str) -> dict[str, list[dict[str, object]]]:
    """The rows of the rollups table by level, as the oracle spells them."""
    found: dict[str, list[dict[str, object]]] = {level.name: [] for level in LEVELS}
    table = Table.existing(mill.project.warehouse / "rollups" / stream)
    if table is None:
        return found
    snapshot = table.snapshot()
    for part, path in zip(snapshot.parts, snapshot.paths(), strict=True):
        rows = [plain(row) for row in instants(pq.read_table(path, partitioning=None)).to_pylist()]
        found[str(part.partition["level"])] += rows
        names = [row["metric"] for row in rows]
        assert names == sorted(names, key=str)
        assert len([name for name, _ in groupby(names)]) == len(set(names))
    return found


def instants(table: pa.Table) -> pa.Table:
    """Timestamps as microseconds."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(index, column.name, table.column(index).cast(pa.int64()))
    return table


def plain(row: dict[str, object]) -> dict[str, object]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.items()
        if value is not None
    }


def files(mill: Mill, stream: str, kinds: Collection[str] = KINDS) -> dict[str, str]:
    """What every reader of the tables reads (parts with rows), trails and rosters: a hash of each. The log of
    trails is left out: it names every batch, also one that adds nothing."""
    warehouse = mill.project.warehouse
    found: list[Path] = []
    for kind in kinds:
        table = Table.existing(warehouse / kind / stream)
        if table is not None:
            snapshot = table.snapshot()
            pairs = zip(snapshot.parts, snapshot.paths(), strict=True)
            found += [Path(path) for part, path in pairs if part.rows]
    found += (warehouse / "trails" / stream).glob("*.trail")
    found += (warehouse / "trails" / stream).glob("*.roster")
    return {str(path.relative_to(warehouse)): sha256(path.read_bytes()).hexdigest() for path in found}


class MetricProjects:
    """Makes projects of one stream."""

    def __init__(self, folder: Path, spark: SparkSession | None = None) -> None:
        self._folder = folder
        self._spark = spark
        self._numbers = count()

    @contextmanager
    def metering(self, stream: OracleStream, **engine: int) -> Iterator[MetricsComparison]:
        root = self._folder / f"p{next(self._numbers)}"
        root.mkdir()
        (root / "tidemill.yaml").write_text(project_text([stream], cores=2, **engine))
        metering = MetricsComparison(root, stream, self._spark)
        try:
            yield metering
        finally:
            metering.close()
        shutil.rmtree(root)


def exactly(value: object) -> Decimal | None:
    """A number of an answer."""
    return None if value is None else Decimal(str(value))
