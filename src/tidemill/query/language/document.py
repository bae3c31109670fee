"""Queries and searches as JSON documents, equivalent to the text. Errors name the position in the document
and what is valid there; unknown keys are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final, NoReturn, TypeVar

from tidemill.model.conditions.ast import (
    COMPARISONS,
    MAX_DEPTH,
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Literally,
    Not,
    Path,
    Scalar,
    Within,
)
from tidemill.model.conditions.literals import MAX_DIGITS, OPEN_ESCAPE, is_open, number_of, path_of
from tidemill.model.conditions.scanner import check_characters
from tidemill.model.errors import InputError, QueryError
from tidemill.query.language.ast import (
    SEARCH_ORDERS,
    WEEKDAYS,
    AsOfClause,
    Between,
    Choice,
    Every,
    Expression,
    Having,
    Item,
    Moment,
    Now,
    OrderKey,
    OriginClause,
    Query,
    Rollup,
    Search,
    Since,
)
from tidemill.query.language.parse import (
    MAX_TEXT,
    parse,
    parse_expression,
    parse_having,
    parse_search,
)
from tidemill.query.language.time_clauses import INT64, checked_span, epoch_of, every_of, moment_of, since_of
from tidemill.query.language.unparse import text_of

MAX_JSON: Final = 10 * MAX_TEXT  # characters of a document given as a string
MAX_ELEMENTS: Final = 1_000  # of one list

QUERY_KEYS: Final = (
    "select", "from", "where", "filter", "between", "since", "rollup", "interval", "timezone", "week_start",
    "origin", "group_by", "having", "edges", "fill", "order_by", "limit", "offset", "format",
    "as_of", "explain",
)  # fmt: skip
SEARCH_KEYS: Final = ("where", "filter", "between", "since", "order_by", "limit", "explain")
CHOICES: Final = {
    "edges": ("include", "exclude", "null"),
    "fill": ("null", "zero", "drop", "carry"),
    "format": ("rows", "series"),
    "week_start": WEEKDAYS,
}
NEGATABLE: Final = {
    "in": ("in", False),
    "not_in": ("in", True),
    "like": ("like", False),
    "not_like": ("like", True),
    "ilike": ("ilike", False),
    "not_ilike": ("ilike", True),
    "between": ("between", False),
    "not_between": ("between", True),
    "is_null": ("is_null", False),
    "is_not_null": ("is_null", True),
}
OPERATORS: Final = (*COMPARISONS, *NEGATABLE)

Document = Mapping[str, object]
T = TypeVar("T")


def query_from(document: Document | str) -> Query:
    """The query of a document (or its JSON). Positions are those in `text_of` the query, so that errors of
    the plan can point there."""
    position = _Pointer("query")
    fields = _mapping(_loaded(document, position), position)
    _check_keys(fields, QUERY_KEYS, position)
    for needed in ("select", "from"):
        if needed not in fields:
            position.refuse(f"{needed!r} is missing", f"give {needed!r}; keys: {', '.join(QUERY_KEYS)}")
    query = Query(
        items=tuple(_item(*each) for each in _non_empty(fields["select"], position / "select")),
        source=_path(fields["from"], position / "from"),
        explain=_flag(fields, "explain", position),
        where=_optional(fields, "where", position, lambda value, at: _condition(value, at, 0)),
        filter=_optional(fields, "filter", position, lambda value, at: _condition(value, at, 0)),
        time=_time(fields, position),
        bucket=_bucket(fields, position),
        timezone=_optional(fields, "timezone", position, _zone),
        week_start=_optional(fields, "week_start", position, _choice),
        origin=_optional(fields, "origin", position, _origin),
        groups=_optional(fields, "group_by", position, _groups) or (),
        having=_optional(fields, "having", position, _having),
        edges=_optional(fields, "edges", position, _choice),
        fill=_optional(fields, "fill", position, _choice),
        order=_optional(fields, "order_by", position, _order) or (),
        limit=_optional(fields, "limit", position, _limit),
        offset=_optional(fields, "offset", position, _limit) or 0,
        format=_optional(fields, "format", position, _choice),
        as_of=_optional(fields, "as_of", position, _as_of),
    )
    return _positioned(query, position, parse)


def search_from(document: Document | str) -> Search:
    """The search of a document (or its JSON); like `query_from`."""
    position = _Pointer("search")
    fields = _mapping(_loaded(document, position), position)
    _check_keys(fields, SEARCH_KEYS, position)
    search = Search(
        where=_optional(fields, "where", position, lambda value, at: _condition(value, at, 0)),
        filter=_optional(fields, "filter", position, lambda value, at: _condition(value, at, 0)),
        time=_time(fields, position),
        order=_optional(fields, "order_by", position, _search_order) or (),
        limit=_optional(fields, "limit", position, _limit),
        explain=_flag(fields, "explain", position),
    )
    return _positioned(search, position, parse_search)


class _Pointer:
    """A position in the document: what it is, and a JSON pointer."""

    def __init__(self, what: str, pointer: str = "") -> None:
        self.what = what
        self.pointer = pointer

    def __truediv__(self, key: str | int) -> _Pointer:
        step = str(key).replace("~", "~0").replace("/", "~1")
        return _Pointer(self.what, f"{self.pointer}/{step}")

    @property
    def key(self) -> str:
        return self.pointer.rpartition("/")[2]

    def refuse(self, message: str, hint: str) -> NoReturn:
        where = f"{self.what}, {self.pointer}" if self.pointer else self.what
        raise QueryError(message, hint=hint, where=where)


def _positioned(parsed: T, position: _Pointer, reader: Callable[[str], T]) -> T:
    """The same, with the positions of its text, which is also checked against the limits of texts."""
    assert isinstance(parsed, Query | Search)
    try:
        return reader(text_of(parsed))
    except QueryError as error:
        raise QueryError(error.message, hint=error.hint, where=f"{position.what}, as text") from None


# -- parts of a document


def _loaded(document: Document | str, position: _Pointer) -> object:
    if not isinstance(document, str):
        return document
    if len(document) > MAX_JSON:
        position.refuse(f"the document has {len(document)} characters", f"use {MAX_JSON} at most")

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            position.refuse(f"the key {twice[:40]!r} is given twice in one object", "give each key once")
        return found

    def constant(word: str) -> NoReturn:
        position.refuse(f"{word} is not a JSON value", "use a number, a string, true or false")

    def number(text: str) -> int | Decimal:
        try:
            return int(text) if text.lstrip("-").isdigit() else Decimal(text)
        except (ValueError, ArithmeticError):
            position.refuse("a number of the document is too long", f"use {MAX_DIGITS} digits at most")

    try:
        return json.loads(
            document, parse_float=number, parse_int=number, parse_constant=constant, object_pairs_hook=once
        )
    except json.JSONDecodeError as error:
        position.refuse(
            f"the document is not JSON: {error.msg} at character {error.pos + 1}", "give one JSON object"
        )
    except RecursionError:
        position.refuse(
            "the document is nested too deeply", f"{MAX_DEPTH} conditions inside each other at most"
        )


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a string"
        case int() | float() | Decimal():
            return "a number"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    return f"a {type(value).__name__}"


def _mapping(value: object, position: _Pointer, hint: str = "give an object") -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        position.refuse(f"{_kind(value)} is not valid here", hint)
    return value


def _text(value: object, position: _Pointer, hint: str) -> str:
    if not isinstance(value, str):
        position.refuse(f"{_kind(value)} is not valid here", hint)
    try:
        check_characters(value, "string", MAX_TEXT)
    except QueryError as error:
        position.refuse(error.message, error.hint)
    return value


def _non_empty(value: object, position: _Pointer) -> list[tuple[object, _Pointer]]:
    """The elements of a non-empty list, each with its position."""
    if not isinstance(value, list | tuple):
        position.refuse(f"{_kind(value)} is not valid here", "give a list")
    if not 1 <= len(value) <= MAX_ELEMENTS:
        position.refuse(f"the list has {len(value)} elements", f"give 1 to {MAX_ELEMENTS}")
    return [(each, position / index) for index, each in enumerate(value)]


def _check_keys(value: Mapping[str, object], keys: Sequence[str], position: _Pointer) -> None:
    for key in value:
        if key not in keys:
            (position / str(key)[:40]).refuse(
                f"there is no key {str(key)[:40]!r} here", f"keys: {', '.join(keys)}"
            )


def _optional(
    fields: Mapping[str, object],
    key: str,
    position: _Pointer,
    reader: Callable[[object, _Pointer], T],
) -> T | None:
    return reader(fields[key], position / key) if key in fields else None


def _flag(fields: Mapping[str, object], key: str, position: _Pointer) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        (position / key).refuse(f"{_kind(value)} is not valid here", "use true or false")
    return value


def _read(value: object, position: _Pointer, reader: Callable[[str], T], hint: str) -> T:
    try:
        return reader(_text(value, position, hint))
    except InputError as error:
        position.refuse(error.message, error.hint)


def _path(value: object, position: _Pointer) -> Path:
    return _read(value, position, path_of, "give a name as a string")


def _expression(value: object, position: _Pointer) -> Expression:
    return _parsed_text(value, position, parse_expression)


def _parsed_text(value: object, position: _Pointer, reader: Callable[[str], T]) -> T:
    text = _text(value, position, 'give a value as a string, such as "count" or "sum(latency_ms) / count"')
    try:
        return reader(text)
    except QueryError as error:
        position.refuse(error.message, error.hint)


def _having(value: object, position: _Pointer) -> Having:
    return _parsed_text(value, position, parse_having)


def _zone(value: object, position: _Pointer) -> Choice:
    return Choice(_text(value, position, 'give the name of a time zone as a string, such as "Europe/Paris"'))


def _origin(value: object, position: _Pointer) -> OriginClause:
    moment = _moment(value, position)
    if isinstance(moment, Now):
        position.refuse("buckets cannot start at now", 'give an instant such as "2024-01-01T06:00:00Z"')
    return OriginClause(moment)


def _as_of(value: object, position: _Pointer) -> AsOfClause:
    found = _since(value, position)
    return AsOfClause(Now(-found.duration) if isinstance(found, Since) else found.start)


def _item(value: object, position: _Pointer) -> Item:
    if isinstance(value, str):
        return Item(_expression(value, position))
    fields = _mapping(value, position, 'give a value such as "count", or {"value": "count", "as": "events"}')
    _check_keys(fields, ("value", "as"), position)
    if "value" not in fields:
        position.refuse("'value' is missing", 'give {"value": "count", "as": "events"}')
    return Item(_expression(fields["value"], position / "value"), _optional(fields, "as", position, _path))


def _groups(value: object, position: _Pointer) -> tuple[Path, ...]:
    return tuple(_path(*each) for each in _non_empty(value, position))


def _choice(value: object, position: _Pointer) -> Choice:
    choices = CHOICES[position.key]
    if not isinstance(value, str) or value not in choices:
        shown = repr(value[:40]) if isinstance(value, str) else _kind(value)
        position.refuse(f"{shown} is not valid here", f"use one of {', '.join(choices)}")
    return Choice(value)


def _limit(value: object, position: _Pointer) -> int:
    if type(value) is not int or value not in range(INT64.stop):
        position.refuse(
            f"{_kind(value)} is not valid here" if type(value) is not int else f"{value} is out of range",
            f"use a whole number from 0 to {INT64.stop - 1}",
        )
    return value


def _time(fields: Mapping[str, object], position: _Pointer) -> Between | Since | None:
    if "between" in fields and "since" in fields:
        (position / "since").refuse("'between' is given too", "give one of 'between' and 'since'")
    if "since" in fields:
        return _since(fields["since"], position / "since")
    if "between" not in fields:
        return None
    at = position / "between"
    bounds = _non_empty(fields["between"], at)
    if len(bounds) != 2:
        at.refuse(f"the list has {len(bounds)} elements", "give [start, end], two instants")
    start, end = (_moment(value, where) for value, where in bounds)
    try:
        checked_span(start, end)
    except InputError as error:
        bounds[1][1].refuse(error.message, "[start, end) with start <= end")
    return Between(start, end)


def _since(value: object, position: _Pointer) -> Between | Since:
    if isinstance(value, str):
        found = _read(value, position, since_of, "")
        if isinstance(found, Since):
            return found
    else:
        found = _moment(value, position, 'give a duration such as "2h", or an instant')
    if isinstance(found, Now) and found.offset <= 0:
        return Since(-found.offset)
    return Between(found, Now())


def _moment(
    value: object,
    position: _Pointer,
    hint: str = 'give an instant such as "2024-01-15T14:00:00Z" or "now-1h", or an epoch number',
) -> Moment:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _read(str(value), position, epoch_of, hint)
    return _read(value, position, moment_of, hint)


def _bucket(fields: Mapping[str, object], position: _Pointer) -> Rollup | Every | None:
    if "rollup" in fields and "interval" in fields:
        (position / "interval").refuse("'rollup' is given too", "give one of 'rollup' and 'interval'")
    if "rollup" in fields:
        return Rollup(_text(fields["rollup"], position / "rollup", 'give a level such as "1m"'))
    if "interval" in fields:
        at = position / "interval"
        return _read(fields["interval"], at, every_of, 'give a duration such as "30s" or "1mo"')
    return None


def _keys(value: object, position: _Pointer) -> list[tuple[object, bool, _Pointer]]:
    """What to order by, whether descending, and the position."""
    found: list[tuple[object, bool, _Pointer]] = []
    for key, at in _non_empty(value, position):
        if isinstance(key, str):
            found.append((key, False, at))
            continue
        fields = _mapping(key, at, 'give a name, or {"by": name, "desc": true}')
        _check_keys(fields, ("by", "desc"), at)
        if "by" not in fields:
            at.refuse("'by' is missing", 'give {"by": name, "desc": true}')
        found.append((fields["by"], _flag(fields, "desc", at), at / "by"))
    return found


def _order(value: object, position: _Pointer) -> tuple[OrderKey, ...]:
    return tuple(OrderKey(_expression(by, at), descending) for by, descending, at in _keys(value, position))


def _search_order(value: object, position: _Pointer) -> tuple[tuple[str, bool], ...]:
    order: dict[str, bool] = {}
    for by, descending, at in _keys(value, position):
        if not isinstance(by, str) or by not in SEARCH_ORDERS or by in order:
            hint = f"order by {' or '.join(SEARCH_ORDERS)}, each once"
            at.refuse(f"{_kind(by) if not isinstance(by, str) else repr(by[:40])} is not valid here", hint)
        order[by] = descending
    return tuple(order.items())


# -- conditions

_FORMS: Final = (
    'give {"and": […]}, {"or": […]}, {"not": …} or {"field": name, "op": operator, "value": value}; '
    f"operators: {', '.join(OPERATORS)}"
)


def _condition(value: object, position: _Pointer, depth: int) -> Condition:
    fields = _mapping(value, position, _FORMS)
    if depth > MAX_DEPTH:
        position.refuse("the condition is nested too deeply", f"{MAX_DEPTH} levels at most")
    for word, join in (("and", All), ("or", AnyOf)):
        if word in fields:
            _check_keys(fields, (word,), position)
            terms = tuple(
                _condition(term, at, depth + 1) for term, at in _non_empty(fields[word], position / word)
            )
            return join(terms) if len(terms) > 1 else terms[0]
    if "not" in fields:
        _check_keys(fields, ("not",), position)
        return Not(_condition(fields["not"], position / "not", depth + 1))
    return _test(fields, position)


def _test(fields: Mapping[str, object], position: _Pointer) -> Condition:
    name = "dimension" if "dimension" in fields else "field"
    operator = fields.get("op")
    if name not in fields or "op" not in fields:
        position.refuse("this is not a condition", _FORMS)
    if not isinstance(operator, str) or operator not in OPERATORS:
        shown = repr(operator[:40]) if isinstance(operator, str) else _kind(operator)
        (position / "op").refuse(f"{shown} is not an operator", f"operators: {', '.join(OPERATORS)}")
    kind, negated = NEGATABLE.get(operator, (operator, False))
    needed = {"in": ("values",), "between": ("values",), "is_null": ()}.get(kind, ("value",))
    _check_keys(fields, (name, "op", *needed), position)
    for key in needed:
        if key not in fields:
            position.refuse(f"{key!r} is missing", f"{operator!r} needs {key!r}")
    path = _path(fields[name], position / name)
    if kind == "is_null":
        return IsNull(path, negated)
    if kind == "in":
        values = _non_empty(fields["values"], position / "values")
        return Among(path, tuple(Literally(_scalar(*each)) for each in values), negated)
    if kind == "between":
        return _within(path, fields["values"], position / "values", negated)
    at = position / "value"
    if kind in ("like", "ilike"):
        pattern = _text(fields["value"], at, "give a pattern as a string")
        if is_open(pattern):
            at.refuse(*OPEN_ESCAPE)
        return Like(path, Literally(pattern), negated, kind == "ilike")
    return Compare(path, operator, Literally(_scalar(fields["value"], at)))


def _within(path: Path, value: object, position: _Pointer, negated: bool) -> Condition:
    bounds = _non_empty(value, position)
    if len(bounds) != 2:
        position.refuse(f"the list has {len(bounds)} elements", "give [low, high], both included")
    low, high = (Literally(_scalar(*each)) for each in bounds)
    return Within(path, low, high, negated)


def _scalar(value: object, position: _Pointer) -> Scalar:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, position, "")
    if isinstance(value, float) and math.isfinite(value):
        value = repr(value)  # the shortest decimal that reads back as it: what was written
    elif isinstance(value, int | Decimal):
        value = _digits(value, position)
    else:
        hint = "use a string, a number, true or false; for null there is the operator is_null"
        position.refuse(f"{_kind(value)} is not valid here", hint)
    try:
        number = number_of(value)
    except InputError as error:
        position.refuse(error.message, error.hint)
    holds_64_bits = position.what == "query" and not position.pointer.startswith("/filter")
    if holds_64_bits and isinstance(number, int) and number not in INT64:
        position.refuse(f"{number} is not a 64-bit integer", f"use {INT64.start} to {INT64.stop - 1}")
    return number


def _digits(value: int | Decimal, position: _Pointer) -> str:
    try:
        return str(value)
    except ValueError:  # an integer too long for Python to print
        position.refuse("the number is too long", f"use {MAX_DIGITS} digits at most")
