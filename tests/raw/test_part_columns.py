"""The declared fields of a stream are typed columns of raw: exact, for any reader, whenever declared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemill import Mill
from tidemill.formats.declared_columns import column_paths
from tidemill.mill import recover
from tidemill.model.failpoints import observed
from tidemill.model.time import MINUTE, SECOND, format_instant, parse_instant
from tidemill.pipeline.reports import StreamStatus
from tidemill.raw.compaction import column_rewrite
from tidemill.raw.tables import RAW, RAW_STATS
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.parts import read_footer, read_part, write_part
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

NOON = parse_instant("2024-01-15T12:00:00Z")
TYPES = {
    "s": "string",
    "i": "integer",
    "d": "{type: decimal, scale: 2}",
    "f": "float",
    "b": "boolean",
    "t": "timestamp",
    "site.name": "string",
    "site.height": "{type: decimal, scale: 1, unit: m, standard_name: height, description: above the sea, "
    "metadata: {instrument: mast}}",
    "site.at.lat": "float",
    "ls": "{type: array, items: string}",
    "ld": "{type: array, items: decimal, scale: 2}",
    "lt": "{type: array, items: timestamp}",
    "o": "object",
    "payload": "string",
    "Slice": "integer",
}
HEIGHT = {"unit": "m", "standard_name": "height", "comment": "above the sea", "instrument": "mast"}
# Every spelling stands in every scalar field.
SPELLINGS = [
    "null", "true", "false", '""', '"é\\n\\u00e9\\ud83d\\ude00"', '"12"', '"2024-01-15T12:00:00Z"',
    '"2024-01-15T12:00:00.123456789+02:00"', '"2024-02-30T00:00:00Z"', '"2024-01-15T12:00:00"', "0", "-0",
    "7", "7.0", "7.5", "-1e2", "1E+2", "12e-1", "0.005", "0.015", "1.2345678901234567", "9223372036854775807",
    "-9223372036854775808", "9223372036854775808", "9999999999999999.99", "9999999999999999.995", "1e400",
    "1e-400", "123456789012345678901234567890", "[]", "[1]", "{}", '{"a":1}',
]  # fmt: skip
LISTS = [
    "[]", "[null]", '["a","\\n"]', "[1,2.5,null]", '[ "x" , 1 ]', "[[1]]", '["2024-01-15T12:00:00Z",null]',
    "[1e2,0.005]", '[{"a":[1]}]', "null", "3",
]  # fmt: skip


def config(types: Mapping[str, str], more: str = "") -> str:
    fields = "".join(f"      {name}: {kind}\n" for name, kind in types.items())
    return (
        "version: 1\nengine: {cores: 2}\nstreams:\n  feed:\n    schema:\n"
        "      id: {type: string, required: true}\n      at: {type: integer, required: true}\n"
        f"{fields}    event_time: {{column: at, type: unixtimestamp_us}}\n    identity: id\n"
        f"    aggregation_span: 1m\n    allow_incomplete_windows: true\n{more}"
    )


def record(number: int, fields: Mapping[str, str]) -> str:
    """Fields by their dotted names, as JSON text."""
    tree: dict[str, object] = {"id": json.dumps(f"e{number}"), "at": str(NOON + number * SECOND)}
    for name, text in fields.items():
        node = tree
        *outer, last = name.split(".")
        for step in outer:
            node = node.setdefault(step, {})  # type: ignore[assignment]
        node[last] = text
    return _text(tree)


def _text(tree: Mapping[str, object]) -> str:
    inner = (f"{json.dumps(key)}:{_text(v) if isinstance(v, dict) else v}" for key, v in tree.items())
    return "{" + ",".join(inner) + "}"


def records() -> list[str]:
    scalars = [name for name, kind in TYPES.items() if "array" not in kind]
    lists = [name for name in TYPES if name not in scalars]
    found = [record(n, dict.fromkeys(scalars, text)) for n, text in enumerate(SPELLINGS)]
    found += [record(100 + n, dict.fromkeys(lists, text)) for n, text in enumerate(LISTS)]
    return [*found, record(200, {}), record(201, {"site": "3"}), record(202, {"site": '{"name": "x"}'})]


# -- the plain account: what a value is by its type, in Python


def value_of(kind: str, scale: int, value: object) -> object:
    """None: it is no such value."""
    number = isinstance(value, Decimal)
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "integer" and number:
        whole = value == value.to_integral_value() if abs(value) < 2**80 else False
        return int(value) if whole and -(2**63) <= value < 2**63 else None
    if kind == "decimal" and number:
        if abs(value) >= 10**18:
            return None
        rounded = round(Fraction(value) * 10**scale)  # half to even
        return Decimal(rounded).scaleb(-scale) if abs(rounded) < 10**18 else None
    if kind == "float" and number:
        return float(value)
    if kind == "timestamp" and isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return None
        return found.astimezone(UTC) if found.tzinfo is not None else None
    return None


def expected(text: str) -> dict[str, object]:
    whole = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    found: dict[str, object] = {}
    for name, kind in TYPES.items():
        value: object = whole
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        scale = int(kind.partition("scale: ")[2][:1] or 0)
        if "items" in kind:
            each = kind.partition("items: ")[2].strip("}").split(",")[0]
            items = [(one, value_of(each, scale, one)) for one in value] if isinstance(value, list) else None
            wrong = items is None or any(one is not None and is_ is None for one, is_ in items)
            found[name] = None if wrong or items is None else [is_ for _, is_ in items]
        elif kind != "object":
            plain = kind.removeprefix("{type: ").split(",")[0]
            found[name] = value_of(plain, scale, value)
    return found


COLUMNS = {
    "s": "s", "i": "i", "d": "d", "f": "f", "b": "b", "t": "t", "site.name": "site.name",
    "site.height": "site.height", "site.at.lat": "site.at.lat", "ls": "ls", "ld": "ld", "lt": "lt",
    "payload": "payload_", "Slice": "Slice_",
}  # fmt: skip


def rows_of(found: pa.Table) -> dict[str, dict[str, object]]:
    """By id the declared columns, flat; instants in UTC."""
    rows = {}
    for row in found.to_pylist():
        flat = {}
        for name, column in COLUMNS.items():
            value = row
            for step in column.split("."):
                value = value[step] if value is not None else None
            flat[name] = value.astimezone(UTC) if isinstance(value, datetime) else value
        rows[row["event_id"]] = flat
    return rows


def account() -> dict[str, dict[str, object]]:
    return {json.loads(text)["id"]: expected(text) for text in records()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tidemill.yaml").write_text(config(dict.fromkeys(TYPES, "any")))
    return tmp_path


def opened(root: Path) -> Mill:
    return Mill.open(root, clock=FakeClock(NOON + 10 * MINUTE))


def raw(root: Path) -> Table:
    found = Table.existing(root / "warehouse" / "raw" / "feed")
    assert found is not None
    return found


def delta(root: Path) -> pa.Table:
    return pa.table(DeltaTable(root / "warehouse" / "raw" / "feed").to_pyarrow_table())


def status(mill: Mill) -> StreamStatus:
    (found,) = mill.status()
    return found


def land(mill: Mill, lines: list[str], name: str = "a") -> None:
    mill.land("feed", "".join(f"{line}\n" for line in lines).encode(), name=name)
    mill.run_until_idle()


def test_columns_are_what_the_json_says_whatever_was_declared_before(root: Path) -> None:
    """Everything is accepted as `any`, then declared: parts are made again, and misfits are null."""
    lines = records()
    with opened(root) as mill:
        land(mill, lines)
        assert status(mill).totals["accepted"] == len(lines)
    before = delta(root)
    (root / "tidemill.yaml").write_text(config(TYPES))
    with opened(root) as mill:
        assert status(mill).stale_rows == len(lines)
        mill.run_until_idle()
        assert status(mill).stale_rows == 0
        assert mill.verify().findings == []
    after = delta(root)
    assert rows_of(after) == account()
    assert after.select(before.column_names).equals(before)


def test_stock_readers_see_the_same_columns_with_their_metadata(root: Path) -> None:
    (root / "tidemill.yaml").write_text(config(TYPES))
    fitting = {text for text in records() if _fits(text)}  # the others are rejected as of the wrong type
    with opened(root) as mill:
        land(mill, sorted(fitting))
        assert status(mill).totals["accepted"] == len(fitting)
        (listed,) = mill.catalog("feed")
    assert dict(listed.notes)["site.height"] == HEIGHT
    table = str(root / "warehouse" / "raw" / "feed")
    wanted = {name: row for name, row in account().items() if any(f'"{name}"' in text for text in fitting)}
    assert rows_of(delta(root)) == wanted
    assert rows_of(polars.read_delta(table).to_arrow()) == wanted
    files = raw(root).snapshot().paths()
    found = duckdb.sql(f"SELECT event_id, site.name, site.at.lat, d FROM read_parquet({files})").fetchall()
    assert {row[0]: row[1:] for row in found} == {
        name: (row["site.name"], row["site.at.lat"], row["d"]) for name, row in wanted.items()
    }
    height = pa.schema(DeltaTable(table).schema().to_arrow()).field("site").type.field("height")
    assert {key.decode(): text.decode() for key, text in height.metadata.items()} == HEIGHT


def test_columns_of_accepted_records_are_what_the_json_says(root: Path) -> None:
    """Without lists the places of values are known from when the records were first read."""
    types = {name: kind for name, kind in TYPES.items() if "array" not in kind}
    (root / "tidemill.yaml").write_text(config(types))
    lines = [text for text in records() if _fits(text) and "1" not in json.loads(text)["id"][:3]]
    spelled = '"\\u0073" : "\\u00e9", "site": { "na\\u006de": "y" } , "i": 12'
    lines += [
        f'  {{ "id" : "k1", "at" : {NOON} ,\t{spelled} }} ',
        f'{{"i":-3,"unknown":[{{"s":"no"}}],"site":[{{"name":"no"}}],"id":"k2","at":{NOON},"d":1.5,"b":true}}',
    ]
    with opened(root) as mill:
        land(mill, lines)
        assert status(mill).totals["accepted"] == len(lines)
        assert mill.verify().findings == []
    wanted = {json.loads(text)["id"]: expected(text) for text in lines}
    found = delta(root)
    for name in ("ls", "ld", "lt"):
        found = found.append_column(name, pa.nulls(found.num_rows))
        wanted = {key: {**row, name: None} for key, row in wanted.items()}
    assert rows_of(found) == wanted


def _fits(text: str) -> bool:
    """Whether every declared scalar field that is there is a value of its type."""
    whole = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    for name, value in expected(text).items():
        said: object = whole
        for step in name.split("."):
            said = said.get(step) if isinstance(said, dict) else None
        if said is not None and value is None and "array" not in TYPES[name]:
            return False
        if said is not None and "array" in TYPES[name] and not isinstance(said, list):
            return False
    return whole.get("o") is None or isinstance(whole["o"], dict)


def as_former_versions_wrote_it(root: Path) -> None:
    """Put parts without declared columns, and a table that shows none, in the place of all parts."""
    table = raw(root)
    made = []
    for number, part in enumerate(parts := [one for one in table.snapshot().parts if one.rows]):
        path = table.root / part.path
        footer = {key: said for key, said in read_footer(path).items() if key != "columns"}
        name = f"{without_checksums(part.path).removesuffix('.parquet')}-{number}.parquet"
        rows = read_part(path, RAW.names)
        folder = table.staging("test")
        made.append(write_part(folder, name, rows, partition={}, footer=footer, stats_columns=RAW_STATS))
    table.commit(table.publish(made), parts, info={"packed": "test"})
    table.reshape(RAW)
    table.clean_staging()


def with_columns(root: Path) -> set[str]:
    """The events of parts that have declared columns."""
    table = raw(root)
    parts = [table.root / part.path for part in table.snapshot().parts if part.rows]
    made = [read_part(path, ["event_id"]) for path in parts if "columns" in read_footer(path)]
    return {name for rows in made for name in rows.column("event_id").to_pylist()}


def answers(mill: Mill) -> list[object]:
    """What is read of raw: by a filter, and by a query below the levels of rollups."""
    page = mill.search("feed", "FILTER n > 2 AND x = 'b' LIMIT 100", all_tenants=True)
    since, until = (format_instant(NOON + at * SECOND) for at in (1, 28))
    summed = mill.query(f"SELECT count, sum(n) FROM feed BETWEEN {since} AND {until}", all_tenants=True)
    return [page.rows.to_pylist(), summed.to_pylist()]  # type: ignore[union-attr]


def test_a_warehouse_of_former_versions_gets_its_columns_and_answers_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "    pack: {enabled: false}\n    metrics: {events: {kind: counter, measures: [n]}}\n"
    (root / "tidemill.yaml").write_text(config({"n": "integer", "x": "string"}, more))
    with opened(root) as mill:
        for turn in range(3):
            land(mill, [record(10 * turn + n, {"n": str(n), "x": '"b"'}) for n in range(5)], f"{turn}")
        wanted = answers(mill)
    before = delta(root)
    as_former_versions_wrote_it(root)
    assert delta(root).column_names == RAW.names
    monkeypatch.setattr(column_rewrite, "ROUND_BYTES", 1)
    left, made = [], []
    with opened(root) as mill:
        for _ in range(4):
            assert answers(mill) == wanted
            left.append(status(mill).stale_rows)
            made.append(with_columns(root))
            mill.tick()
        assert left == [15, 10, 5, 0]
        third, second, first = ({f"e{10 * turn + n}" for n in range(5)} for turn in (2, 1, 0))
        assert made == [set(), third, third | second, third | second | first], "the oldest last"
        assert mill.verify().findings == []
    key = [("event_id", "ascending")]
    assert delta(root).sort_by(key).equals(before.sort_by(key))


def test_a_retyped_column_leaves_the_table_until_no_part_has_the_old_type(root: Path) -> None:
    (root / "tidemill.yaml").write_text(config({"n": "integer", "x": "string"}))
    with opened(root) as mill:
        land(mill, [record(n, {"n": str(n), "x": '"a"'}) for n in range(5)])
    assert delta(root).schema.field("n").type == pa.int64()
    (root / "tidemill.yaml").write_text(config({"n": "{type: decimal, scale: 1}", "x": "string"}))
    schemas: list[pa.Schema] = []
    with opened(root) as mill, observed(lambda _: schemas.append(raw(root).schema)):
        land(mill, [record(n, {"n": f"{n}.5", "x": '"b"'}) for n in range(5, 9)], "b")
        assert mill.verify().findings == []
    assert any("n" not in schema.names and "x" in schema.names for schema in schemas)
    found = {row["event_id"]: row["n"] for row in delta(root).to_pylist()}
    assert found == {f"e{n}": Decimal(n) if n < 5 else Decimal(n) + Decimal("0.5") for n in range(9)}


def test_names_that_are_taken_get_another_one() -> None:
    names = ["a", "A", "site.name", "site", "tenant", "b.c.d", "b.c", "payload_", "payload", "DAY"]
    assert {name: ".".join(path) for name, path in column_paths(names).items()} == {
        "a": "a", "A": "A_", "site": "site", "site.name": "site_.name", "tenant": "tenant_", "b.c": "b.c",
        "b.c.d": "b.c_.d", "payload_": "payload_", "payload": "payload__", "DAY": "DAY_",
    }  # fmt: skip


def test_verify_finds_a_column_that_is_not_what_its_payload_says(root: Path) -> None:
    (root / "tidemill.yaml").write_text(config({"n": "integer"}))
    with opened(root) as mill:
        land(mill, [record(n, {"n": str(n)}) for n in range(5)])
        table = raw(root)
        (part,) = table.snapshot().parts
        rows = read_part(table.root / part.path)
        position = rows.schema.get_field_index("n")
        changed = rows.set_column(position, "n", pa.array([0, 1, 2, 7, 4]))
        footer = read_footer(table.root / part.path)
        name = without_checksums(part.path)
        made = write_part(
            table.staging("test"), name, changed, partition={}, footer=footer, stats_columns=RAW_STATS
        )
        table.commit(table.publish([made]), [part], info={})
        found = [finding.difference for finding in mill.verify().findings if finding.what == "raw"]
    assert found == ["column n of line 4 is not what its payload says"]


def test_a_crash_while_columns_are_made_again_needs_no_repair(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:

    (root / "tidemill.yaml").write_text(config({"n": "integer"}, "    pack: {slices: 2}\n"))
    with opened(root) as mill:
        for turn in range(3):
            land(mill, [record(10 * turn + n, {"n": str(n)}) for n in range(5)], f"{turn}")
    before = delta(root)
    (root / "tidemill.yaml").write_text(config({"n": "float"}, "    pack: {slices: 2}\n"))
    copies: dict[str, Path] = {}

    def keep(point: str) -> None:
        if point.startswith("columns.") and point not in copies:
            copies[point] = tmp_path_factory.mktemp("crash") / "copy"
            shutil.copytree(root, copies[point])

    with opened(root) as mill, observed(keep):
        mill.run_until_idle()
    assert set(copies) == {"columns.after_build", "columns.before_commit", "columns.after_commit"}
    for copy in (root, *copies.values()):
        with opened(copy) as mill:
            mill.run_until_idle()
            assert status(mill).stale_rows == 0
            assert mill.verify().findings == []
        found = delta(copy)
        assert found.schema.field("n").type == pa.float64()
        same = [name for name in before.column_names if name != "n"]
        key = [("event_id", "ascending")]
        assert found.select(same).sort_by(key).equals(before.select(same).sort_by(key))
    for path in (root / "warehouse").glob("state.db*"):
        path.unlink()
    recover(root)
    with opened(root) as mill:
        assert mill.state.totals("feed")["accepted"] == 15
        assert mill.verify().findings == []


def test_datasets_have_the_columns_with_their_metadata(root: Path) -> None:
    (root / "tidemill.yaml").write_text(config(TYPES))
    lines = [text for text in records() if _fits(text)]
    with opened(root) as mill:
        land(mill, lines)
        found = [pa.ipc.open_file(path).read_all() for path in (root / "warehouse").rglob("r1.arrow")]
    wanted = account()
    rows = {row["event_id"]: row for table in found for row in table.to_pylist()}
    assert len(rows) == len(lines)
    for name, row in rows.items():
        assert {field: row[field] for field in wanted[name]} == wanted[name]
    height = found[0].schema.field("site.height")
    assert {key.decode(): text.decode() for key, text in height.metadata.items()} == HEIGHT
