"""`verify` recomputes: parts and datasets with other values and right checksums, which a scrub calls whole,
are found by what they hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import ipc
from tests.support.damage import Shop
from tests.support.forged_parts import forge

from tidemill.model.gateway import Receipt
from tidemill.outputs.datasets.checksums import enter_checksum


def other(value: object) -> object:
    if isinstance(value, str):
        return value.replace("north", "south").replace("orders-1", "orders-2").replace("soon", "late")
    if isinstance(value, bytes):
        return value.replace(b"soon", b"late")
    if isinstance(value, list):
        return [one + 1 if isinstance(one, float | int) else one for one in value]
    assert isinstance(value, int | float)
    return value + 1


# The table, a column of it, what the findings are about, and what one of them says.
FORGED = {
    "raw": ("raw/orders", "payload", "raw", "another payload"),
    "quarantine": ("quarantine/orders", "payload", "quarantine", ""),
    "rollups": ("rollups/orders", "count", "tile", ""),
    "results": ("windows/orders/ten", "n", "result", "differs in n"),
    "index": ("index/orders", "text", "index", ""),
    "chains": ("chains/embeddings", "values", "chain", ""),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_part_with_a_right_checksum_is_found(shop: Shop, kind: str) -> None:
    table, column, what, says = FORGED[kind]
    forge(shop.warehouse / table, column, other)
    with shop.open() as mill:
        assert mill.scrub().damages == []
        found = mill.verify().findings
    assert what in {one.what for one in found}
    assert any(says in one.difference for one in found if one.what == what)


def test_a_forged_dataset_with_a_right_checksum_is_found(shop: Shop) -> None:
    with shop.open() as mill:
        window = next(one for one in mill.windows.datasets("orders") if one.rows)
    path = shop.warehouse / str(window.file)
    with pa.OSFile(str(path)) as source, ipc.open_file(source) as reader:
        rows = reader.read_all()
    forged = _with(rows, "shop", lambda column: pc.replace_substring(column, "north", "south"))
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(forged)
    with sqlite3.connect(shop.warehouse / "state.db") as db:
        changed = (enter_checksum(path), path.stat().st_size, window.file)
        assert db.execute("UPDATE windows SET checksum = ?, bytes = ? WHERE file = ?", changed).rowcount == 1
    with shop.open() as mill:
        assert mill.scrub().damages == []
        (finding,) = mill.verify().findings
    assert finding.what == "dataset"


def _with(rows: pa.Table, column: str, change: Callable[[pa.Array], pa.Array]) -> pa.Table:
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(place), change(rows.column(column)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"slice": "f" * 64}, "which the ledger does not know"),
        ({"first": 31}, "it says lines 31 to 42; its slice has 41"),
        ({"first": 0}, "which no slice has"),
    ],
)
def test_a_receipt_that_leads_nowhere_is_found(shop: Shop, change: dict[str, object], says: str) -> None:
    with shop.open() as mill:
        entry = min(mill.state.slices("orders"), key=lambda one: one.seq)
        whole = Receipt("g-1", "orders", None, entry.id, 30, 12, "w", entry.slice.arrival)  # its last lines
        mill.state.keep_receipts([whole, replace(whole, id="g-2", **change)], 1 << 62)
        (finding,) = mill.verify("orders").findings
    assert (finding.what, finding.where) == ("receipt", "g-2")
    assert says in finding.difference
