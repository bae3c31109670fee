"""A sixth output in forty lines: catch-up, verify, recover, rebuild and retention come with the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.pipeline import CONFIG, NewPlant, Plant, request

from tidemill.config import Stream
from tidemill.mill import Mill, recover
from tidemill.model.damage import FileKind
from tidemill.model.expiry import ExpiryStep
from tidemill.model.slices import SliceStatus, set_hash
from tidemill.model.time import Interval
from tidemill.outputs.contract import Difference, Need, RawFacts, RoundStart, Simple, Stage, Verified
from tidemill.pipeline import workers
from tidemill.pipeline.workers import Workers
from tidemill.storage.file_scrub import FileCheck, ScrubTally, StoredFile, check_files


@dataclass(frozen=True)
class Counted:
    idle: bool


class Counts(Simple):
    """How many rows raw has of a stream, in a file that says of which slices."""

    name = "counts"

    def __init__(self, made_by: Workers, stream: Stream) -> None:
        self._warehouse, self._stream, self._keep = (
            made_by.warehouse,
            stream.name,
            stream.retention.quarantine,
        )
        self.file = made_by.root / self.name / f"{stream.name}.json"

    def _desired(self) -> str:
        accepted = self._warehouse.state.slices(self._stream, SliceStatus.ACCEPTED)
        return set_hash(entry.name for entry in accepted)

    def _observed(self) -> dict[str, object]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def refresh(self, start: RoundStart) -> Counted:
        return Counted(True) if self._observed().get("hash") == self._desired() else self.rebuild(None, 0)

    def rebuild(self, span: Interval | None, now: int) -> Counted:
        raw = self._warehouse.snapshot("raw", self._stream)
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps({"hash": self._desired(), "rows": raw.rows if raw else 0}))
        return Counted(False)

    def verify(self, raw: RawFacts, now: int) -> Verified:
        rows = sum(pq.read_metadata(path).num_rows for path in raw.snapshot.paths())
        same = self._observed().get("rows") == rows
        return Verified(1, 0, () if same else [Difference("count", self._stream, f"raw has {rows}")])

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        stored = StoredFile(
            self._warehouse.root, self.file, FileKind.DATASET, self._stream, self._check, lambda: True
        )
        yield from check_files([stored], tally, after)

    def _check(self, file: Path) -> bool:
        json.loads(file.read_bytes())  # a real one has a checksum
        return False

    def recover(self, now: int) -> int:
        return int(self.file.exists())

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        if self._observed().get("hash") != self._desired():
            yield Need(0, "the count, which is not made yet")

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        if self._keep is not None:
            files = int(self.file.exists())
            yield ExpiryStep(self._stream, self.name, self._keep, now - self._keep, files=files)

    def expire(self, step: ExpiryStep, now: int) -> None:
        self.file.unlink()


@pytest.fixture
def plant(new_plant: NewPlant, monkeypatch: pytest.MonkeyPatch) -> Plant:
    monkeypatch.setattr(workers, "KINDS", (*workers.KINDS, Counts))
    return new_plant(CONFIG)


@pytest.mark.parametrize("stage", list(Stage))
def test_a_round_tells_of_it_at_whatever_stage_it_is_refreshed(
    plant: Plant, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counts, "stage", stage)
    with plant.open() as mill:
        land(mill, 1, 2)
        assert [tick.others["counts"].idle for tick in (mill.tick().streams[0], mill.tick().streams[0])] == [
            False, True,
        ]  # fmt: skip
    assert rows_of(plant) == 2


def land(mill: Mill, *numbers: int) -> str:
    content = "\n".join(json.dumps(request(number)) for number in numbers)
    return mill.land("requests", content.encode()).entry.id


def rows_of(plant: Plant) -> object:
    return json.loads((plant.warehouse / "counts" / "requests.json").read_text())["rows"]


def test_rounds_keep_it_current_whatever_comes_and_goes(plant: Plant) -> None:
    with plant.open() as mill:
        first = land(mill, 1, 2, 3)
        land(mill, 3, 4)
        (report, *_) = mill.run_until_idle()
        assert not report.streams[0].others["counts"].idle
        assert rows_of(plant) == 4
        mill.retract(mill.plan_retraction(first, "sent by mistake"))
        mill.run_until_idle()
        assert rows_of(plant) == 2
        assert mill.tick().idle


def test_verify_holds_it_against_raw(plant: Plant) -> None:
    with plant.open() as mill:
        land(mill, 1, 2, 3)
        mill.run_until_idle()
        assert mill.verify().ok
        file = plant.warehouse / "counts" / "requests.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "rows": 5}))
        (finding,) = mill.verify().findings
        assert (finding.stream, finding.what, finding.difference) == ("requests", "count", "raw has 3")
        mill.workers.output("requests", "counts").rebuild(None, 0)
        assert mill.verify().ok


def test_a_scrub_reads_it_with_the_others(plant: Plant) -> None:
    with plant.open() as mill:
        land(mill, 1, 2, 3)
        mill.run_until_idle()
        before = mill.scrub()
        assert before.ok
        (plant.warehouse / "counts" / "requests.json").unlink()
        (damage,) = mill.scrub().damages
        assert (damage.file, damage.reason) == ("counts/requests.json", "the file is missing")


def test_what_is_old_of_it_goes_by_its_retention(plant: Plant) -> None:
    with plant.open() as mill:
        land(mill, 1, 2, 3)
        mill.run_until_idle()
        assert mill.retention.plan().steps == []
    plant.configure(f"{CONFIG}    retention: {{quarantine: 1d}}\n")
    with plant.open() as mill:
        plan = mill.retention.plan()
        assert [(step.what, step.files) for step in plan.due] == [("counts", 1)]
        assert [step.what for step in mill.retention.expire(plan)] == ["counts"]
    assert not (plant.warehouse / "counts" / "requests.json").exists()


def test_after_a_recovery_it_is_current_as_it_stands(plant: Plant) -> None:
    with plant.open() as mill:
        land(mill, 1, 2, 3)
        mill.run_until_idle()
    (plant.warehouse / "state.db").unlink()
    recover(plant.root, clock=plant.clock)
    with plant.open() as mill:
        assert mill.tick().idle
    assert rows_of(plant) == 3
