"""`keep_payload: false`: raw keeps what a column has only there, and whoever asks gets what was sent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raw.test_part_columns import (
    LISTS,
    NOON,
    SPELLINGS,
    TYPES,
    _fits,
    answers,
    as_former_versions_wrote_it,
    config,
    delta,
    land,
    opened,
    raw,
    record,
    records,
    status,
)
from tests.support.hypothesis_settings import examples

from tidemill import Mill
from tidemill.formats.declared_columns import Column, RawColumn, RawColumns, column_paths
from tidemill.formats.payload_columns import typed
from tidemill.mill import recover
from tidemill.model.time import SECOND, format_instant
from tidemill.raw.footers import declared_by
from tidemill.raw.part_columns import nested_columns, own_columns, payload_sizes
from tidemill.raw.part_payloads import PartPayloads, without_columns
from tidemill.storage.tables.parts import read_footer, read_part

pytestmark = pytest.mark.long

COLUMNS = [
    Column("s", "string"),
    Column("i", "integer"),
    Column("d", "decimal", 3),
    Column("f", "float"),
    Column("b", "boolean"),
    Column("t", "timestamp", zone="Europe/Berlin"),
    Column("site.name", "string"),
    Column("site.at.lat", "decimal", 8),
    Column("ls", "array", items="string"),
    Column("ld", "array", 2, items="decimal"),
    Column("lt", "array", items="timestamp"),
]
PATHS = column_paths([column.name for column in COLUMNS])
DECLARED = RawColumns(tuple(RawColumn(column, PATHS[column.name]) for column in COLUMNS), keeps_payload=False)


def without(lines: Sequence[str]) -> tuple[pa.Table, RawColumns]:
    """The rows of a part with these payloads, without what its columns have."""
    payload = pa.array(lines, pa.string())
    made = nested_columns(DECLARED, typed(own_columns(DECLARED), payload).arrays, payload_sizes(payload))
    rows = pa.table({"payload": payload, **made})
    left, declared = without_columns(DECLARED, rows)
    return rows.set_column(0, "payload", left), declared


def given_back(lines: Sequence[str]) -> list[str]:
    rows, declared = without(lines)
    again = declared_by({"columns": declared.to_footer()})
    assert again == declared
    payloads = PartPayloads(again)
    assert set(payloads.names) <= {"payload", *(each.leaf for each in declared.columns)}
    found: list[str] = payloads.of(rows).to_pylist()
    return found


texts = st.sampled_from(
    [
        *SPELLINGS, *LISTS, "1.5", "12.25", "100", "-0.001", "0.00000001", "123456789012.0",
        "1700000000000.5", '"a"', '"b"', '"\\""', '"é"', '"\\u00e9"', '"/"', '"\\/"',
        '"2024-01-15T12:00:00.000Z"', '"2024-01-15 12:00:00"', '"2024-03-31T02:30:00"',
        '"2024-10-27T02:30:00.5"', '"2024-01-15T12:00:00.123+00:00"',
        '["a", "b"]', "[1.00,2.50]", '["2024-01-15T12:00:00Z", null]',
    ]
)  # fmt: skip
keys = st.sampled_from(["s", "i", "d", "f", "b", "t", "ls", "ld", "lt", "x", "\\u0073"])
spaces = st.sampled_from(["", " ", "\t"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A record with keys in any order, some of them more than once, and whatever values."""
    members = [
        f'{draw(spaces)}"{draw(keys)}":{draw(spaces)}{draw(texts)}{draw(spaces)}'
        for _ in range(draw(st.integers(0, 8)))
    ]
    for _ in range(draw(st.integers(0, 2))):
        inner = f'"name":{draw(texts)},"at":{{"lat":{draw(texts)},"x":{draw(texts)}}}'
        members.append(f'"site":{draw(st.sampled_from([f"{{{inner}}}", f"[{{{inner}}}]", "null", "3"]))}')
    return "{" + ",".join(draw(st.permutations(members))) + "}"


@given(st.lists(lines(), min_size=1, max_size=30))
@examples(60)
def test_what_was_sent_comes_back_byte_for_byte(sent: list[str]) -> None:
    assert given_back(sent) == sent


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("s", ["a", "", "é", 'say "x"', "two\nlines", "\\"]),
        ("i", [0, -1, 2**63 - 1]),
        ("d", [1, 1.5, -0.25, 1000.125]),
        ("f", [0.1, 1e-7, 123456789012.0, 2.5e300]),
        ("b", [True, False]),
        ("t", ["2024-01-15T12:00:00Z", "1969-12-31T23:59:59Z"]),
        ("t", ["2024-01-15T12:00:00.250+00:00"]),
        ("t", ["2024-07-15 12:00:00.000001"]),
        ("ls", [[], ["a"], [None, "b\n"]]),
        ("ld", [[1.5, 2, None]]),
        ("lt", [["2024-01-15T12:00:00Z"]]),
    ],
)
def test_a_value_is_kept_once(name: str, values: list[object]) -> None:
    """As Python writes it, with spaces; the payload says null, and not the value."""
    sent = [json.dumps({name: value, "x": 1}, ensure_ascii=False) for value in values]
    rows, _ = without(sent)
    left = [json.loads(text) for text in rows.column("payload").to_pylist()]
    assert left == [{name: None, "x": 1}] * len(values)
    assert given_back(sent) == sent


def test_a_null_that_was_sent_is_no_value_of_a_column() -> None:
    sent = ['{"s":null}', '{"s":"a"}', "{}", '{"s":1}']
    assert given_back(sent) == sent


def test_a_field_whose_column_has_a_value_beside_null_stays_in_the_payload() -> None:
    """As `tenant` can have, which was another thing when the events were accepted."""
    rows = pa.table({"payload": ['{"s":null}', '{"s":"a"}'], "s": ["b", "a"]})
    only = RawColumns((DECLARED.columns[0],), keeps_payload=False)
    left, declared = without_columns(only, rows)
    assert (left.to_pylist(), declared.spellings) == (rows.column("payload").to_pylist(), ())


def test_who_wants_one_path_gets_that_one_whole() -> None:
    sent = '{"s":"a","site":{"name":"n","at":{"lat":1.5}},"i":1}'
    rows, declared = without([sent])
    payloads = PartPayloads(declared, ["site.at"])
    assert payloads.names == ["payload", "site.at.lat"]
    assert payloads.of(rows).to_pylist() == ['{"s":null,"site":{"name":null,"at":{"lat":1.5}},"i":null}']
    assert PartPayloads(declared, ["x"]).names == ["payload"]


# -- a warehouse

FALSE = "    keep_payload: false\n"
MORE = (
    "    pack: {slices: 2}\n    indexed: [x, n, extra]\n"
    "    metrics: {events: {kind: counter, measures: [n], dimensions: [x]}}\n"
)
FIELDS = {"n": "integer", "x": "string", "site.name": "string", "t": "timestamp"}


def event(number: int) -> str:
    kind = "abc"[number % 3]
    at = f'"2024-01-15T12:00:{number % 60:02d}Z"'
    fields = {"n": str(number % 7), "x": f'"{kind}"', "t": at, "site.name": '"s"', "extra": f'"{number}"'}
    return record(number, fields)


def everything(mill: Mill) -> list[object]:
    """What is read of raw, by all that reads it."""
    pages = [
        mill.search("feed", text, all_tenants=True).rows.to_pylist()
        for text in ("LIMIT 100", "FILTER site.name = 's' AND extra > '2' LIMIT 100", "WHERE extra = '7'")
    ]
    span = f"{format_instant(NOON)} AND {format_instant(NOON + 40 * SECOND)}"
    asked = [
        f"SELECT count, sum(n) FROM feed BETWEEN {span} GROUP BY x",
        f"SELECT count FROM feed BETWEEN {span} FILTER extra > '2' GROUP BY x",
    ]
    numbers = [mill.query(text, all_tenants=True).to_pylist() for text in asked]  # type: ignore[union-attr]
    (traced,) = mill.trace("e7", stream="feed")
    assert traced.row is not None
    return [*pages, *numbers, traced.row["payload"], answers(mill)]


@pytest.fixture(scope="module")
def sent() -> list[str]:
    return [event(number) for number in range(30)]


def payloads_of(mill: Mill) -> dict[str, str]:
    rows = mill.search("feed", "LIMIT 1000", all_tenants=True).rows.to_pylist()
    return {row["event_id"]: row["payload"] for row in rows}


def test_everybody_reads_the_same_whether_payloads_are_kept_or_not(tmp_path: Path, sent: list[str]) -> None:
    """Kept, then not, then kept again; with parts of both kinds side by side."""
    wanted = {json.loads(text)["id"]: text for text in sent}
    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, MORE))
    with opened(tmp_path) as mill:
        for turn in range(3):
            land(mill, sent[10 * turn : 10 * turn + 10], f"{turn}")
        before, kept = everything(mill), delta(tmp_path)
        assert payloads_of(mill) == wanted
    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, FALSE + MORE))
    with opened(tmp_path) as mill:
        assert status(mill).stale_rows == 30
        assert everything(mill) == before  # parts of the earlier declaration
        mill.run_until_idle()
        assert status(mill).stale_rows == 0
        assert everything(mill) == before
        assert mill.verify().findings == []
    left = delta(tmp_path)
    assert {text.split('"extra"')[0] for text in left.column("payload").to_pylist()} == {
        '{"id":null,"at":null,"n":null,"x":null,"t":null,"site":{"name":null},'
    }
    same = [name for name in kept.column_names if name != "payload"]
    assert left.select(same).equals(kept.select(same))
    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, MORE))
    with opened(tmp_path) as mill:
        mill.run_until_idle()
        assert everything(mill) == before
        assert mill.verify().findings == []
    assert delta(tmp_path).equals(kept)


def test_events_are_accepted_packed_retracted_and_followed_without_payloads(
    tmp_path: Path, sent: list[str]
) -> None:
    wanted = {json.loads(text)["id"]: text for text in sent}
    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, FALSE + MORE))
    with opened(tmp_path) as mill:
        for turn in range(3):
            land(mill, sent[10 * turn : 10 * turn + 10], f"{turn}")
        land(mill, sent[5:8], "again")  # by the content of what raw has
        assert status(mill).totals["duplicate"] == 3
        paths = raw(tmp_path).snapshot().paths()
        for path in paths:
            declared = declared_by(read_footer(path))
            assert declared is None or not declared.keeps_payload
        assert payloads_of(mill) == wanted
        followed = [
            row["payload"]
            for item in mill.tail("feed", ordered=False)
            if isinstance(item, pa.RecordBatch)
            for row in item.to_pylist()
        ]
        assert followed == sent
        assert mill.verify().findings == []
        second = sorted(mill.state.slices("feed"), key=lambda entry: entry.seq)[1]
        mill.retract(mill.plan_retraction(second.id, "test"))
        mill.run_until_idle()
        left = {f"e{n}": wanted[f"e{n}"] for n in range(30) if not 10 <= n < 20}
        assert payloads_of(mill) == left
        assert mill.verify().findings == []
    for path in (tmp_path / "warehouse").glob("state.db*"):
        path.unlink()
    shutil.rmtree(tmp_path / "warehouse" / "gate")
    recover(tmp_path)  # keys and contents of what was accepted, from raw
    with opened(tmp_path) as mill:
        land(mill, [sent[5], sent[6].replace('"6"', '"other"')], "later")
        assert {name: status(mill).totals[name] for name in ("accepted", "conflict")} == {
            "accepted": 20, "conflict": 1,
        }  # fmt: skip
        assert payloads_of(mill) == left


def test_fields_of_parts_without_payloads_can_be_declared_in_another_way(tmp_path: Path) -> None:
    """Everything that fits stands in columns alone; then the declaration changes, and misfits are null."""
    lines = [text for text in records() if _fits(text)]
    (tmp_path / "tidemill.yaml").write_text(config(TYPES, FALSE))
    with opened(tmp_path) as mill:
        land(mill, lines)
        assert sorted(payloads_of(mill).values()) == sorted(lines)
        assert mill.verify().findings == []
    other = {name: {"integer": "string", "string": "float"}.get(kind, "any") for name, kind in TYPES.items()}
    (tmp_path / "tidemill.yaml").write_text(config(other, FALSE))
    with opened(tmp_path) as mill:
        assert sorted(payloads_of(mill).values()) == sorted(lines)
        mill.run_until_idle()
        assert status(mill).stale_rows == 0
        assert sorted(payloads_of(mill).values()) == sorted(lines)
        assert mill.verify().findings == []


def test_verify_finds_a_column_that_is_not_what_the_slice_says(tmp_path: Path, sent: list[str]) -> None:
    from tidemill.raw.tables import RAW_STATS
    from tidemill.storage.tables.part_checksums import without_checksums
    from tidemill.storage.tables.parts import write_part

    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, FALSE))
    with opened(tmp_path) as mill:
        land(mill, sent[:5])
        table = raw(tmp_path)
        (part,) = table.snapshot().parts
        rows = read_part(table.root / part.path)
        changed = rows.set_column(rows.schema.get_field_index("n"), "n", pa.array([0, 1, 2, 6, 4]))
        footer = read_footer(table.root / part.path)
        made = write_part(
            table.staging("test"), without_checksums(part.path), changed,
            partition={}, footer=footer, stats_columns=RAW_STATS,
        )  # fmt: skip
        table.commit(table.publish([made]), [part], info={})
        found = [finding.difference for finding in mill.verify().findings if finding.what == "raw"]
    assert found == ["line 4 has another payload than the slice"]


def test_a_warehouse_of_former_versions_gives_its_payloads_up(tmp_path: Path, sent: list[str]) -> None:
    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, MORE))
    with opened(tmp_path) as mill:
        land(mill, sent)
        wanted = payloads_of(mill)
    as_former_versions_wrote_it(tmp_path)
    (tmp_path / "tidemill.yaml").write_text(config(FIELDS, FALSE + MORE))
    with opened(tmp_path) as mill:
        mill.run_until_idle()
        assert payloads_of(mill) == wanted
        assert mill.verify().findings == []


def test_vectors_are_the_same_without_payloads(tmp_path: Path) -> None:
    lines = [
        json.dumps({"delta_id": f"d{n}", "vector_id": f"v{n % 2}", "at": NOON + n * SECOND, **change})
        for n, change in enumerate(
            [{"op": "set", "values": [1.5, 2.0, -0.0]}] * 2
            + [{"op": "add", "values": [0.25], "indices": [1]}] * 4
        )
    ]
    (tmp_path / "tidemill.yaml").write_text(
        "version: 1\nengine: {cores: 2}\nstreams:\n  feed:\n    kind: delta\n    keep_payload: false\n"
        "    vector: {dimension: 3}\n    schema:\n      at: {type: integer, required: true}\n"
        "      vector_id: {type: string, required: true}\n      values: {type: array, items: float}\n"
        "      indices: {type: array, items: integer}\n"
        "    event_time: {column: at, type: unixtimestamp_us}\n"
    )
    with opened(tmp_path) as mill:
        land(mill, lines)
        left = [json.loads(text) for text in delta(tmp_path).column("payload").to_pylist()]
        assert {(each["values"], each.get("indices")) for each in left} == {(None, None)}
        found = mill.vectors("feed", ["v0", "v1"]).to_pylist()
        assert [(row["vector_id"], row["values"]) for row in found] == [
            ("v0", [1.5, 2.5, -0.0]), ("v1", [1.5, 2.5, -0.0]),
        ]  # fmt: skip
        assert mill.verify().findings == []


# -- any JSON, through a mill

characters = st.characters(exclude_categories=["Cs"])
strings = st.text(characters, max_size=8)
spelled_strings = st.builds(json.dumps, strings, ensure_ascii=st.booleans()) | st.sampled_from(
    ['"\\u0061"', '"\\/"', '"\\ud83d\\ude00"', '"a\\u0000b"', '"\\b\\f\\t"', '"' + "é" * 300 + '"']
)
whole = st.integers(-(2**63), 2**63 - 1)
spelled_wholes = st.builds(str, whole) | st.sampled_from(["-0", "7.0", "12e1", "1.20E+2", "100e-2"])
spelled_numbers = (
    spelled_wholes
    | st.builds(repr, st.floats(allow_nan=False, allow_infinity=False))
    | st.sampled_from(["1e400", "-1e-400", "0.1000", "123456789012345678901234567890.5", "-0.0", "5E-1"])
)
decimals = st.integers(-(10**14), 10**14).map(lambda n: f"{n // 1000}.{abs(n) % 1000:03}") | st.sampled_from(
    ["7", "7.0", "-0", "0.0005", "1e3", "12.3456789"]
)
times = st.sampled_from(
    ['"2024-01-15T12:00:00Z"', '"2024-01-15T12:00:00.120+00:00"', '"2024-01-15T13:00:00+01:00"',
     '"2024-01-15T12:00:00.123456789Z"', '"2024-01-15 12:00:00Z"']
)  # fmt: skip
anything = st.recursive(
    spelled_strings | spelled_numbers | st.sampled_from(["null", "true", "false"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: f"[{', '.join(some)}]")
        | st.lists(inner, max_size=3).map(lambda some: _object([(f"k{n}", v) for n, v in enumerate(some)]))
    ),
    max_leaves=8,
)
MEMBERS = {
    "s": spelled_strings, "i": spelled_wholes, "d": decimals, "f": spelled_numbers, "t": times,
    "b": st.sampled_from(["true", "false"]), "x": anything, "more": anything,
    "ls": st.lists(spelled_strings | st.just("null"), max_size=3).map(lambda some: f"[{','.join(some)}]"),
    "lf": st.lists(spelled_numbers, max_size=3).map(lambda some: f"[{', '.join(some)}]"),
    "site": st.tuples(spelled_strings, anything).map(lambda two: f'{{"name":{two[0]}, "y":{two[1]}}}'),
}  # fmt: skip
DECLARED_TYPES = {
    "s": "string", "i": "integer", "d": "{type: decimal, scale: 3}", "f": "float", "t": "timestamp",
    "b": "boolean", "x": "any", "ls": "{type: array, items: string}", "lf": "{type: array, items: float}",
    "site.name": "string",
}  # fmt: skip


def _object(members: Sequence[tuple[str, str]], space: str = "") -> str:
    return "{" + ",".join(f'{space}"{key}":{space}{value}' for key, value in members) + "}"


@st.composite
def accepted_lines(draw: st.DrawFn) -> list[list[tuple[str, str]]]:
    """Members of records in any order; the one without a value is null or absent."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        names = draw(st.lists(st.sampled_from(sorted(MEMBERS)), unique=True))
        found.append([(name, draw(st.just("null") | MEMBERS[name])) for name in names])
    return found


@pytest.fixture(scope="module")
def stripped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """A mill that keeps what columns have only there."""
    folder: Path = tmp_path_factory.mktemp("stripped")
    (folder / "tidemill.yaml").write_text(config(DECLARED_TYPES, FALSE))
    with opened(folder) as mill:
        yield mill


@given(records=accepted_lines(), space=spaces)
@examples(16)
def test_search_and_export_give_back_any_json(
    stripped: Mill, tmp_path_factory: pytest.TempPathFactory, records: list[list[tuple[str, str]]], space: str
) -> None:
    mill = stripped
    batch = len(mill.ledger("feed", limit=1000))
    minute = NOON - batch * 60 * SECOND  # a window for each batch
    sent = {}
    for number, members in enumerate(records):
        name = f"{batch}-{number}"
        known = [("id", json.dumps(name)), ("at", str(minute + number * SECOND))]
        sent[name] = _object([*members[:2], *known, *members[2:]], space)
    land(mill, list(sent.values()), f"{batch}")
    span = f"BETWEEN {format_instant(minute)} AND {format_instant(minute + 60 * SECOND)}"
    page = mill.search("feed", f"{span} LIMIT 100", all_tenants=True).rows.to_pylist()
    assert {row["event_id"]: row["payload"] for row in page} == sent
    (file,) = mill.export("feed", [minute], "arrow", tmp_path_factory.mktemp("exported") / "one.arrow")
    exported = {row["event_id"]: row["x"] for row in pa.ipc.open_file(file).read_all().to_pylist()}
    wanted = {key: json.loads(line).get("x") for key, line in sent.items()}
    found = {key: None if text is None else json.loads(text) for key, text in exported.items()}
    assert found == wanted
