"""What conditions say about their stream: columns that exist, compared with values that suit them.

Pure: each rule yields findings, and none stops at the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

from tidemill.config.columns import DeclaredColumns
from tidemill.config.problems import Path
from tidemill.config.schema import FIELD_TYPES, FieldType
from tidemill.config.validation import ConfigFinding
from tidemill.model.predicates import FieldCompare, FieldIsNull, Literal, Mention, OneOf, mentions

NUMBERS: Final[tuple[FieldType, ...]] = ("integer", "decimal", "float")

_OF_BOOLEANS: Final = ("=", "!=")
_EXAMPLES: Final[Mapping[str, str]] = {
    "string": "text in quotes, such as 'eu'",
    "boolean": "true or false",
    **dict.fromkeys(NUMBERS, "a number, such as 1"),
}


def check_condition(
    path: Path,
    text: str,
    columns: DeclaredColumns,
    types: Sequence[FieldType],
    hint: str,
    tested: Sequence[FieldType] = FIELD_TYPES,
) -> Iterator[ConfigFinding]:
    """Everything wrong with the columns it names: `types` can be compared, `tested` be IS NULL."""
    for mention in mentions(text):
        if isinstance(mention.test, FieldIsNull):
            at = f" at character {mention.position}"
            yield from columns.check(path, mention.test.column, tested, hint, at)
        else:
            yield from _compared(path, mention, mention.test, columns, types, hint)


def _compared(
    path: Path,
    mention: Mention,
    test: FieldCompare | OneOf,
    columns: DeclaredColumns,
    types: Sequence[FieldType],
    hint: str,
) -> Iterator[ConfigFinding]:
    wrong = tuple(columns.check(path, test.column, types, hint, f" at character {mention.position}"))
    field = columns.field(test.column)
    if wrong or field is None:
        yield from wrong
        return
    operator, values = _parts(test)
    if field.type == "boolean" and operator not in _OF_BOOLEANS:
        message = f"{operator} at character {mention.operator} does not go with {test.column!r}, a boolean"
        yield ConfigFinding(path, message, "use = or !=, with true or false")
        return
    for value, position in zip(values, mention.values, strict=True):
        if not _suits(value, field.type):
            message = f"{_said(value)} at character {position} does not go with {test.column!r}, of type "
            yield ConfigFinding(path, message + field.type, f"compare it with {_EXAMPLES[field.type]}")


def _parts(test: FieldCompare | OneOf) -> tuple[str, tuple[Literal, ...]]:
    return ("IN", test.values) if isinstance(test, OneOf) else (test.operator, (test.value,))


def _suits(value: Literal, kind: FieldType) -> bool:
    match value:
        case bool():
            return kind == "boolean"
        case str():
            return kind == "string"
        case Decimal():
            return kind in NUMBERS


def _said(value: Literal) -> str:
    """As one writes it."""
    return repr(value) if isinstance(value, str) else str(value).lower()
