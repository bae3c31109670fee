"""Answers that are folded from kept columns: any parts, any query, against a loop over the rows of the parts.

The engine has its own way to fold the same rows; this one gave other numbers twice before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from tests.query.conftest import NOW, SHOP
from tests.support.hypothesis_settings import examples

from tidemill.model.levels import BY_NAME, LEVELS
from tidemill.model.time import DAY, HOUR, Interval, align, parse_instant
from tidemill.query import plan_sql
from tidemill.query.arrow_fold import can_fold, folded
from tidemill.query.column_cache import KeptColumns
from tidemill.query.language.parse import parse
from tidemill.query.plan import Plan, make_plan
from tidemill.query.source import Files, Scan, Scans

START = parse_instant("2024-03-30T00:00:00Z")  # the clocks of Paris go forward on the next day
Row = Mapping[str, object]
DIMENSIONS = ("api", "http.status", "ok", "region", "tenant")
TYPES = {
    "metric": pa.string(),
    "tenant": pa.string(),
    "bucket": pa.timestamp("us", "UTC"),
    "count": pa.int64(),
    "latency_ms__sum": pa.decimal128(38, 0),
    "latency_ms__count": pa.int64(),
    "latency_ms__min": pa.int64(),
    "latency_ms__max": pa.int64(),
    "price__sum": pa.decimal128(38, 2),
    "price__count": pa.int64(),
    "price__min": pa.decimal128(18, 2),
    "price__max": pa.decimal128(18, 2),
}
VALUES = (
    "count", "sum(latency_ms)", "min(latency_ms)", "max(latency_ms)", "avg(latency_ms)", "sum(price)",
    "min(price)", "max(price)", "avg(price)",
)  # fmt: skip


@dataclass(frozen=True)
class StoredPart:
    """A part as it was written: later declarations may have more columns."""

    level: str
    rows: Sequence[Row]
    absent: frozenset[str]  # columns that it was written without
    encoded: bool  # whether its texts are dictionaries


class StoredColumns(KeptColumns):
    """The columns of parts that are in no file."""

    def __init__(self, parts: Sequence[StoredPart]) -> None:
        super().__init__()
        self._parts = parts

    def read(
        self, path: str, names: Sequence[str], texts: Collection[str] = (), metric: str | None = None
    ) -> Mapping[str, pa.Array]:
        part = self._parts[int(path)]
        rows = [row for row in part.rows if row["metric"] == metric]
        found = {name: column(name, rows) for name in names if name not in part.absent}
        encoded = [name for name in found if name in texts] if part.encoded else []
        for name in encoded:
            whole = found[name].dictionary_encode()
            found[name] = pa.DictionaryArray.from_arrays(whole.indices.cast(pa.int8()), whole.dictionary)
        return found


def column(name: str, rows: Sequence[Row]) -> pa.Array:
    return pa.array([row[name] for row in rows], stored_types()[name])


@lru_cache
def stored_types() -> dict[str, pa.DataType]:
    dimensions = {spec.column: spec.sql_type for spec in plan_of("count", (), None, "").dimensions.values()}
    arrow = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}
    return TYPES | {name: arrow[kind] for name, kind in dimensions.items()}


def plan_of(values: str, groups: Sequence[str], tenant: str | None, interval: str) -> Plan:
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    text = f"SELECT {values} FROM requests.requests BETWEEN 2024-03-30T00:00:00Z AND 2024-04-02T00:00:00Z"
    return make_plan(parse(f"{text}{by}{interval}"), {"requests": SHOP}, tenant=tenant, now=NOW)


# -- the same, by a loop


def looped(plan: Plan, rows: Sequence[tuple[str, Row]], spans: Mapping[str, Sequence[Interval]]) -> dict:
    found: dict[tuple[object, ...], list[Row]] = {}
    for level, row in rows:
        bucket = int(str(row["bucket"]))
        if row["metric"] != "requests" or (plan.tenant is not None and row["tenant"] != plan.tenant):
            continue
        if level != "raw" and not any(span.holds(bucket) for span in spans.get(level, ())):
            continue
        key: list[object] = []
        if plan.interval is not None:
            key.append(align(bucket, plan.interval))
        elif plan.grid is not None:
            before = [cell for cell in plan.grid.cells if cell <= bucket]
            if not before:
                continue
            key.append(before[-1])
        key += [row[group.column] for group in plan.groups]
        width = int(str(row[plan_sql.WIDTH])) if level == "raw" else BY_NAME[level].width
        found.setdefault(tuple(key), []).append({**row, "until": bucket + width})
    if not plan_sql.key_columns(plan):
        found.setdefault((), [])
    return {key: numbers(plan, of) for key, of in found.items()}


def numbers(plan: Plan, rows: Sequence[Row]) -> list[object]:
    firsts = [row["bucket"] for row in rows]
    ends = [row["until"] for row in rows]
    found: list[object] = [sum(row["count"] for row in rows)]
    found += [min(firsts, default=None), max(ends, default=None)]
    for part in plan.parts:
        name = "count" if part.measure is None else plan_sql.column_of(part, part.measure)
        known = [row[name] for row in rows if row[name] is not None]
        if part.fold in ("min", "max"):
            found.append((min if part.fold == "min" else max)(known, default=None))
        else:
            found.append(sum(known))
    return found


def as_found(plan: Plan, table: pa.Table) -> dict[tuple[object, ...], list[object]]:
    keys = plan_sql.key_columns(plan)
    names = ["n", plan_sql.FIRST, plan_sql.UNTIL, *(f"p{number}" for number in range(len(plan.parts)))]
    rows = table.to_pylist()
    assert len({tuple(row[key] for key in keys) for row in rows}) == len(rows)
    return {tuple(row[key] for key in keys): [row[name] for name in names] for row in rows}


# -- what is drawn

SMALL = st.integers(-5, 5)


@st.composite
def stored_rows(draw: st.DrawFn, width: int) -> Row:
    """A row of rollups: with no sample of a measure its sum is 0, its least and greatest are null."""
    columns = [spec.column for spec in plan_of("count", (), None, "").dimensions.values()]
    values = dict.fromkeys(columns, None)
    for name, kind in stored_types().items():
        if name in values:
            drawn = {pa.string(): st.sampled_from(["a", "b", ""]), pa.bool_(): st.booleans()}.get(kind, SMALL)
            values[name] = draw(st.none() | drawn)
    row: dict[str, object] = {
        "metric": draw(st.sampled_from(["requests", "requests", "failures"])),
        "tenant": draw(st.sampled_from(["acme", "globex"])),
        "bucket": START + draw(st.integers(0, 3 * DAY // width - 1)) * width,
        "count": draw(st.integers(0, 9)),
        **values,
    }
    for measure, scale in (("latency_ms", 0), ("price", 2)):
        known = draw(st.integers(0, 3))
        low, high = sorted(draw(st.tuples(SMALL, SMALL)))
        number = int if scale == 0 else (lambda value: Decimal(value).scaleb(-2))
        row[f"{measure}__count"] = known
        row[f"{measure}__sum"] = Decimal(draw(SMALL) if known else 0).scaleb(-scale)
        row[f"{measure}__min"] = number(low) if known else None
        row[f"{measure}__max"] = number(high) if known else None
    return row


@st.composite
def rows_of_raw(draw: st.DrawFn) -> Row:
    """A row that was made from raw: it says how wide its bucket is."""
    return {**draw(stored_rows(1_000)), plan_sql.WIDTH: draw(st.sampled_from([5_000_000, HOUR, 7 * DAY]))}


@st.composite
def stored_parts(draw: st.DrawFn) -> StoredPart:
    level = draw(st.sampled_from([level.name for level in LEVELS[:4]]))
    rows = draw(st.lists(stored_rows(BY_NAME[level].width), max_size=6))
    optional = sorted(stored_types().keys() - {"metric", "tenant", "bucket", "count"})
    absent = draw(st.sets(st.sampled_from(optional), max_size=2))
    blank = [{**row, **dict.fromkeys(absent, None)} for row in rows]
    return StoredPart(level, blank, frozenset(absent), draw(st.booleans()))


@st.composite
def spans(draw: st.DrawFn) -> list[Interval]:
    """Apart, by time; few or many."""
    edges = sorted(draw(st.sets(st.integers(0, 72), min_size=2, max_size=24)))
    pairs = zip(edges[::2], edges[1::2], strict=False)
    return [Interval(START + first * HOUR, START + last * HOUR) for first, last in pairs]


INTERVALS = st.sampled_from(["", " INTERVAL 1h", " INTERVAL 6h", " INTERVAL 1d TIMEZONE 'Europe/Paris'"])


@given(
    parts=st.lists(stored_parts(), max_size=4),
    raw=st.lists(rows_of_raw(), max_size=3),
    of_levels=st.dictionaries(st.sampled_from([level.name for level in LEVELS[:4]]), spans()),
    values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique=True),
    groups=st.lists(st.sampled_from(DIMENSIONS), max_size=2, unique=True),
    tenant=st.sampled_from([None, "acme"]),
    interval=INTERVALS,
)
@example([], [], {}, ["min(latency_ms)", "count"], [], None, "")
@examples(60)
def test_what_is_folded_is_what_a_loop_over_the_rows_gives(
    parts: list[StoredPart],
    raw: list[Row],
    of_levels: dict[str, list[Interval]],
    values: list[str],
    groups: list[str],
    tenant: str | None,
    interval: str,
) -> None:
    grouped = [one for one in groups if tenant is None or one != "tenant"]
    plan = plan_of(", ".join(values), grouped, tenant, interval)
    levels = []
    for level, read in of_levels.items():
        places = [number for number, part in enumerate(parts) if part.level == level]
        rows = sum(len(parts[number].rows) for number in places)
        levels.append(Scan(BY_NAME[level], read, Files([str(number) for number in places], rows)))
    columns = {name: column(name, raw) for name in stored_types()}
    widths = pa.array([row[plan_sql.WIDTH] for row in raw], pa.int64())
    table = pa.table({**columns, plan_sql.WIDTH: widths}) if raw else None
    scans = Scans(tuple(levels), table)
    assert can_fold(plan, scans)
    found = folded(plan, scans, StoredColumns(parts))
    assert found is not None
    every = [(part.level, row) for part in parts for row in part.rows] + [("raw", row) for row in raw]
    assert as_found(plan, found) == looped(plan, every, of_levels)
