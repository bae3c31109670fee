"""A stream that the state knows nothing of after `recover`: it was not declared then, or a part of its raw
could not be read and cannot be made again. Rounds take it up without another `recover`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidemill.mill import Mill, recover
from tidemill.model.slices import SliceStatus
from tidemill.model.time import DAY, HOUR, format_instant, parse_instant
from tidemill.pipeline.recover import Recovered
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

FIRST = parse_instant("2024-01-08T00:00:00Z")
NOON = FIRST + 5 * DAY + 12 * HOUR
STREAM = """
  {name}:
    schema:
      id: {{type: string, required: true}}
      at: {{type: integer, required: true}}
      shop: string
    event_time: {{column: at, type: unixtimestamp_us, late_tolerance: 10s}}
    identity: id
    indexed: [shop]
    pack: {{enabled: false, slices: 2}}
    aggregation_span: 1h
    metrics:
      calls: {{kind: counter}}
      shops: {{kind: state, object: shop, state: id}}
    windows:
      hours:
        kind: tumbling
        size: 1h
        aggregates: {{count: count}}
        late: {{policy: reemit, max_lateness: 30d}}
    retention: {{{retention}}}
"""


@dataclass
class Shop:
    root: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))

    def declare(self, *names: str, retention: str = "") -> None:
        streams = "".join(STREAM.format(name=name, retention=retention) for name in names)
        text = f"version: 1\nengine: {{cores: 1, memory: 512m}}\nstreams:{streams}"
        (self.root / "tidemill.yaml").write_text(text)

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def recover(self) -> Recovered:
        for name in ("state.db", "state.db-wal", "state.db-shm"):
            (self.root / "warehouse" / name).unlink(missing_ok=True)
        return recover(self.root, clock=self.clock)

    def raw(self, stream: str) -> list[Path]:
        with self.open() as mill:
            found = mill.snapshot("raw", stream)
        assert found is not None
        return [Path(path) for path in found.paths()]


def land(mill: Mill, stream: str, *events: tuple[str, int]) -> str:
    lines = [json.dumps({"id": id_, "at": at, "shop": "north"}) for id_, at in events]
    return mill.land(stream, "\n".join(lines).encode() + b"\n").entry.id


def count(mill: Mill, stream: str) -> int:
    span = f"BETWEEN {format_instant(FIRST)} AND {format_instant(NOON + DAY)}"
    answer = mill.ask(f"SELECT count FROM {stream}.calls {span}")
    assert answer.completeness.missing == ()
    (row,) = answer.table.to_pylist()
    return int(row["count"])


def lose_a_part(shop: Shop) -> None:
    shop.raw("lost")[1].unlink()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Four slices of a stream that is not declared any more: the last repeats an event, and one was
    retracted."""
    shop = Shop(tmp_path)
    shop.declare("kept", "lost")
    with shop.open() as mill:
        land(mill, "kept", ("k", FIRST))
        for number in range(3):
            land(mill, "lost", (f"e{number}", FIRST + number * HOUR))
            mill.run_until_idle()
        wrong = land(mill, "lost", ("e1", FIRST + HOUR), ("wrong", FIRST))
        mill.run_until_idle()
        mill.retract(mill.plan_retraction(wrong, "wrong"))
        mill.run_until_idle()
    return shop


def nothing(_shop: Shop) -> None:
    pass


def pack(shop: Shop) -> None:
    with shop.open() as mill:
        assert mill.pack("lost")


def lose_packed(shop: Shop) -> None:
    pack(shop)
    next(path for path in shop.raw("lost") if "packed" in path.name).unlink()


@pytest.mark.parametrize("harm", [nothing, lose_a_part, pack, lose_packed])
def test_a_stream_that_was_not_declared_needs_no_second_recover(
    shop: Shop, harm: Callable[[Shop], None]
) -> None:
    harm(shop)
    shop.declare("kept")
    assert shop.recover().left == []
    with shop.open() as mill:
        mill.run_until_idle()
    shop.declare("kept", "lost")
    with shop.open() as mill:
        mill.run_until_idle()
        assert mill.repair().left == []
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[], []]
        statuses = [one.status for one in mill.ledger() if one.slice.stream == "lost"]
        assert sorted(statuses) == sorted([*[SliceStatus.ACCEPTED] * 3, SliceStatus.RETRACTED])
        assert count(mill, "lost") == 3
        land(mill, "lost", ("e2", FIRST + 2 * HOUR), ("new", NOON))
        mill.run_until_idle()
        assert count(mill, "lost") == 4
        assert mill.verify().findings == []
        assert mill.plan_repair().steps == []


def test_raw_that_has_expired_in_part_is_not_decided_again_by_recover_and_is_taken_up_once_it_is_back(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.declare("calls", retention="raw: 3d")
    with shop.open() as mill:
        land(mill, "calls", ("old", FIRST), ("a", FIRST + 4 * DAY), ("b", NOON))
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
        found = mill.snapshot("raw", "calls")
        assert found is not None
        path, *_ = (Path(path) for path in found.paths([part for part in found.parts if part.rows]))
    content = path.read_bytes()
    path.unlink()
    assert [Path(one.file).name for one in shop.recover().left] == [path.name]
    with shop.open() as mill:
        mill.run_until_idle()
        (step,) = mill.repair().left
        assert step.affects == "its rows: raw of 1 of its slices has expired in part"
    path.write_bytes(content)
    with shop.open() as mill:
        shop.clock.advance(HOUR)
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[]]
        assert count(mill, "calls") == 3
        land(mill, "calls", ("old", FIRST), ("a", FIRST + 4 * DAY), ("c", NOON))
        mill.run_until_idle()
        assert count(mill, "calls") == 4
        assert mill.verify().findings == []


def test_a_part_of_quarantine_that_cannot_be_made_again_does_not_keep_its_stream_from_being_recovered(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.declare("calls", retention="raw: 3d")
    with shop.open() as mill:
        records = [{"id": "old", "at": FIRST}, {"id": "new", "at": NOON}, {"at": NOON}]
        mill.land("calls", "\n".join(json.dumps(one) for one in records).encode())
        mill.run_until_idle()
        mill.retention.expire(mill.retention.plan())
        mill.run_until_idle()
        found = mill.snapshot("quarantine", "calls")
        assert found is not None
        (path,) = (Path(path) for path in found.paths())
    path.unlink()
    shop.recover()
    with shop.open() as mill:
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[]]
        land(mill, "calls", ("old", FIRST), ("newer", NOON))
        mill.run_until_idle()
        assert count(mill, "calls") == 3
        assert [step.damage.file for step in mill.repair().left] == [
            path.relative_to(tmp_path / "warehouse").as_posix()
        ]
