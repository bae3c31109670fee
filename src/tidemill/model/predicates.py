"""Conditions on the fields of a row: `a = 1 and (region in ('eu', 'us') or not note is null)`.

Parsed once, never evaluated as Python or SQL text. A comparison with a missing value is unknown, and a row passes a
condition only when it is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

Literal = str | bool | Decimal
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Compare:
    column: str
    operator: str  # one of OPERATORS
    value: Literal


@dataclass(frozen=True, slots=True)
class OneOf:
    column: str
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class Not:
    inner: Node


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


Node = Compare | OneOf | IsNull | Not | And | Or


@dataclass(frozen=True, slots=True)
class Predicate:
    text: str
    node: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_columns(self.node)))

    def holds(self, value_of: Callable[[str], Literal | None]) -> bool:
        return _truth(self.node, value_of) is True


def _columns(node: Node) -> list[str]:
    match node:
        case Not(inner):
            return _columns(inner)
        case And(parts) | Or(parts):
            return [column for part in parts for column in _columns(part)]
        case Compare() | OneOf() | IsNull():
            return [node.column]


def _truth(node: Node, value_of: Callable[[str], Literal | None]) -> bool | None:
    raise NotImplementedError
