"""Any question to a mill has the answer of a plain DuckDB query over the events that were accepted.

Each is asked twice: the second time it can be folded from columns that the process keeps. The views of SQL
are asked the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.mill import Mill
from tidemill.model.time import HOUR, MINUTE, SECOND, align, format_instant, parse_instant
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

START = parse_instant("2024-01-15T00:00:00Z")
END = START + 6 * HOUR
CONFIG = """
version: 1
engine: {cores: 2}
streams:
  shop:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      who: {type: string, required: true}
      api: string
      ok: boolean
      code: integer
      price: {type: decimal, scale: 2}
      weight: float
    event_time: {column: at, type: unixtimestamp_us}
    identity: id
    tenant: {column: who}
    keep_payload: KEPT
    metrics:
      sold: {kind: counter, dimensions: [api, ok], measures: [price, code]}
      cheap: {kind: counter, dimensions: [api], measures: [price], filter: "price < 2.5 OR code IN (1, 2)"}
"""
MEASURES = ("price", "code")
FOLDS = ("sum", "min", "max")
TYPES = pa.schema(
    [("id", pa.string()), ("at", pa.int64()), ("who", pa.string()), ("api", pa.string()), ("ok", pa.bool_()),
     ("code", pa.int64()), ("price", pa.decimal128(18, 2)), ("weight", pa.float64())]
)  # fmt: skip
Event = dict[str, object]


def event(chance: random.Random, number: int) -> Event:
    found: Event = {"id": f"e{number}", "who": chance.choice(["acme", "globex"])}
    found["at"] = START + chance.choice([chance.randrange(6 * HOUR), chance.randrange(6 * 60) * MINUTE])
    drawn = {
        "api": chance.choice(["/a", "/b", "/c d", ""]), "ok": chance.random() < 0.5,
        "code": chance.randrange(-3, 4), "price": Decimal(chance.randrange(-500, 500)) / 100,
        "weight": chance.randrange(-8, 8) / 4,
    }  # fmt: skip
    return found | {name: value for name, value in drawn.items() if chance.random() < 0.8}


def line(of: Event) -> str:
    """As JSON; a decimal with the digits that it has."""
    members = (f"{json.dumps(k)}:{v if isinstance(v, Decimal) else json.dumps(v)}" for k, v in of.items())
    return "{" + ",".join(members) + "}\n"


@dataclass(frozen=True)
class World:
    mill: Mill
    events: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module", params=["true", "false"], ids=["payloads", "columns alone"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("random")
    (folder / "tidemill.yaml").write_text(CONFIG.replace("KEPT", request.param))
    chance = random.Random(11)
    every = [event(chance, number) for number in range(600)]
    engine = duckdb.connect()
    engine.register("events", pa.Table.from_pylist([dict.fromkeys(TYPES.names) | e for e in every], TYPES))
    with Mill.open(folder, clock=FakeClock(END)) as mill:
        for turn in range(4):  # each with events of all hours, and some that came before
            again = chance.sample(every[: 150 * turn], 10 * bool(turn))
            some = [*every[150 * turn : 150 * (turn + 1)], *again]
            mill.land("shop", "".join(map(line, some)).encode())
            mill.run_until_idle()
        yield World(mill, engine)
    engine.close()


@dataclass(frozen=True)
class Question:
    start: int
    end: int
    tenant: str | None
    metric: str
    values: tuple[str, ...]
    groups: tuple[str, ...]
    width: int | None
    where: str | None  # on dimensions
    filter: str | None  # on fields

    def text(self) -> str:
        groups = f" GROUP BY {', '.join(self.groups)}" if self.groups else ""
        interval = f" INTERVAL {self.width // SECOND}s" if self.width is not None else ""
        where = f" WHERE {self.where}" if self.where is not None else ""
        having = f" FILTER {self.filter}" if self.filter is not None else ""
        span = f"{format_instant(self.start)} AND {format_instant(self.end)}"
        values = ", ".join(self.values)
        return f"SELECT {values} FROM shop.{self.metric} BETWEEN {span}{where}{having}{groups}{interval}"

    def sql(self, table: str, time: str) -> str:
        """The same over rows of events, in plain SQL."""
        keys = list(self.groups)
        if self.width is not None:
            keys.insert(0, f"{time} // {self.width} * {self.width} AS bucket")
        values = [
            "count(*) AS n" if one == "count" else f"{one} AS v{i}" for i, one in enumerate(self.values)
        ]
        terms = [f"{time} >= {self.start}", f"{time} < {self.end}"]
        terms += [f"({term})" for term in (self.where, self.filter) if term is not None]
        if self.tenant is not None:
            terms.append(f"who = '{self.tenant}'")
        if self.metric == "cheap":
            terms.append("(price < 2.5 OR code IN (1, 2))")
        grouped = " GROUP BY ALL" if keys else ""
        return f"SELECT {', '.join([*keys, *values])} FROM {table} WHERE {' AND '.join(terms)}{grouped}"


CONDITIONS = st.sampled_from(
    ["api = '/a'", "api IN ('/b', '/c d') AND ok = true", "ok IS NULL OR api = ''", "NOT ok = false",
     "api LIKE '/%' AND ok != true"]
)  # fmt: skip
FILTERS = st.sampled_from(
    ["code > 0", "price BETWEEN -1 AND 2.5", "weight >= 0.5 AND weight < 1.75", "weight = 0.25 OR code = 2",
     "price IS NULL", "NOT (code < 1 OR weight > 0)", "code IN (1, 3) AND price != 1"]
)  # fmt: skip


@st.composite
def questions(draw: st.DrawFn) -> Question:
    metric = draw(st.sampled_from(["sold", "cheap"]))
    measures = MEASURES if metric == "sold" else MEASURES[:1]
    known = ["count", *(f"{fold}({measure})" for fold in FOLDS for measure in measures)]
    dimensions = ["api", "ok"] if metric == "sold" else ["api"]
    edge = st.integers(START - HOUR, END + HOUR)
    edge |= st.integers(-1, 7).map(lambda n: START + n * HOUR)
    edge |= edge.map(lambda at: align(at, MINUTE))
    start, end = sorted(draw(st.tuples(edge, edge).filter(lambda two: two[0] != two[1])))
    on_api = st.sampled_from(["api = '/a'", "api IS NULL", "api > ''"])
    return Question(
        start, end, draw(st.none() | st.sampled_from(["acme", "globex"])), metric,
        tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))),
        tuple(draw(st.lists(st.sampled_from(dimensions), max_size=2, unique=True))),
        draw(st.none() | st.sampled_from([5 * SECOND, MINUTE, 7 * MINUTE, HOUR, 24 * HOUR])),
        draw(st.none() | (CONDITIONS if metric == "sold" else on_api)), draw(st.none() | st.none() | FILTERS),
    )  # fmt: skip


def keyed(
    question: Question, rows: Sequence[dict[str, object]], keys: int
) -> dict[tuple[object, ...], object]:
    """Values by keys; a sum of nothing is 0 in an answer, and null in SQL."""
    found = {}
    for row in rows:
        values = list(row.values())
        sums = [
            0 if value is None and name.startswith("sum") else value
            for name, value in zip(question.values, values[keys:], strict=True)
        ]
        found[tuple(values[:keys])] = sums
    assert len(found) == len(rows)
    return found


def in_microseconds(found: pa.Table) -> list[Event]:
    if "bucket" in found.column_names:
        bucket = found.column("bucket")
        if pa.types.is_timestamp(bucket.type):
            at = found.schema.get_field_index("bucket")
            found = found.set_column(at, "bucket", bucket.cast(pa.int64()))
    return list(found.to_pylist())


@given(question=questions())
@examples(120)
def test_answers_are_those_of_duckdb(world: World, question: Question) -> None:
    keys = len(question.groups) + (question.width is not None)
    plain = world.events.execute(question.sql("events", '"at"')).to_arrow_table()
    wanted = keyed(question, in_microseconds(plain), keys)
    scope = {"tenant": question.tenant, "all_tenants": question.tenant is None}
    for _ in range(2):
        found = world.mill.query(question.text(), **scope)
        assert isinstance(found, pa.Table)
        assert keyed(question, in_microseconds(found), keys) == wanted


@given(question=questions())
@examples(40)
def test_views_of_sql_are_those_of_duckdb(world: World, question: Question) -> None:
    keys = len(question.groups) + (question.width is not None)
    plain = world.events.execute(question.sql("events", '"at"')).to_arrow_table()
    wanted = keyed(question, in_microseconds(plain), keys)
    scope = {"tenant": question.tenant, "all_tenants": question.tenant is None}
    found = world.mill.sql(question.sql("raw.shop", "epoch_us(event_time)"), **scope).table
    assert keyed(question, in_microseconds(found), keys) == wanted
