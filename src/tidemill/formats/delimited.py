"""CSV rows as canonical JSON records. A cell is a number or a boolean only where the stream declares one.

No row is dropped: one with the wrong number of cells or broken quotes is passed on as its text, with what is
wrong, so that the gate rejects it as malformed and quarantine shows it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemill.config.stream import Csv
from tidemill.formats.json_values import SURROGATE, objects, quoted
from tidemill.model.errors import InputError

_ROWS: Final = 4096
_MAX_CELL: Final = 64 * 1024 * 1024
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_BOOLEANS: Final = {"true": "true", "false": "false"}
_NUMBERS: Final = ("integer", "decimal", "float")


def csv_records(
    blocks: Iterable[bytes | bytearray], settings: Csv, types: Mapping[str, str]
) -> Iterator[tuple[list[bytes], dict[int, str]]]:
    """Records in batches, and by their positions what is wrong with those that are none. Blocks end with line
    ends; a quoted cell may continue in the next block."""
    csv.field_size_limit(_MAX_CELL)
    held: list[str] = []  # the lines of the current row
    reader = csv.reader(_lines(blocks, held), delimiter=settings.delimiter, strict=True)
    names = settings.columns
    if settings.header:
        header = _header(reader)
        if header is None:
            return
        names = header
    layout = _layout(names, types)
    more = True
    while more:
        rows, strange, more = _batch(reader, held, len(names))
        texts = _render(layout, list(zip(*rows, strict=True)), types, len(rows)) if rows else []
        for row in strange:
            texts.insert(row.position, row.text)
        broken = {row.position: row.problem for row in strange}
        yield [text.encode("utf-8", SURROGATE) for text in texts], broken


def _lines(blocks: Iterable[bytes | bytearray], held: list[str]) -> Iterator[str]:
    for block in blocks:
        for line in io.StringIO(block.decode("utf-8", SURROGATE), newline="\n"):
            held.append(line)
            yield line


def _header(reader: Iterator[list[str]]) -> tuple[str, ...] | None:
    try:
        return next((tuple(row) for row in reader if row), None)
    except csv.Error as error:
        raise InputError(
            f"its header cannot be read: {_complaint(error)}", hint="fix the first line"
        ) from error


@dataclass(frozen=True, slots=True)
class _Strange:
    """A row that is no record."""

    position: int
    text: str
    problem: str


def _batch(
    reader: Iterator[list[str]], held: list[str], width: int
) -> tuple[list[list[str]], list[_Strange], bool]:
    """Rows of the right width; the others; and whether to continue."""
    rows: list[list[str]] = []
    strange: list[_Strange] = []
    held.clear()
    while len(rows) + len(strange) < _ROWS:
        try:
            for row in reader:
                if len(row) == width:
                    rows.append(row)
                elif not _is_blank(held):
                    found = f"{len(row)} cell{'s' * (len(row) != 1)}, and there are {width} columns"
                    strange.append(_Strange(len(rows) + len(strange), _text(held), found))
                held.clear()
                if len(rows) + len(strange) >= _ROWS:
                    return rows, strange, True
            return rows, strange, False
        except csv.Error as error:
            strange.append(_Strange(len(rows) + len(strange), _text(held), f"not CSV: {_complaint(error)}"))
            held.clear()
    return rows, strange, True


def _complaint(error: csv.Error) -> str:
    """What the reader says, without its advice to programmers."""
    return str(error).partition(" - ")[0]


def _is_blank(held: list[str]) -> bool:
    return not "".join(held).strip()


def _text(held: list[str]) -> str:
    return "".join(held).rstrip("\r\n")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which cell belongs to which key, and which nested object holds further cells."""

    cells: dict[str, int]
    inner: dict[str, _Layout]


def _layout(names: Sequence[str], types: Mapping[str, str]) -> _Layout:
    """A declared column `a.b` becomes a member of an object `a`; any other name is a key as it is."""
    root = _Layout({}, {})
    for position, name in enumerate(names):
        *path, last = name.split(".") if name in types else [name]
        node = root
        for key in path:
            if key in node.cells:
                raise _clash(name)
            node = node.inner.setdefault(key, _Layout({}, {}))
        if last in node.cells or last in node.inner:
            raise _clash(name)
        node.cells[last] = position
    return root


def _render(
    layout: _Layout, cells: Sequence[Sequence[str]], types: Mapping[str, str], rows: int, path: str = ""
) -> list[str]:
    columns = {
        key: _values(cells[position], types.get(path + key, "")) for key, position in layout.cells.items()
    }
    for key, inner in layout.inner.items():
        texts = _render(inner, cells, types, rows, f"{path}{key}.")
        columns[key] = ["" if text == "{}" else text for text in texts]
    return objects(columns, rows)


def _values(cells: Sequence[str], type: str) -> list[str]:
    """One column as JSON text; an empty cell is a missing value."""
    if type in _NUMBERS:
        return [cell if _NUMBER(cell) else cell and quoted(cell) for cell in cells]
    if type == "boolean":
        return [_BOOLEANS.get(cell) or (cell and quoted(cell)) for cell in cells]
    return [cell and quoted(cell) for cell in cells]


def _clash(name: str) -> InputError:
    return InputError(
        f"column {name!r} occurs twice, or inside another one", hint="give each column its own name"
    )
