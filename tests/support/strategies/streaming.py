"""Hypothesis strategies for streaming windows: random declarations, and feeds of several sources in slices.

They never decide what comes of them; the oracle does. A case is used in memory as it is, or through a mill:

- declare the stream as `TICKS` says, with `case.tolerance`, `case.idle_timeout` and `case.max_bytes`, and
  `declaration(case.spec)` as its window `case.spec.name`;
- land `records(slice)` of each slice at its arrival, from its source (`min_rows=1`: empty slices are one);
- ask the oracle about `meet(renamed(case.slices, names), …).rows`, where `names` are those of the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from hypothesis import strategies as st
from tests.support.oracles.stream import OracleField, OracleStream

from tidemill.model.conditions.declared import DeclaredCondition, parse_condition
from tidemill.model.streaming import (
    Aggregate,
    Close,
    Function,
    LateBy,
    LatePolicy,
    Value,
    WindowKind,
    WindowSpec,
)
from tidemill.model.time import MILLISECOND, MINUTE, SECOND, WEEK, parse_instant
from tidemill.testing.streaming import StreamingSlice

TICKS: Final = OracleStream(
    name="ticks",
    fields={
        "id": OracleField("string", required=True),
        "at": OracleField("integer", required=True),
        "tenant": OracleField("string", required=True),
        "a": OracleField("integer"),
        "d": OracleField("decimal", scale=2),
        "f": OracleField("float"),
        "b": OracleField("string"),
        "ok": OracleField("boolean"),
        "k": OracleField("integer"),
    },
    time_column="at",
    time_type="unixtimestamp_us",
    identity=("id",),
    tenant_column="tenant",
)
SCALES: Final[Mapping[str, int]] = {"d": 2}
FIRST_EVENT: Final = parse_instant("2024-03-01T00:00:00Z")
UNITS: Final = (MILLISECOND, SECOND, MINUTE, WEEK)

_NUMBERS: Final = ("a", "d", "f")
_SORTED: Final = (*_NUMBERS, "b")
_COLUMNS: Final[Mapping[Function, tuple[str, ...]]] = {
    Function.COUNT: (*_SORTED, "ok"),
    Function.SUM: _NUMBERS,
    Function.AVG: _NUMBERS,
    Function.STDDEV: _NUMBERS,
    Function.PERCENTILE: _NUMBERS,
    Function.MIN: _SORTED,
    Function.MAX: _SORTED,
    Function.FIRST: (*_SORTED, "ok"),
    Function.LAST: (*_SORTED, "ok"),
}
_PERCENTS: Final = ("0.1", "25", "50", "66.7", "99.9", "100")
_CONDITIONS: Final = (
    "a = 1",
    "a >= 2",
    "a != 0",
    "d < 0.5",
    "f > -1.25",
    "b = 'x'",
    "b in ('y', 'é')",
    "ok = true",
    "b is null",
    "not (a > 1 and ok = false)",
    "a = 4 or d >= 1.5 or k in (0, 2)",
    "not k = 1",
)


class StreamingCase(NamedTuple):
    """A declared window and what happens to its stream."""

    spec: WindowSpec
    tolerance: int
    idle_timeout: int | None
    max_bytes: int | None
    slices: tuple[StreamingSlice, ...]  # in ledger order; arrivals never go back
    now: int  # after all of them


# --- declarations ----------------------------------------------------------------------------------


@st.composite
def _aggregates(draw: st.DrawFn, functions: Sequence[Function], without: str) -> Aggregate:
    function = draw(st.sampled_from(functions))
    if function is Function.COUNT and draw(st.booleans()):
        return Aggregate("rows_counted", function)
    column = draw(st.sampled_from([each for each in _COLUMNS[function] if each not in without]))
    percent = draw(st.sampled_from(_PERCENTS)) if function is Function.PERCENTILE else None
    name = f"p{percent.replace('.', '_')}_{column}" if percent else f"{function}_{column}"
    return Aggregate(name, function, column, TICKS.fields[column].type, SCALES.get(column, 0), percent)


@st.composite
def window_specs(
    draw: st.DrawFn,
    unit: int = SECOND,
    *,
    kinds: Sequence[WindowKind] = tuple(WindowKind),
    policies: Sequence[LatePolicy] = tuple(LatePolicy),
    close: Close = Close.WATERMARK,
    functions: Sequence[Function] = tuple(Function),
    without: str = "",
) -> WindowSpec:
    """A window over `TICKS` whose durations are of the order of a unit. `close: complete` is for kinds on a
    grid, and has no late policy. Aggregates are of these functions, and not of the columns in `without`."""
    kind = draw(st.sampled_from([each for each in kinds if close is Close.WATERMARK or each.by_time]))
    late = draw(st.sampled_from(policies)) if close is Close.WATERMARK else LatePolicy.DISCARD
    by_window = close is Close.WATERMARK and kind.ends_by_time
    columns = st.lists(st.sampled_from(["b", "k", "ok"]), unique=True, max_size=2).map(tuple)
    aggregates = tuple(
        draw(st.lists(_aggregates(functions, without), min_size=1, max_size=5, unique_by=lambda a: a.name))
    )
    spec = WindowSpec(
        stream=TICKS.name,
        name="w",
        kind=kind,
        key=draw(columns) if not kind.by_time else (),
        group_by=draw(columns),
        aggregates=aggregates,
        having=draw(_havings(aggregates)),
        close=close,
        late=late,
        max_lateness=unit * draw(st.sampled_from([1, 4, 15, 1000])) if late is LatePolicy.REEMIT else 0,
        late_by=draw(st.sampled_from([*LateBy] if by_window else [LateBy.ROW])),
    )
    conditions = st.sampled_from(_CONDITIONS).map(parse_condition)
    match kind:
        case WindowKind.TUMBLING:
            size = unit * draw(st.sampled_from([1, 3, 10]))
            return replace(spec, size=size, step=size)
        case WindowKind.SLIDING:
            size = draw(st.sampled_from([2, 5, 10]))
            return replace(spec, size=unit * size, step=unit * draw(st.integers(1, size)))
        case WindowKind.SESSION:
            gap = unit * draw(st.sampled_from([1, 2, 3, 6]))
            return replace(spec, gap=gap, inclusive=draw(st.booleans()))
        case WindowKind.COUNT:
            return replace(spec, count=draw(st.integers(1, 4)))
        case WindowKind.STATE:
            on_open = draw(st.booleans())
            return replace(spec, open=draw(conditions), emit=draw(conditions), emit_on_open=on_open)
        case WindowKind.PER_ROW:
            lookahead = unit * draw(st.sampled_from([0, 0, 1, 3]))
            return replace(spec, size=unit * draw(st.sampled_from([1, 2, 5])), lookahead=lookahead)


def _havings(aggregates: Sequence[Aggregate]) -> st.SearchStrategy[DeclaredCondition | None]:
    """Mostly none; else one on a value of the results."""
    texts = [f"{each.name} {_result_condition(each)}" for each in aggregates]
    texts += [f"not {text}" for text in texts] + [" or ".join(texts)]
    return st.sampled_from([None, None, None, *(parse_condition(text) for text in texts)])


def _result_condition(aggregate: Aggregate) -> str:
    if aggregate.function is Function.COUNT:
        return "> 1"
    if aggregate.type in ("string", "boolean"):
        return "is not null"
    return "< 0.75" if aggregate.type == "decimal" else ">= 1.5"


def declaration(spec: WindowSpec) -> dict[str, object]:
    """The window as a stream declares it in `tidemill.yaml`."""
    kind = WindowKind.SLIDING if spec.kind is WindowKind.PER_ROW else spec.kind
    declared_fields: dict[str, object] = {"kind": str(kind), "close": str(spec.close)}
    if spec.size:
        declared_fields["size"] = f"{spec.size}us"
    if spec.kind is WindowKind.PER_ROW:
        declared_fields["step"] = "row"
        declared_fields |= {"lookahead": f"{spec.lookahead}us"} if spec.lookahead else {}
    if spec.kind is WindowKind.SLIDING:
        declared_fields["step"] = f"{spec.step}us"
    if spec.kind is WindowKind.SESSION:
        declared_fields["gap"] = {"duration": f"{spec.gap}us", "inclusive": spec.inclusive}
    if spec.kind is WindowKind.COUNT:
        declared_fields["n"] = spec.count
    if spec.open is not None and spec.emit is not None:
        declared_fields |= {"open": spec.open.text, "emit": spec.emit.text, "emit_on_open": spec.emit_on_open}
    if spec.having is not None:
        declared_fields["having"] = spec.having.text
    declared_fields |= {"key": list(spec.key)} if spec.key else {}
    declared_fields |= {"group_by": list(spec.group_by)} if spec.group_by else {}
    declared_fields["aggregates"] = {each.name: _formula(each) for each in spec.aggregates}
    if spec.close is Close.WATERMARK:
        late = {"policy": str(spec.late), "by": str(spec.late_by)}
        if spec.late is LatePolicy.REEMIT:
            late["max_lateness"] = f"{spec.max_lateness}us"
        declared_fields["late"] = late
    return declared_fields


def _formula(aggregate: Aggregate) -> str:
    if aggregate.column is None:
        return "count"
    word = f"p{aggregate.percent}" if aggregate.percent else str(aggregate.function)
    return f"{word}({aggregate.column})"


# --- feeds -----------------------------------------------------------------------------------------


@st.composite
def streaming_cases(
    draw: st.DrawFn,
    *,
    kinds: Sequence[WindowKind] = tuple(WindowKind),
    policies: Sequence[LatePolicy] = tuple(LatePolicy),
    units: Sequence[int] = UNITS,
    close: Close = Close.WATERMARK,
    max_slices: int = 10,
    max_rows: int = 6,
    min_rows: int = 0,
    bounded: bool = True,
) -> StreamingCase:
    """A window, and a feed from one to three sources: rows in disorder around a time that goes on, some long
    before it, many at the same instant or at the edge of a window; sources that fall silent, and come back.
    Without `bounded` the buffer has no bound in bytes."""
    unit = draw(st.sampled_from(list(units)))
    spec = draw(window_specs(unit, kinds=kinds, policies=policies, close=close))
    # as with other feeds: hypothesis chooses sizes, seeded dice the rest
    counts = draw(st.lists(st.integers(min_rows, max_rows), min_size=1, max_size=max_slices))
    dice = _StreamingDice(unit, Random(draw(st.integers(0, 2**32 - 1))))
    sources = ["s1", "s2", "s3"][: draw(st.integers(1, 3))]
    behind = {source: dice.random.choice([0, 0, 3, 12]) for source in sources}
    pace, disorder = dice.random.choice([0, 1, 3, 9]), dice.random.choice([0, 1, 5, 20])
    arrival = FIRST_EVENT + 200 * unit  # nothing comes from the future
    slices: list[StreamingSlice] = []
    for number, count in enumerate(counts):
        source = dice.random.choice(sources)
        arrival += unit * dice.random.choice([0, 0, 1, 1, 2, 8])
        centre = number * pace - behind[source]
        rows = tuple(dice.row(f"{number}.{line}", centre, disorder) for line in range(count))
        slices.append(StreamingSlice(f"slice-{number}", source, arrival, rows))
    return StreamingCase(
        spec=spec,
        tolerance=unit * draw(st.sampled_from([0, 0, 1, 4, 10, 40])) + draw(st.sampled_from([0, 0, 1])),
        idle_timeout=draw(st.sampled_from([None, None, unit, 4 * unit])),
        max_bytes=draw(st.sampled_from([None, None, None, 0, 300, 1000])) if bounded else None,
        slices=tuple(slices),
        now=arrival + unit * dice.random.choice([0, 1, 5]),
    )


class _StreamingDice(NamedTuple):
    unit: int
    random: Random

    def row(self, name: str, centre: int, disorder: int) -> tuple[str, int, int, Mapping[str, Value]]:
        roll = self.random
        away = roll.randint(-disorder, disorder) if roll.random() < 0.9 else -roll.randint(0, 60)
        time = FIRST_EVENT + self.unit * (centre + away) + roll.choice([0, 0, 0, 0, 0, 1, -1])
        fields: dict[str, Value] = {
            "a": self._or_null(roll.randint(-1, 4), roll.choice([2**63 - 1, -(2**63)])),
            "d": self._or_null(roll.randint(-300, 300), roll.choice([10**18 - 1, 1 - 10**18])),
            "f": self._or_null(roll.randint(-40, 40) / roll.choice([1, 8, 10]), 0.0),
            "b": self._or_null(roll.choice(["x", "y", "é"]), ""),
            "ok": self._or_null(roll.random() < 0.5, True),
            "k": self._or_null(roll.randint(0, 2), 1),
        }
        tenant = roll.choice(["acme", "acme", "globex"])
        return tenant, time, len(_record(name, tenant, time, fields)), fields

    def _or_null(self, usual: Value, rare: Value) -> Value:
        thrown = self.random.random()
        return None if thrown < 0.15 else rare if thrown < 0.17 else usual


def records(slice_: StreamingSlice) -> tuple[bytes, ...]:
    """The lines of the slice, as a source would send them. Their sizes are those that the rows tell."""
    number = slice_.name.removeprefix("slice-")
    return tuple(
        _record(f"{number}.{line}", tenant, time, fields)
        for line, (tenant, time, _, fields) in enumerate(slice_.rows)
    )


def renamed(slices: Sequence[StreamingSlice], names: Mapping[str, str]) -> tuple[StreamingSlice, ...]:
    """The same slices by the names that a ledger gave them."""
    return tuple(each._replace(name=names[each.name]) for each in slices)


def _record(name: str, tenant: str, time: int, fields: Mapping[str, Value]) -> bytes:
    declared_fields = {"id": json.dumps(name), "tenant": json.dumps(tenant), "at": str(time)}
    for column, value in fields.items():
        scale = SCALES.get(column, 0)
        if scale and isinstance(value, int):
            whole, part = divmod(abs(value), 10**scale)
            declared_fields[column] = f"{'-' if value < 0 else ''}{whole}.{part:0{scale}}"
        else:
            declared_fields[column] = json.dumps(value, ensure_ascii=False)
    return ("{" + ", ".join(f'"{column}": {text}' for column, text in declared_fields.items()) + "}").encode()
