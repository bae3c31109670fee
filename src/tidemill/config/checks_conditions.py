"""What conditions say about their stream: columns that exist, compared with values of their types.

Pure: each rule yields findings, and none stops at the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tidemill.config.columns import DeclaredColumns
from tidemill.config.problems import Path
from tidemill.config.schema import FIELD_TYPES, FieldType
from tidemill.config.validation import ConfigFinding
from tidemill.model.conditions.ast import IsNull, tests_in
from tidemill.model.conditions.declared import parse_condition
from tidemill.model.conditions.types import wrong_types

NUMBERS: Final[tuple[FieldType, ...]] = ("integer", "decimal", "float")


def check_condition(
    path: Path,
    text: str,
    columns: DeclaredColumns,
    types: Sequence[FieldType],
    hint: str,
    tested: Sequence[FieldType] = FIELD_TYPES,
) -> Iterator[ConfigFinding]:
    """Everything wrong with the columns it names: `types` can be compared, `tested` be IS NULL."""
    for test in tests_in(parse_condition(text).condition):
        column = test.operand.text
        usable = tested if isinstance(test, IsNull) else types
        at = f" at character {test.operand.position + 1}"
        findings = tuple(columns.check(path, column, usable, hint, at))
        yield from findings
        field = columns.field(column)
        if findings or field is None:
            continue
        for wrong in wrong_types(test, {column: field.type}):
            message = wrong.message(f" at character {wrong.literal.position + 1}")
            yield ConfigFinding(path, message, wrong.hint)
