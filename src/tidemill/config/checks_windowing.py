"""Rules between streaming windows and the rest of their stream: columns that exist, types that suit their
use.

Pure: each rule yields findings, and none stops at the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from tidemill.config.checks_columns import NUMBERS, DeclaredColumns, check_condition, listed, one_of, repeats
from tidemill.config.problems import Path
from tidemill.config.schema import FIELD_TYPES, KEY_TYPES, Field, FieldType
from tidemill.config.stream import Stream
from tidemill.config.validation import ConfigFinding
from tidemill.config.windowing import WindowDeclaration, parse_aggregate
from tidemill.model.names import RESULT_COLUMNS, column_name
from tidemill.model.streaming import Function

AGGREGATE_TYPES: Final[Mapping[Function, tuple[FieldType, ...]]] = {
    Function.COUNT: FIELD_TYPES,
    Function.SUM: NUMBERS,
    Function.AVG: NUMBERS,
    Function.STDDEV: NUMBERS,
    Function.PERCENTILE: NUMBERS,
    Function.MIN: (*NUMBERS, "string"),
    Function.MAX: (*NUMBERS, "string"),
    Function.FIRST: (*NUMBERS, "string", "boolean"),
    Function.LAST: (*NUMBERS, "string", "boolean"),
}
COMPARED_TYPES: Final[tuple[FieldType, ...]] = (*NUMBERS, "string", "boolean")
_COMPARED_HINT: Final = (
    f"columns that are compared are {one_of(COMPARED_TYPES)}; others can be IS NULL or IS NOT NULL"
)


def check_windows(
    stream: Stream, columns: DeclaredColumns, broken: Collection[Path]
) -> Iterator[ConfigFinding]:
    """Everything wrong between the streaming windows and their stream; paths are relative to the stream."""
    for name, declared in stream.windows.items():
        at: Path = ("windows", name)
        yield from _groups(at, stream, declared, columns)
        for column, text in declared.aggregates.items():
            yield from _aggregate((*at, "aggregates", column), text, columns)
        for key, condition in (("open", declared.open), ("emit", declared.emit)):
            if condition is not None:
                yield from check_condition((*at, key), condition, columns, COMPARED_TYPES, _COMPARED_HINT)
        if declared.having is not None:
            results = columns.with_fields(_results(declared, columns), "the results")
            having = (*at, "having")
            yield from check_condition(having, declared.having, results, COMPARED_TYPES, _COMPARED_HINT)
        yield from _result_columns(at, stream, declared)
        needs_span = declared.close == "complete" and ("aggregation_span",) not in broken
        if needs_span and stream.aggregation_span is None:
            yield ConfigFinding(
                (*at, "close"),
                "complete windows need datasets, and the stream has none",
                "add aggregation_span to the stream, such as 1h, or use close: watermark",
            )


def _groups(
    at: Path, stream: Stream, declared: WindowDeclaration, columns: DeclaredColumns
) -> Iterator[ConfigFinding]:
    for key, names in (("key", declared.key), ("group_by", declared.group_by)):
        yield from repeats((*at, key), names)
        for path, column in listed((*at, key), names):
            if column == stream.tenant.column:
                message = f"column {column!r} is the tenant, and results are by tenant anyway"
                yield ConfigFinding(path, message, "leave it out")
            else:
                hint = f"{'a key' if key == 'key' else 'a group'} is {one_of(KEY_TYPES)}"
                yield from columns.check(path, column, KEY_TYPES, hint)


def _aggregate(path: Path, text: str, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    formula = parse_aggregate(text)
    if formula.column is not None:
        types = AGGREGATE_TYPES[formula.function]
        is_percentile = formula.function is Function.PERCENTILE
        what = "a percentile" if is_percentile else formula.function.value
        yield from columns.check(path, formula.column, types, f"{what} is of {one_of(types)}")


def _results(declared: WindowDeclaration, columns: DeclaredColumns) -> dict[str, Field]:
    """The columns that a condition on results may name: aggregates, and the columns of `group_by`."""
    groups = {name: columns.field(name) for name in (*declared.key, *declared.group_by)}
    found = {name: field for name, field in groups.items() if field is not None}
    for name, text in declared.aggregates.items():
        formula = parse_aggregate(text)
        of = columns.field(formula.column) if formula.column is not None else None
        if formula.function is Function.COUNT:
            found[name] = Field(type="integer")
        elif formula.function in (Function.AVG, Function.STDDEV):
            found[name] = Field(type="float")
        elif of is not None:
            found[name] = of
    return found


def _result_columns(at: Path, stream: Stream, declared: WindowDeclaration) -> Iterator[ConfigFinding]:
    """Check names: groups and aggregates become columns beside the fixed ones, and readers ignore case."""
    taken = {name: f"the results' own column {name}" for name in RESULT_COLUMNS}
    groups = [*listed((*at, "key"), declared.key), *listed((*at, "group_by"), declared.group_by)]
    fields = {field: path for path, field in reversed(groups) if field != stream.tenant.column}
    used = [(path, column_name(field), f"column {field!r}") for field, path in reversed(fields.items())]
    for path, column, what in used:
        other = taken.setdefault(column.lower(), what)
        if other != what:
            message = f"{what} would be kept in column {column}, which is taken by {other}"
            yield ConfigFinding(path, message, "rename the field in the feed, or leave it out")
    for column in declared.aggregates:
        what = f"aggregate {column!r}"
        other = taken.setdefault(column.lower(), what)
        if other != what:
            message = f"{what} has the name of {other}; readers ignore case"
            yield ConfigFinding((*at, "aggregates", column), message, "give the aggregate another name")
