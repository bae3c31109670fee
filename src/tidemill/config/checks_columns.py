"""The declared columns of a stream, for rules that name columns.

Pure: reports what is wrong with a name or a list of names, and where.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final

from tidemill.config.problems import Path
from tidemill.config.schema import FIELD_TYPES, Field, FieldType
from tidemill.config.stream import Stream
from tidemill.config.validation import ConfigFinding
from tidemill.model.conditions.ast import IsNull, tests_in
from tidemill.model.conditions.declared import parse_condition
from tidemill.model.conditions.types import wrong_types
from tidemill.model.suggestions import choices


class DeclaredColumns:
    """The columns of a stream. Nothing is reported about columns whose declaration is invalid."""

    def __init__(self, stream: Stream, broken: Collection[Path]) -> None:
        self._fields: Mapping[str, Field] = stream.fields
        self._of = "the schema"
        self._broken = {path[1] for path in broken if len(path) == 2 and path[0] == "schema"}
        self._unknown = ("schema",) in broken

    def with_fields(self, fields: Mapping[str, Field], of: str) -> DeclaredColumns:
        """The columns of something derived from them."""
        made = copy(self)
        made._fields, made._of = fields, of
        return made

    def field(self, column: str) -> Field | None:
        return self._fields.get(column)

    def check(
        self, path: Path, column: str, types: Sequence[FieldType], hint: str, at: str = ""
    ) -> Iterator[ConfigFinding]:
        """Check that a column is declared and has one of these types. `at` is its position in a text."""
        field = self._fields.get(column)
        if field is not None:
            if field.type not in types:
                yield ConfigFinding(path, f"column {column!r}{at} is of type {field.type}", hint)
        elif not self._unknown and column not in self._broken:
            valid = tuple(name for name, known in self._fields.items() if known.type in types)
            hint = choices(column, valid, "columns that can be used here")
            yield ConfigFinding(path, f"column {column!r}{at} is not in {self._of}", hint)


def listed(path: Path, columns: Sequence[str]) -> Iterator[tuple[Path, str]]:
    return (((*path, index), column) for index, column in enumerate(columns))


def repeats(path: Path, names: Iterable[str]) -> Iterator[ConfigFinding]:
    for name, count in Tally(names).items():
        if count > 1:
            yield ConfigFinding(path, f"{name!r} is listed {count} times", "list it once")


def one_of(types: Sequence[str]) -> str:
    return f"{', '.join(types[:-1])} or {types[-1]}" if len(types) > 1 else types[0]


NUMBERS: Final[tuple[FieldType, ...]] = ("integer", "decimal", "float")


def check_condition(
    path: Path,
    text: str,
    columns: DeclaredColumns,
    types: Sequence[FieldType],
    hint: str,
    tested: Sequence[FieldType] = FIELD_TYPES,
) -> Iterator[ConfigFinding]:
    """Yield every problem of the columns a condition names. Columns of `types` can be compared, those of
    `tested` can be tested with IS NULL."""
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
