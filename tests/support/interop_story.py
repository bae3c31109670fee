"""The life of a warehouse for those who read its tables with something else: accepted, packed, retracted,
with a column more, expired, vacuumed. After each step they have to see what we see, and what was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from tests.support.sql_shop import CONFIG, build_shop
from tests.support.stock_readers import Rows, StockReader, by_us, has_files, rows_of, tables_of, version_of

from tidemill.mill import Mill
from tidemill.model.time import DAY, HOUR, MINUTE
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

STREAM, WINDOWS = "orders", ("ten",)
KEPT = CONFIG.replace("streams:\n", "engine: {keep_replaced: 30d}\nstreams:\n", 1).replace(
    "    aggregation_span: 1h\n", "    pack: {enabled: false, slices: 2}\n    aggregation_span: 1h\n", 1
)


@dataclass
class TableHistory:
    """A warehouse, and what each version of its tables held when it was the newest."""

    folder: Path
    clock: FakeClock
    seen: dict[tuple[str, int], tuple[pa.Schema, Rows]] = field(default_factory=dict)

    def tables(self) -> dict[str, Path]:
        return tables_of(self.folder / "warehouse", STREAM, WINDOWS)

    def look(self) -> None:
        """Remember what the tables hold now."""
        for name, root in self.tables().items():
            ours = by_us(root)
            self.seen[name, version_of(root)] = (ours.schema, rows_of(ours, ours.schema))


def tell(folder: Path) -> Iterator[tuple[str, TableHistory]]:
    """Each step, when it is done."""
    story = TableHistory(folder, build_shop(folder, config=KEPT))
    steps: dict[str, Callable[[TableHistory], None]] = {
        "accepted": lambda _: None,
        "packed": lambda shop: _with(shop, lambda mill: mill.pack(STREAM)),
        "retracted": lambda shop: _with(shop, _retract),
        "a column more": _add_column,
        "expired": _expire,
        "old files gone": lambda shop: _vacuum(shop, DAY, shop.clock()),
        "vacuumed": lambda shop: _vacuum(shop, MINUTE, shop.clock() + HOUR),
    }
    for name, act in steps.items():
        act(story)
        story.clock.advance(MINUTE)
        story.look()
        yield name, story


def _with(story: TableHistory, act: Callable[[Mill], object]) -> None:
    with Mill.open(story.folder, clock=story.clock) as mill:
        act(mill)
        mill.run_until_idle()


def _retract(mill: Mill) -> None:
    newest = mill.ledger(STREAM)[0]
    mill.retract(mill.plan_retraction(newest.id, "a test"))


def _add_column(story: TableHistory) -> None:
    _change(story, "      stage: string\n", "      stage: string\n      added: integer\n")
    story.clock.advance(DAY)
    line = b'{"id": "more", "at": 1705406400, "tenant": "acme", "amount": 1.25, "added": 7}\n'
    _with(story, lambda mill: mill.land(STREAM, line))


def _expire(story: TableHistory) -> None:
    _change(story, "    aggregation_span: 1h\n", "    retention: {raw: 2d}\n    aggregation_span: 1h\n")
    story.clock.advance(2 * DAY)
    _with(story, lambda mill: mill.retention.expire(mill.retention.plan(STREAM)))


def _vacuum(story: TableHistory, keep: int, now: int) -> None:
    """What was replaced longer ago goes."""
    for root in story.tables().values():
        table = Table.existing(root)
        assert table is not None
        table.vacuum(keep, now)


def _change(story: TableHistory, text: str, other: str) -> None:
    config = story.folder / "tidemill.yaml"
    said = config.read_text(encoding="utf-8")
    assert text in said
    config.write_text(said.replace(text, other, 1), encoding="utf-8")


def differences(
    story: TableHistory, readers: Mapping[str, StockReader], *, before: bool = True
) -> Iterator[str]:
    """What a reader sees otherwise, in the newest version or (`before`) in one that was and still has its
    files."""
    for (name, version), (schema, wanted) in story.seen.items():
        root = story.tables()[name]
        newest = version == version_of(root)
        if not newest and not (before and has_files(root, version)):
            continue
        for reader, read in readers.items():
            try:
                found = rows_of(read(root, None if newest else version), schema)
            except Exception as error:  # noqa: BLE001 - it is told, with the others
                yield f"{reader} cannot read version {version} of {name}: {type(error).__name__}: {error}"
                continue
            if found != wanted:
                yield f"{reader} reads {len(found)} rows of version {version} of {name}, and we {len(wanted)}"
