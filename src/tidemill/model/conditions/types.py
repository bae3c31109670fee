"""Checks that the literals of a condition have the types that their fields are declared with. A literal of
another kind never compares, so without this check such a condition would silently select nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidemill.model.conditions.ast import Condition, FieldTest, Literally, tests_in, values_of_test
from tidemill.model.conditions.literals import kind_of, written_scalar
from tidemill.model.errors import QueryError

_KINDS: Final = {  # of declared types; a field of another type, or of none, may hold anything
    "string": "a string",
    "integer": "a number",
    "decimal": "a number",
    "float": "a number",
    "boolean": "a boolean",
}
_WRITTEN: Final = {
    "a string": "a string in quotes, such as 'eu'",
    "a number": "a number without quotes",
    "a boolean": "true or false",
}


@dataclass(frozen=True, slots=True)
class WrongType:
    """A literal that no value of its field can be equal to."""

    field: str
    type: str  # as declared
    literal: Literally

    @property
    def hint(self) -> str:
        return f"compare it with {_WRITTEN[_KINDS[self.type]]}"

    def message(self, at: str = "") -> str:
        """`at` says where the literal is, when nothing points at it."""
        value = self.literal.value
        return f"{self.field!r} is of type {self.type}, and {written_scalar(value)}{at} is {kind_of(value)}"


def wrong_types(test: FieldTest, types: Mapping[str, str]) -> Iterator[WrongType]:
    """The literals of a test that have the wrong type; `types` are the declared types, by field."""
    name = test.operand.text
    kind = _KINDS.get(types.get(name, "any"))
    for literal in values_of_test(test):
        if kind is not None and kind != kind_of(literal.value):
            yield WrongType(name, types[name], literal)


def check_types(condition: Condition | None, types: Mapping[str, str]) -> None:
    """Raise the first of them as an error."""
    for test in tests_in(condition):
        for wrong in wrong_types(test, types):
            raise QueryError(wrong.message(), hint=wrong.hint, position=wrong.literal.position)
