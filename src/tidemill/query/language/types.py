"""Whether the values in a condition are of the types that their paths are declared with.
A value of another kind never compares, so such a condition would silently find nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.model.errors import QueryError
from tidemill.query.language.ast import All, AnyOf, Condition, IsNull, Like, Literally, Not, Path
from tidemill.query.language.build import literals_of
from tidemill.query.language.words import kind_of

_KINDS: Final = {  # of declared types; a path of another type, or of none, may hold anything
    "string": "a string",
    "integer": "a number",
    "decimal": "a number",
    "float": "a number",
    "boolean": "a boolean",
}
_WRITTEN: Final = {
    "a string": "a string in quotes",
    "a number": "a number without quotes",
    "a boolean": "true or false",
}


def check_types(condition: Condition | None, types: Mapping[str, str]) -> None:
    """Refuses a value that no value of its path can be equal to. `types` are the declared ones, by path."""
    match condition:
        case None | IsNull():
            return
        case Not(term):
            check_types(term, types)
        case All(terms) | AnyOf(terms):
            for term in terms:
                check_types(term, types)
        case Like(path, pattern):
            _check(path, pattern, types)
        case _:
            for literal in literals_of(condition):
                _check(condition.dimension, literal, types)


def _check(path: Path, literal: Literally, types: Mapping[str, str]) -> None:
    name = ".".join(path.segments)
    declared = types.get(name, "any")
    kind = _KINDS.get(declared)
    if kind is not None and kind != kind_of(literal.value):
        raise QueryError(
            f"{name!r} is of type {declared}",
            hint=f"compare it with {_WRITTEN[kind]}",
            position=literal.position,
        )
