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
from tidemill.model.conditions.scanner import check_characters
from tidemill.model.conditions.words import MAX_DIGITS, OPEN_ESCAPE, is_open, number_of, path_of
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
from tidemill.query.language.words import INT64, checked_span, epoch_of, every_of, moment_of, since_of
from tidemill.query.language.written import text_of

MAX_JSON: Final = 10 * MAX_TEXT  # characters of a document given as a string
MAX_ELEMENTS: Final = 1_000  # of one list

QUERY_KEYS: Final = (
    "select", "from", "where", "filter", "between", "since", "rollup", "interval", "timezone", "week_start",
    "origin", "group_by", "having", "edges", "fill", "order_by", "limit", "offset", "format",
    "as_of", "explain",
)  # fmt: skip
SEARCH_KEYS: Final = ("where", "filter", "between", "since", "order_by", "limit", "explain")
WORDS: Final = {
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
    position = _Position("query")
    asked = _mapping(_loaded(document, position), position)
    _known(asked, QUERY_KEYS, position)
    for needed in ("select", "from"):
        if needed not in asked:
            position.refuse(f"{needed!r} is missing", f"give {needed!r}; keys: {', '.join(QUERY_KEYS)}")
    query = Query(
        items=tuple(_item(*each) for each in _some(asked["select"], position / "select")),
        source=_path(asked["from"], position / "from"),
        explain=_flag(asked, "explain", position),
        where=_optional(asked, "where", position, lambda given, at: _condition(given, at, 0)),
        filter=_optional(asked, "filter", position, lambda given, at: _condition(given, at, 0)),
        time=_time(asked, position),
        bucket=_bucket(asked, position),
        timezone=_optional(asked, "timezone", position, _zone),
        week_start=_optional(asked, "week_start", position, _word),
        origin=_optional(asked, "origin", position, _origin),
        groups=_optional(asked, "group_by", position, _groups) or (),
        having=_optional(asked, "having", position, _having),
        edges=_optional(asked, "edges", position, _word),
        fill=_optional(asked, "fill", position, _word),
        order=_optional(asked, "order_by", position, _order) or (),
        limit=_optional(asked, "limit", position, _limit),
        offset=_optional(asked, "offset", position, _limit) or 0,
        format=_optional(asked, "format", position, _word),
        as_of=_optional(asked, "as_of", position, _as_of),
    )
    return _positioned(query, position, parse)


def search_from(document: Document | str) -> Search:
    """The search of a document (or its JSON); like `query_from`."""
    position = _Position("search")
    asked = _mapping(_loaded(document, position), position)
    _known(asked, SEARCH_KEYS, position)
    search = Search(
        where=_optional(asked, "where", position, lambda given, at: _condition(given, at, 0)),
        filter=_optional(asked, "filter", position, lambda given, at: _condition(given, at, 0)),
        time=_time(asked, position),
        order=_optional(asked, "order_by", position, _search_order) or (),
        limit=_optional(asked, "limit", position, _limit),
        explain=_flag(asked, "explain", position),
    )
    return _positioned(search, position, parse_search)


class _Position:
    """A position in the document: what it is, and a JSON pointer."""

    def __init__(self, what: str, pointer: str = "") -> None:
        self.what = what
        self.pointer = pointer

    def __truediv__(self, key: str | int) -> _Position:
        step = str(key).replace("~", "~0").replace("/", "~1")
        return _Position(self.what, f"{self.pointer}/{step}")

    @property
    def key(self) -> str:
        return self.pointer.rpartition("/")[2]

    def refuse(self, message: str, hint: str) -> NoReturn:
        where = f"{self.what}, {self.pointer}" if self.pointer else self.what
        raise QueryError(message, hint=hint, where=where)


def _positioned(said: T, position: _Position, reader: Callable[[str], T]) -> T:
    """The same, with the positions of its text, which is also checked against the limits of texts."""
    assert isinstance(said, Query | Search)
    try:
        return reader(text_of(said))
    except QueryError as error:
        raise QueryError(error.message, hint=error.hint, where=f"{position.what}, as text") from None


# -- parts of a document


def _loaded(document: Document | str, position: _Position) -> object:
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


def _kind(given: object) -> str:
    match given:
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
    return f"a {type(given).__name__}"


def _mapping(given: object, position: _Position, hint: str = "give an object") -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        position.refuse(f"{_kind(given)} is not valid here", hint)
    return given


def _text(given: object, position: _Position, hint: str) -> str:
    if not isinstance(given, str):
        position.refuse(f"{_kind(given)} is not valid here", hint)
    try:
        check_characters(given, "string", MAX_TEXT)
    except QueryError as error:
        position.refuse(error.message, error.hint)
    return given


def _some(given: object, position: _Position) -> list[tuple[object, _Position]]:
    """The elements of a non-empty list, each with its position."""
    if not isinstance(given, list | tuple):
        position.refuse(f"{_kind(given)} is not valid here", "give a list")
    if not 1 <= len(given) <= MAX_ELEMENTS:
        position.refuse(f"the list has {len(given)} elements", f"give 1 to {MAX_ELEMENTS}")
    return [(each, position / index) for index, each in enumerate(given)]


def _known(given: Mapping[str, object], keys: Sequence[str], position: _Position) -> None:
    for key in given:
        if key not in keys:
            (position / str(key)[:40]).refuse(
                f"there is no key {str(key)[:40]!r} here", f"keys: {', '.join(keys)}"
            )


def _optional(
    asked: Mapping[str, object], key: str, position: _Position, reader: Callable[[object, _Position], T]
) -> T | None:
    return reader(asked[key], position / key) if key in asked else None


def _flag(asked: Mapping[str, object], key: str, position: _Position) -> bool:
    given = asked.get(key, False)
    if not isinstance(given, bool):
        (position / key).refuse(f"{_kind(given)} is not valid here", "use true or false")
    return given


def _read(given: object, position: _Position, reader: Callable[[str], T], hint: str) -> T:
    try:
        return reader(_text(given, position, hint))
    except InputError as error:
        position.refuse(error.message, error.hint)


def _path(given: object, position: _Position) -> Path:
    return _read(given, position, path_of, "give a name as a string")


def _expression(given: object, position: _Position) -> Expression:
    return _said(given, position, parse_expression)


def _said(given: object, position: _Position, reader: Callable[[str], T]) -> T:
    text = _text(given, position, 'give a value as a string, such as "count" or "sum(latency_ms) / count"')
    try:
        return reader(text)
    except QueryError as error:
        position.refuse(error.message, error.hint)


def _having(given: object, position: _Position) -> Having:
    return _said(given, position, parse_having)


def _zone(given: object, position: _Position) -> Choice:
    return Choice(_text(given, position, 'give the name of a time zone as a string, such as "Europe/Paris"'))


def _origin(given: object, position: _Position) -> OriginClause:
    moment = _moment(given, position)
    if isinstance(moment, Now):
        position.refuse("buckets cannot start at now", 'give an instant such as "2024-01-01T06:00:00Z"')
    return OriginClause(moment)


def _as_of(given: object, position: _Position) -> AsOfClause:
    found = _since(given, position)
    return AsOfClause(Now(-found.duration) if isinstance(found, Since) else found.start)


def _item(given: object, position: _Position) -> Item:
    if isinstance(given, str):
        return Item(_expression(given, position))
    asked = _mapping(given, position, 'give a value such as "count", or {"value": "count", "as": "events"}')
    _known(asked, ("value", "as"), position)
    if "value" not in asked:
        position.refuse("'value' is missing", 'give {"value": "count", "as": "events"}')
    return Item(_expression(asked["value"], position / "value"), _optional(asked, "as", position, _path))


def _groups(given: object, position: _Position) -> tuple[Path, ...]:
    return tuple(_path(*each) for each in _some(given, position))


def _word(given: object, position: _Position) -> Choice:
    choices = WORDS[position.key]
    if not isinstance(given, str) or given not in choices:
        shown = repr(given[:40]) if isinstance(given, str) else _kind(given)
        position.refuse(f"{shown} is not valid here", f"use one of {', '.join(choices)}")
    return Choice(given)


def _limit(given: object, position: _Position) -> int:
    if type(given) is not int or given not in range(INT64.stop):
        position.refuse(
            f"{_kind(given)} is not valid here" if type(given) is not int else f"{given} is out of range",
            f"use a whole number from 0 to {INT64.stop - 1}",
        )
    return given


def _time(asked: Mapping[str, object], position: _Position) -> Between | Since | None:
    if "between" in asked and "since" in asked:
        (position / "since").refuse("'between' is given too", "give one of 'between' and 'since'")
    if "since" in asked:
        return _since(asked["since"], position / "since")
    if "between" not in asked:
        return None
    at = position / "between"
    bounds = _some(asked["between"], at)
    if len(bounds) != 2:
        at.refuse(f"the list has {len(bounds)} elements", "give [start, end], two instants")
    start, end = (_moment(given, where) for given, where in bounds)
    try:
        checked_span(start, end)
    except InputError as error:
        bounds[1][1].refuse(error.message, "[start, end) with start <= end")
    return Between(start, end)


def _since(given: object, position: _Position) -> Between | Since:
    if isinstance(given, str):
        found = _read(given, position, since_of, "")
        if isinstance(found, Since):
            return found
    else:
        found = _moment(given, position, 'give a duration such as "2h", or an instant')
    if isinstance(found, Now) and found.offset <= 0:
        return Since(-found.offset)
    return Between(found, Now())


def _moment(
    given: object,
    position: _Position,
    hint: str = 'give an instant such as "2024-01-15T14:00:00Z" or "now-1h", or an epoch number',
) -> Moment:
    if isinstance(given, int | float | Decimal) and not isinstance(given, bool):
        return _read(str(given), position, epoch_of, hint)
    return _read(given, position, moment_of, hint)


def _bucket(asked: Mapping[str, object], position: _Position) -> Rollup | Every | None:
    if "rollup" in asked and "interval" in asked:
        (position / "interval").refuse("'rollup' is given too", "give one of 'rollup' and 'interval'")
    if "rollup" in asked:
        return Rollup(_text(asked["rollup"], position / "rollup", 'give a level such as "1m"'))
    if "interval" in asked:
        at = position / "interval"
        return _read(asked["interval"], at, every_of, 'give a duration such as "30s" or "1mo"')
    return None


def _keys(given: object, position: _Position) -> list[tuple[object, bool, _Position]]:
    """What to order by, whether descending, and the position."""
    found: list[tuple[object, bool, _Position]] = []
    for key, at in _some(given, position):
        if isinstance(key, str):
            found.append((key, False, at))
            continue
        asked = _mapping(key, at, 'give a name, or {"by": name, "desc": true}')
        _known(asked, ("by", "desc"), at)
        if "by" not in asked:
            at.refuse("'by' is missing", 'give {"by": name, "desc": true}')
        found.append((asked["by"], _flag(asked, "desc", at), at / "by"))
    return found


def _order(given: object, position: _Position) -> tuple[OrderKey, ...]:
    return tuple(OrderKey(_expression(by, at), descending) for by, descending, at in _keys(given, position))


def _search_order(given: object, position: _Position) -> tuple[tuple[str, bool], ...]:
    order: dict[str, bool] = {}
    for by, descending, at in _keys(given, position):
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


def _condition(given: object, position: _Position, depth: int) -> Condition:
    asked = _mapping(given, position, _FORMS)
    if depth > MAX_DEPTH:
        position.refuse("the condition is nested too deeply", f"{MAX_DEPTH} levels at most")
    for word, join in (("and", All), ("or", AnyOf)):
        if word in asked:
            _known(asked, (word,), position)
            terms = tuple(_condition(term, at, depth + 1) for term, at in _some(asked[word], position / word))
            return join(terms) if len(terms) > 1 else terms[0]
    if "not" in asked:
        _known(asked, ("not",), position)
        return Not(_condition(asked["not"], position / "not", depth + 1))
    return _test(asked, position)


def _test(asked: Mapping[str, object], position: _Position) -> Condition:
    name = "dimension" if "dimension" in asked else "field"
    operator = asked.get("op")
    if name not in asked or "op" not in asked:
        position.refuse("this is no condition", _FORMS)
    if not isinstance(operator, str) or operator not in OPERATORS:
        shown = repr(operator[:40]) if isinstance(operator, str) else _kind(operator)
        (position / "op").refuse(f"{shown} is no operator", f"operators: {', '.join(OPERATORS)}")
    kind, negated = NEGATABLE.get(operator, (operator, False))
    needed = {"in": ("values",), "between": ("values",), "is_null": ()}.get(kind, ("value",))
    _known(asked, (name, "op", *needed), position)
    for key in needed:
        if key not in asked:
            position.refuse(f"{key!r} is missing", f"{operator!r} needs {key!r}")
    path = _path(asked[name], position / name)
    if kind == "is_null":
        return IsNull(path, negated)
    if kind == "in":
        values = _some(asked["values"], position / "values")
        return Among(path, tuple(Literally(_scalar(*each)) for each in values), negated)
    if kind == "between":
        return _within(path, asked["values"], position / "values", negated)
    at = position / "value"
    if kind in ("like", "ilike"):
        pattern = _text(asked["value"], at, "give a pattern as a string")
        if is_open(pattern):
            at.refuse(*OPEN_ESCAPE)
        return Like(path, Literally(pattern), negated, kind == "ilike")
    return Compare(path, operator, Literally(_scalar(asked["value"], at)))


def _within(path: Path, given: object, position: _Position, negated: bool) -> Condition:
    bounds = _some(given, position)
    if len(bounds) != 2:
        position.refuse(f"the list has {len(bounds)} elements", "give [low, high], both included")
    low, high = (Literally(_scalar(*each)) for each in bounds)
    return Within(path, low, high, negated)


def _scalar(given: object, position: _Position) -> Scalar:
    if isinstance(given, bool):
        return given
    if isinstance(given, str):
        return _text(given, position, "")
    if isinstance(given, float) and math.isfinite(given):
        given = repr(given)  # the shortest decimal that reads back as it: what was written
    elif isinstance(given, int | Decimal):
        given = _digits(given, position)
    else:
        hint = "use a string, a number, true or false; for null there is the operator is_null"
        position.refuse(f"{_kind(given)} is not valid here", hint)
    try:
        number = number_of(given)
    except InputError as error:
        position.refuse(error.message, error.hint)
    holds_64_bits = position.what == "query" and not position.pointer.startswith("/filter")
    if holds_64_bits and isinstance(number, int) and number not in INT64:
        position.refuse(f"{number} is not a 64-bit integer", f"use {INT64.start} to {INT64.stop - 1}")
    return number


def _digits(given: int | Decimal, position: _Position) -> str:
    try:
        return str(given)
    except ValueError:  # an integer too long for Python to print
        position.refuse("the number is too long", f"use {MAX_DIGITS} digits at most")
