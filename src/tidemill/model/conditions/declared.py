"""Conditions as they are declared in `tidemill.yaml`. YAML has escapes of its own, so that in a string a
backslash is an ordinary character.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tidemill.model.conditions.ast import (
    All,
    AnyOf,
    Compare,
    Condition,
    FieldTest,
    IsNull,
    Not,
    paths_in,
    values_of_test,
)
from tidemill.model.conditions.parse import KEYWORDS, read_condition
from tidemill.model.conditions.scanner import Scanner

MAX_LENGTH: Final = 10_000  # characters
KEPT: Final = 256  # conditions


@dataclass(frozen=True, slots=True)
class DeclaredCondition:
    """The text of a condition, and its parsed form."""

    text: str
    condition: Condition

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path.text for path in paths_in(self.condition)))

    @property
    def identity(self) -> Mapping[str, object]:
        """The form that goes into the fingerprint of an output. It decides whether existing outputs are
        current, so it must not change."""
        return {"text": self.text, "node": _node(self.condition)}


@lru_cache(maxsize=KEPT)
def parse_condition(text: str) -> DeclaredCondition:
    """The condition in a text, or a QueryError with the position and what was expected there. It is asked for
    at each use of what was declared, so the last ones are kept."""
    scanner = Scanner(text, "condition", keywords=KEYWORDS, longest=MAX_LENGTH, plain=True)
    condition = read_condition(scanner)
    scanner.end()
    return DeclaredCondition(text, condition)


def _node(condition: Condition) -> Mapping[str, object]:
    match condition:
        case Not(term):
            return {"inner": _node(term)}
        case All(terms) | AnyOf(terms):
            return {"parts": [_node(term) for term in terms]}
        case Compare(path, operator, literal):
            return {"column": path.text, "operator": operator, "value": literal.value}
        case _:
            return {"inner": _test(condition)} if condition.negated else _test(condition)


def _test(test: FieldTest) -> Mapping[str, object]:
    column = {"column": test.operand.text}
    if isinstance(test, IsNull):
        return column
    return column | {"values": [literal.value for literal in values_of_test(test)]}
