"""A query or a search as text that `parse` and `parse_search` read back as the same. Nothing is shortened or
rounded."""

from __future__ import annotations

import re
from typing import Final

from tidemill.model.conditions.ast import Literally
from tidemill.model.conditions.literals import (
    condition_text,
    quoted,
    text_of_condition,
    written_path,
    written_scalar,
)
from tidemill.model.time import format_duration, format_instant
from tidemill.query.language.ast import (
    Between,
    Binary,
    Every,
    Expression,
    Having,
    Item,
    Moment,
    Now,
    Query,
    Rollup,
    Search,
    Since,
    Unary,
    Value,
    Wall,
)

_PLAIN: Final = re.compile(r"[0-9]+[a-z]+")
_SHORT: Final = {"week": "w", "month": "mo", "quarter": "q", "year": "y"}
_BINDS: Final = {"+": 1, "-": 1, "*": 2, "/": 2}  # the greater, the tighter
_TIGHTEST: Final = 3


def text_of(query: Query | Search) -> str:
    """The text: clauses in a fixed order, names without backticks where possible, strings in single
    quotes."""
    clauses = _query(query) if isinstance(query, Query) else _search(query)
    return " ".join(clauses)


def expression_text(expression: Expression) -> str:
    """With parentheses only where they are needed."""
    match expression:
        case Value():
            return _value(expression)
        case Literally(value):
            return written_scalar(value)
        case Unary(_, term):
            return f"-{_operand(term, _TIGHTEST)}"
        case Binary(operator, left, right):  # operators of one rank associate to the left
            binds = _BINDS[operator]
            return f"{_operand(left, binds)} {operator} {_operand(right, binds + 1)}"


def having_text(having: Having) -> str:
    return text_of_condition(having, expression_text, expression_text)


def moment_text(moment: Moment) -> str:
    match moment:
        case Now(offset):
            sign = "-" if offset < 0 else "+"
            return f"now{sign}{format_duration(abs(offset))}" if offset else "now"
        case Wall(micros):
            return format_instant(micros).removesuffix("Z")
        case int():
            return format_instant(moment)


def every_text(every: Every) -> str:
    if every.unit == "us":
        return format_duration(every.count)
    return f"{every.count}{_SHORT[every.unit]}"


def _value(value: Value) -> str:
    arguments = ", ".join(
        written_scalar(each.value) if isinstance(each, Literally) else written_path(each)
        for each in value.arguments
    )
    inside = "*" if value.star else arguments
    return f"{written_path(value.function)}({inside})" if inside else written_path(value.function)


def _operand(expression: Expression, least: int) -> str:
    text = expression_text(expression)
    return f"({text})" if _rank(expression) < least else text


def _rank(expression: Expression) -> int:
    return _BINDS[expression.operator] if isinstance(expression, Binary) else _TIGHTEST


def _query(query: Query) -> list[str]:
    clauses = ["EXPLAIN"] if query.explain else []
    clauses.append(f"SELECT {', '.join(map(_item, query.items))} FROM {written_path(query.source)}")
    if query.where is not None:
        clauses.append(f"WHERE {condition_text(query.where)}")
    if query.filter is not None:
        clauses.append(f"FILTER {condition_text(query.filter)}")
    clauses += _time(query.time)
    if isinstance(query.bucket, Rollup):
        level = query.bucket.level
        clauses.append(f"USING ROLLUP {level if _PLAIN.fullmatch(level) else quoted(level)}")
    elif query.bucket is not None:
        clauses.append(f"INTERVAL {every_text(query.bucket)}")
    if query.timezone is not None:
        clauses.append(f"TIMEZONE {quoted(query.timezone.word)}")
    if query.week_start is not None:
        clauses.append(f"WEEK START {query.week_start.word}")
    if query.origin is not None:
        clauses.append(f"ORIGIN {moment_text(query.origin.moment)}")
    if query.groups:
        clauses.append(f"GROUP BY {', '.join(map(written_path, query.groups))}")
    if query.having is not None:
        clauses.append(f"HAVING {having_text(query.having)}")
    if query.edges is not None:
        clauses.append(f"EDGES {query.edges.word}")
    if query.fill is not None:
        clauses.append(f"FILL {query.fill.word}")
    if query.order:
        keys = (f"{expression_text(key.value)}{' DESC' * key.descending}" for key in query.order)
        clauses.append(f"ORDER BY {', '.join(keys)}")
    if query.limit is not None:
        clauses.append(f"LIMIT {query.limit}")
    if query.offset:
        clauses.append(f"OFFSET {query.offset}")
    if query.format is not None:
        clauses.append(f"FORMAT {query.format.word}")
    if query.as_of is not None:
        clauses.append(f"AS OF {moment_text(query.as_of.moment)}")
    return clauses


def _search(search: Search) -> list[str]:
    clauses = ["EXPLAIN"] if search.explain else []
    if search.where is not None:
        clauses.append(f"WHERE {condition_text(search.where)}")
    if search.filter is not None:
        clauses.append(f"FILTER {condition_text(search.filter)}")
    clauses += _time(search.time)
    if search.order:
        keys = (f"{name}{' DESC' * descending}" for name, descending in search.order)
        clauses.append(f"ORDER BY {', '.join(keys)}")
    if search.limit is not None:
        clauses.append(f"LIMIT {search.limit}")
    return clauses


def _item(item: Item) -> str:
    return expression_text(item.value) + (f" AS {written_path(item.alias)}" if item.alias else "")


def _time(time: Between | Since | None) -> list[str]:
    match time:
        case Between(start, end):
            return [f"BETWEEN {moment_text(start)} AND {moment_text(end)}"]
        case Since(duration):
            return [f"SINCE {format_duration(duration)}"]
        case None:
            return []
