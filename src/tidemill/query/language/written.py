"""A query or a search as text: what `parse` and `parse_search` read back as the same.
Never shortens and never rounds.
"""

from __future__ import annotations

import re
from typing import Final

from tidemill.model.time import format_duration, format_instant
from tidemill.query.language.ast import (
    COMPARISONS,
    All,
    Among,
    AnyOf,
    Between,
    Binary,
    Compare,
    Condition,
    Every,
    Expression,
    IsNull,
    Item,
    Like,
    Literally,
    Moment,
    Not,
    Now,
    Query,
    Rollup,
    Search,
    Since,
    Unary,
    Value,
    Wall,
    Within,
)
from tidemill.query.language.words import quoted, written_path, written_scalar

_PLAIN: Final = re.compile(r"[0-9]+[a-z]+")
_SHORT: Final = {"week": "w", "month": "mo", "quarter": "q", "year": "y"}
_BINDS: Final = {  # the greater, the tighter
    "or": 1,
    "and": 2,
    "not": 3,
    **dict.fromkeys((*COMPARISONS, "is null", "is not null"), 4),
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
}
_TIGHTEST: Final = 7


def text_of(said: Query | Search) -> str:
    """The text that says it: clauses in one order, names bare where they can be, strings in single quotes."""
    clauses = _query(said) if isinstance(said, Query) else _search(said)
    return " ".join(clauses)


def expression_text(expression: Expression) -> str:
    """With parentheses only where they are needed."""
    match expression:
        case Value():
            return _value(expression)
        case Literally(value):
            return written_scalar(value)
        case Unary("-", term):
            return f"-{_operand(term, _TIGHTEST)}"
        case Unary("not", term):
            return f"NOT {_operand(term, _BINDS['not'])}"
        case Unary(operator, term):
            return f"{_operand(term, _BINDS['+'])} {operator.upper()}"
        case Binary(operator, left, right):
            binds = _BINDS[operator]
            # Operators of one rank are read from the left; comparisons never follow each other.
            least = (_BINDS["+"], _BINDS["+"]) if operator in COMPARISONS else (binds, binds + 1)
            return f"{_operand(left, least[0])} {operator.upper()} {_operand(right, least[1])}"


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
    match expression:
        case Binary(operator) | Unary(("not" | "is null" | "is not null") as operator):
            return _BINDS[operator]
        case _:
            return _TIGHTEST


def _query(query: Query) -> list[str]:
    clauses = ["EXPLAIN"] if query.explain else []
    clauses.append(f"SELECT {', '.join(map(_item, query.items))} FROM {written_path(query.source)}")
    if query.where is not None:
        clauses.append(f"WHERE {_condition(query.where)}")
    if query.filter is not None:
        clauses.append(f"FILTER {_condition(query.filter)}")
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
        clauses.append(f"HAVING {expression_text(query.having)}")
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
    return clauses


def _search(search: Search) -> list[str]:
    clauses = ["EXPLAIN"] if search.explain else []
    if search.where is not None:
        clauses.append(f"WHERE {_condition(search.where)}")
    if search.filter is not None:
        clauses.append(f"FILTER {_condition(search.filter)}")
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


def _condition(condition: Condition) -> str:
    match condition:
        case Compare(path, operator, literal):
            return f"{written_path(path)} {operator} {written_scalar(literal.value)}"
        case Among(path, literals, negated):
            values = ", ".join(written_scalar(literal.value) for literal in literals)
            return f"{written_path(path)} {'NOT ' * negated}IN ({values})"
        case Like(path, pattern, negated, any_case):
            word = f"{'NOT ' * negated}{'ILIKE' if any_case else 'LIKE'}"
            return f"{written_path(path)} {word} {written_scalar(pattern.value)}"
        case Within(path, low, high, negated):
            bounds = f"{written_scalar(low.value)} AND {written_scalar(high.value)}"
            return f"{written_path(path)} {'NOT ' * negated}BETWEEN {bounds}"
        case IsNull(path, negated):
            return f"{written_path(path)} IS {'NOT ' * negated}NULL"
        case Not(term):
            return f"NOT {_inside(term)}"
        case All(terms):
            return " AND ".join(map(_inside, terms))
        case AnyOf(terms):
            return " OR ".join(map(_inside, terms))


def _inside(condition: Condition) -> str:
    text = _condition(condition)
    return f"({text})" if isinstance(condition, All | AnyOf) else text
