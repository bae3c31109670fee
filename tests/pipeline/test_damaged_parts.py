"""A part of raw, flipped at many places, cut and deleted: whoever reads it says so and names the file; nobody
answers with other rows. And `verify` compares every row of raw with the slice that it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.pipeline import NOON, NewPlant, Plant

from tidemill.formats.stored_slice import content_bytes
from tidemill.mill import Mill
from tidemill.model.damage import FileKind
from tidemill.model.errors import DamageError
from tidemill.model.time import HOUR, SECOND, format_instant
from tidemill.pipeline.scrub import scrub
from tidemill.storage.tables.parts import read_footer, read_part, write_part
from tidemill.storage.tables.table import Table

CONFIG = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  visits:
    schema:
      id: {type: string, required: true}
      ts: {type: integer, required: true}
      user: {type: string, required: true}
      ms: integer
    event_time: {column: ts, type: unixtimestamp_us, late_tolerance: 1s}
    identity: id
    tenant: {column: user}
    indexed: [ms]
    aggregation_span: 1h
    metrics:
      visits: {kind: counter, measures: [ms]}
"""
START = NOON - 3 * HOUR
COUNT = 400
FLIPS = 100


def visit(number: int, **changes: object) -> dict[str, object]:
    event = {"id": f"v{number}", "ts": START + number * SECOND, "user": f"u{number % 3}", "ms": number % 50}
    return event | changes


def lines(*events: dict[str, object] | bytes) -> bytes:
    return b"".join((e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n" for e in events)


@pytest.fixture(scope="module")
def made(new_plant: NewPlant) -> Plant:
    """One slice and its part of raw, a repeat, a conflict and a line that is refused in a second one."""
    plant = new_plant(CONFIG)
    with plant.open() as mill:
        mill.land("visits", lines(*map(visit, range(COUNT))), start=START, end=START + HOUR)
        mill.run_until_idle()
        mill.land("visits", lines(visit(1), visit(2, ms=999), b"{cut", visit(COUNT)))
        mill.run_until_idle()
    return plant


@pytest.fixture
def plant(made: Plant, tmp_path: Path) -> Plant:
    return made.copy(tmp_path / "plant")


def raw_table(plant: Plant) -> Table:
    table = Table.existing(plant.warehouse / "raw" / "visits")
    assert table is not None
    return table


def largest(plant: Plant) -> Path:
    table = raw_table(plant)
    return table.root / max(table.snapshot().parts, key=lambda part: part.rows).path


def query(mill: Mill) -> object:
    """Below a bucket of 5s: of the rows of raw themselves."""
    since, until = format_instant(START + 1 * SECOND), format_instant(START + 303 * SECOND)
    text = f"SELECT count, sum(ms) AS ms FROM visits BETWEEN {since} AND {until}"
    return mill.query(text, all_tenants=True).to_pylist()


def search(mill: Mill) -> object:
    return mill.search("visits", "WHERE ms = 7", all_tenants=True, limit=1000).rows


def tail(mill: Mill) -> object:
    return [item.to_pylist() for item in mill.tail("visits") if isinstance(item, pa.RecordBatch)]


READERS: dict[str, Callable[[Mill], object]] = {"query": query, "search": search, "tail": tail}


def harmed(path: Path) -> Iterator[None]:
    """Each time another harm; the file is whole again at the end."""
    content = path.read_bytes()
    for place in range(0, len(content), -(-len(content) // FLIPS)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        yield
    for end in (0, 7, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        yield
    path.unlink()
    yield
    path.write_bytes(content)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_reader_takes_a_damaged_part(plant: Plant, read: Callable[[Mill], object]) -> None:
    path = largest(plant)
    name = path.relative_to(plant.warehouse).as_posix()
    with plant.open() as mill:
        before = read(mill)
        assert before
        for _ in harmed(path):
            with pytest.raises(DamageError) as caught:
                read(mill)
            assert (caught.value.code, caught.value.where) == ("damaged", name)
        assert read(mill) == before


def test_a_scrub_finds_each_of_them(plant: Plant) -> None:
    path = largest(plant)
    name = path.relative_to(plant.warehouse).as_posix()
    with plant.open() as mill:
        assert list(scrub(mill.warehouse)) == []
        for _ in harmed(path):
            (found,) = [one for one in scrub(mill.warehouse) if one.kind is FileKind.RAW]
            assert (found.file, found.stream) == (name, "visits")


@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_verify_and_the_builder_of_datasets_name_the_part(plant: Plant, place: float) -> None:
    path = largest(plant)
    name = path.relative_to(plant.warehouse).as_posix()
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 2
    path.write_bytes(content)
    with plant.open() as mill:
        assert name in [finding.where for finding in mill.verify().findings]
        errors = [str(outcome.error) for outcome in mill.rebuild(mill.windows.plan_rebuild("visits"))]
        assert errors
        assert all(name in error for error in errors)


# -- raw and its slices


def replaced(table: Table, change: Callable[[pa.Table], pa.Table]) -> None:
    """Another part in the place of the largest one, with checksums of its own."""
    part = max(table.snapshot().parts, key=lambda one: one.rows)
    path = table.root / part.path
    staged = write_part(
        table.staging("test"), "changed.parquet", change(read_part(path)), partition=part.partition,
        footer=read_footer(path), stats_columns=(),
    )  # fmt: skip
    table.commit(table.publish([staged]), [part], info={"test": "replaced"})
    table.clean_staging()


def changed(rows: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = rows.column(column).to_pylist()
    values[row] = value
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))


def differing(plant: Plant) -> list[str]:
    """The lines whose row is not what the slice says: a plain loop over both."""
    found = []
    with plant.open() as mill:
        slices = {e.id: content_bytes(plant.warehouse / e.slice.path).split(b"\n") for e in mill.ledger()}
        arrivals = {entry.id: entry.slice.arrival for entry in mill.ledger()}
    table = raw_table(plant)
    for path in table.snapshot().paths():
        for row in read_part(path).cast(pa.schema(_plain(read_part(path).schema))).to_pylist():
            text = slices[row["slice"]][row["line"] - 1].decode()
            event = json.loads(text) if text.startswith('{"') else {}
            said = (event.get("id"), event.get("ts"), event.get("user"), text, arrivals[row["slice"]])
            if said != (row["event_id"], row["event_time"], row["tenant"], row["payload"], row["arrival"]):
                found.append(f"{row['slice']} line {row['line']}")
    return found


def _plain(schema: pa.Schema) -> list[pa.Field]:
    return [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in schema]


CHANGES: dict[str, tuple[str, str, object]] = {
    "payload": ("payload", "payload", '{"id": "v7", "ts": 1, "user": "u1", "ms": 7}'),
    "event_time": ("event_time", "event_time", START + 8 * SECOND),
    "event_id": ("event_id", "tenant or event_id", "v8888"),
    "tenant": ("tenant", "tenant or event_id", "u2"),
    "arrival": ("arrival", "arrival", NOON + 1),
    "line": ("line", "payload", 300),
}


def test_a_sound_warehouse_equals_its_slices(plant: Plant) -> None:
    assert differing(plant) == []
    with plant.open() as mill:
        assert mill.verify().findings == []


@pytest.mark.parametrize(("column", "named", "value"), CHANGES.values(), ids=CHANGES)
def test_a_row_that_is_not_what_its_slice_says_is_found(
    plant: Plant, column: str, named: str, value: object
) -> None:
    replaced(raw_table(plant), lambda rows: changed(rows, column, 7, value))
    (line,) = differing(plant)
    slice_id = line.partition(" ")[0]
    with plant.open() as mill:
        found = [(f.where, f.difference) for f in mill.verify().findings if f.what == "raw"]
    assert any(where == slice_id and f"another {named} than the slice" in said for where, said in found)


def test_an_event_that_is_nowhere_is_found(plant: Plant) -> None:
    """Its row is gone, and the ledger says that it was a duplicate."""
    replaced(raw_table(plant), lambda rows: rows.filter(pc.not_equal(rows.column("event_id"), "v5")))
    with plant.open() as mill:
        found = [f.difference for f in mill.verify().findings if f.what == "ids"]
    assert found == ["line 6 is not in raw, and no event with its id is"]


def test_quarantine_that_is_not_what_the_slices_say_is_found(plant: Plant) -> None:
    table = Table.existing(plant.warehouse / "quarantine" / "visits")
    assert table is not None
    replaced(table, lambda rows: changed(rows, "reason", 1, "skew"))
    with plant.open() as mill:
        found = [f.difference for f in mill.verify().findings if f.what == "quarantine"]
    assert found == ["line 3 has another outcome than the slice"]


def test_quarantine_that_lost_a_record_is_found(plant: Plant) -> None:
    table = Table.existing(plant.warehouse / "quarantine" / "visits")
    assert table is not None
    replaced(table, lambda rows: rows.slice(0, 1))
    with plant.open() as mill:
        found = [f.difference for f in mill.verify().findings if f.what == "quarantine"]
    assert found == ["1 of its records are missing, line 3 first"]


def test_a_stream_that_is_declared_otherwise_since_is_compared_by_its_bytes(plant: Plant) -> None:
    plant.configure(CONFIG.replace("identity: id", "identity: [id, user]"))
    with plant.open() as mill:
        assert [f for f in mill.verify().findings if f.what in ("raw", "ids", "slice")] == []
    replaced(raw_table(plant), lambda rows: changed(rows, "payload", 7, '{"other": 1}'))
    with plant.open() as mill:
        found = [f.difference for f in mill.verify().findings if f.what == "raw"]
    assert (
        found == ["line 2 has another payload than the slice"] or "another payload than the slice" in found[0]
    )
