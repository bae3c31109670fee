"""A query or a search as text: what `parse` and `parse_search` read back as the same.
Never shortens and never rounds.
"""

from __future__ import annotations

import re
from typing import Final

from tidemill.language.ast import (
    All,
    Among,
    AnyOf,
    Between,
    Compare,
    Condition,
    IsNull,
    Item,
    Like,
    Literally,
    Not,
    Query,
    Rollup,
    Search,
    Since,
    Value,
)
from tidemill.language.words import quoted, written_path, written_scalar
from tidemill.model.time import format_duration, format_instant

_PLAIN: Final = re.compile(r"[0-9]+[a-z]+")


def text_of(said: Query | Search) -> str:
    """The text that says it: clauses in one order, names bare where they can be, strings in single quotes."""
    clauses = _query(said) if isinstance(said, Query) else _search(said)
    return " ".join(clauses)


def value_text(value: Value) -> str:
    arguments = ", ".join(
        written_scalar(each.value) if isinstance(each, Literally) else written_path(each)
        for each in value.arguments
    )
    return f"{written_path(value.function)}({arguments})" if arguments else written_path(value.function)


def _query(query: Query) -> list[str]:
    clauses = ["EXPLAIN"] if query.explain else []
    clauses.append(f"SELECT {', '.join(map(_item, query.items))} FROM {written_path(query.source)}")
    if query.where is not None:
        clauses.append(f"WHERE {_condition(query.where)}")
    clauses += _time(query.time)
    if isinstance(query.bucket, Rollup):
        level = query.bucket.level
        clauses.append(f"USING ROLLUP {level if _PLAIN.fullmatch(level) else quoted(level)}")
    elif query.bucket is not None:
        clauses.append(f"INTERVAL {format_duration(query.bucket.duration)}")
    if query.groups:
        clauses.append(f"GROUP BY {', '.join(map(written_path, query.groups))}")
    if query.edges is not None:
        clauses.append(f"EDGES {query.edges.word}")
    if query.fill is not None:
        clauses.append(f"FILL {query.fill.word}")
    if query.order:
        keys = (f"{value_text(key.value)}{' DESC' * key.descending}" for key in query.order)
        clauses.append(f"ORDER BY {', '.join(keys)}")
    if query.limit is not None:
        clauses.append(f"LIMIT {query.limit}")
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
    return value_text(item.value) + (f" AS {written_path(item.alias)}" if item.alias else "")


def _time(time: Between | Since | None) -> list[str]:
    match time:
        case Between(start, end):
            return [f"BETWEEN {format_instant(start)} AND {format_instant(end)}"]
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
        case Like(path, pattern, negated):
            return f"{written_path(path)} {'NOT ' * negated}LIKE {written_scalar(pattern.value)}"
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
