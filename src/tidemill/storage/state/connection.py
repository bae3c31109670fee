"""What the acts of the state ask of a database: statements with parameters, inside a transaction that
somebody else opened.

The text of a statement is the same for every database. It is written as SQLite reads it; `dialect` says what
PostgreSQL reads in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

Parameter = int | str | bytes | None

# SQLite has one writer at a time and reads these as comments.
LOCKED: Final = "/* FOR UPDATE */"  # the rows stay as they are until the transaction ends
UNTAKEN: Final = "/* FOR UPDATE SKIP LOCKED */"  # and those that another transaction holds are left out
EVERY: Final = 1 << 62  # for LIMIT: all of them
# The time by the clock of the database, in microseconds: the same for all machines that use it.
CLOCK: Final = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Any: ...  # a sequence of columns, the first item of each its name

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection, in a transaction."""

    def execute(self, sql: str, parameters: Sequence[Parameter] = ..., /) -> Rows: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Parameter]], /) -> object: ...


class Database(Protocol):
    """Gives out connections, each with a transaction that is committed when the body ends, and rolled back
    when it raises."""

    @property
    def where(self) -> str:
        """What errors call it: a file, or an address without a password."""
        ...

    def read(self) -> AbstractContextManager[Connection]:
        """A consistent look: all statements inside see one commit."""
        ...

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        """One at a time: every act sees what all before it have committed. What is not `lasting` need not
        survive the end of all processes that use the database."""
        ...

    def claim(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        """Beside a writer, where the database can do that: for an act that changes only rows that it has
        found `UNTAKEN`, or that nobody else changes."""
        ...

    def hold(self, name: str) -> AbstractContextManager[None]:
        """One holder of a name at a time among the machines that use the database; others wait."""
        ...

    def trim_log(self) -> None:
        """Give back the space of what was written and is in place by now, where the database does not do so
        by itself; not while somebody reads."""
        ...

    def close(self) -> None: ...


def greater(kept: str, new: str) -> str:
    """The greater of two values, neither of which is null."""
    return f"CASE WHEN {new} > {kept} THEN {new} ELSE {kept} END"
