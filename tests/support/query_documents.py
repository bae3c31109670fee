"""A query or a search as the JSON document that says it: what `query_from` and `search_from` read back.
Numbers with a fraction are decimals in it, exactly as they were given.
"""

from __future__ import annotations

from tidemill.model.conditions.ast import All, Among, AnyOf, Compare, Condition, IsNull, Like, Not, Within
from tidemill.model.conditions.literals import written_path
from tidemill.model.time import format_duration
from tidemill.query.language.ast import Between, Item, OrderKey, Query, Rollup, Search, Since
from tidemill.query.language.unparse import every_text, expression_text, having_text, moment_text


def document_of(said: Query | Search) -> dict[str, object]:
    """The document that says it, with no key that says nothing."""
    return _query(said) if isinstance(said, Query) else _search(said)


def _query(query: Query) -> dict[str, object]:
    document: dict[str, object] = {
        "select": [_item(item) for item in query.items],
        "from": written_path(query.source),
    }
    if query.where is not None:
        document["where"] = _condition(query.where, "dimension")
    if query.filter is not None:
        document["filter"] = _condition(query.filter, "field")
    document |= _time(query.time)
    if isinstance(query.bucket, Rollup):
        document["rollup"] = query.bucket.level
    elif query.bucket is not None:
        document["interval"] = every_text(query.bucket)
    if query.origin is not None:
        document["origin"] = moment_text(query.origin.moment)
    if query.having is not None:
        document["having"] = having_text(query.having)
    if query.offset:
        document["offset"] = query.offset
    if query.groups:
        document["group_by"] = [written_path(path) for path in query.groups]
    for key, choice in (
        ("edges", query.edges),
        ("fill", query.fill),
        ("format", query.format),
        ("timezone", query.timezone),
        ("week_start", query.week_start),
    ):
        if choice is not None:
            document[key] = choice.word
    if query.order:
        document["order_by"] = [_key(key) for key in query.order]
    return document | _ending(query)


def _search(search: Search) -> dict[str, object]:
    document: dict[str, object] = {}
    if search.where is not None:
        document["where"] = _condition(search.where, "field")
    if search.filter is not None:
        document["filter"] = _condition(search.filter, "field")
    document |= _time(search.time)
    if search.order:
        document["order_by"] = [{"by": name, "desc": descending} for name, descending in search.order]
    return document | _ending(search)


def _ending(said: Query | Search) -> dict[str, object]:
    limit: dict[str, object] = {} if said.limit is None else {"limit": said.limit}
    return limit | ({"explain": True} if said.explain else {})


def _item(item: Item) -> object:
    value = expression_text(item.value)
    return {"value": value, "as": written_path(item.alias)} if item.alias else value


def _key(key: OrderKey) -> dict[str, object]:
    return {"by": expression_text(key.value), "desc": key.descending}


def _time(time: Between | Since | None) -> dict[str, object]:
    match time:
        case Between(start, end):
            return {"between": [moment_text(start), moment_text(end)]}
        case Since(duration):
            return {"since": format_duration(duration)}
        case None:
            return {}


def _condition(condition: Condition, name: str) -> dict[str, object]:
    match condition:
        case All(terms):
            return {"and": [_condition(term, name) for term in terms]}
        case AnyOf(terms):
            return {"or": [_condition(term, name) for term in terms]}
        case Not(term):
            return {"not": _condition(term, name)}
        case Compare(path, operator, literal):
            return {name: written_path(path), "op": operator, "value": literal.value}
        case Among(path, literals, negated):
            values = [literal.value for literal in literals]
            return {name: written_path(path), "op": "not_in" if negated else "in", "values": values}
        case Within(path, low, high, negated):
            operator = "not_between" if negated else "between"
            return {name: written_path(path), "op": operator, "values": [low.value, high.value]}
        case Like(path, pattern, negated, any_case):
            operator = ("not_" if negated else "") + ("ilike" if any_case else "like")
            return {name: written_path(path), "op": operator, "value": pattern.value}
        case IsNull(path, negated):
            return {name: written_path(path), "op": "is_not_null" if negated else "is_null"}
