"""Writes an answer as one table: CSV, Parquet or Arrow to standard output, or a file of any format.

Notes about the answer go to standard error, so that a pipe gets rows only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.cli.settings import OutputKind
from tidemill.model.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.cli.session import Session
    from tidemill.model.completeness import Completeness
    from tidemill.pipeline.documents.shapes import Document

# Imports inside functions keep start-up short: a command loads only what it runs.

SUFFIXES: Final = {
    ".csv": OutputKind.CSV,
    ".parquet": OutputKind.PARQUET,
    ".arrow": OutputKind.ARROW,
    ".json": OutputKind.JSON,
}


def checked_target(session: Session, file: Path | None) -> OutputKind | None:
    """Return the format of the table to write; None prints the answer as usual.

    What could not be written is refused before anything is read.
    """
    kind = session.settings.output
    if file is None:
        if kind in (OutputKind.PARQUET, OutputKind.ARROW) and sys.stdout.isatty():
            raise InputError(
                f"{kind.value} cannot be written to a terminal", hint="write it to a file: -o FILE"
            )
        return kind if kind.is_table else None
    if kind is OutputKind.TEXT:
        kind = SUFFIXES.get(file.suffix.lower(), kind)
    if kind is OutputKind.TEXT:
        raise InputError(
            f"the name {file.name!r} does not say which format the file has",
            hint=f"end it with {', '.join(SUFFIXES)}, or add --output csv, parquet, arrow or json",
        )
    if file.is_dir():
        raise InputError("the file is a folder", where=str(file), hint="name a file in it")
    return kind


def give(
    session: Session,
    table: pa.Table,
    document: Callable[[], Document],
    completeness: Completeness,
    kind: OutputKind,
    file: Path | None,
) -> None:
    """Write the rows (as JSON: the whole document), and print to stderr how complete they are."""
    give_batches(session, table.schema, table.to_batches(), document, completeness.lines(), kind, file)


def give_batches(
    session: Session,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    document: Callable[[], Document],
    lines: Iterable[str],
    kind: OutputKind,
    file: Path | None,
) -> None:
    """The same, of rows that are written as they come."""
    from tidemill.pipeline.documents.shapes import dumps
    from tidemill.storage.writers import whole_file, write_batches

    written = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal written
        for batch in batches:
            written += batch.num_rows
            yield batch

    if kind is OutputKind.JSON:
        assert file is not None
        with whole_file(file) as path:
            path.write_text(dumps(document()) + "\n", encoding="utf-8")
    else:
        write_batches(counted(), schema, file, kind.value)
        if file is not None:
            session.note(f"{written} rows in {file}")
    for line in lines:
        session.note(line)
