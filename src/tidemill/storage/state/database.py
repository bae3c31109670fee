"""What the state needs of a database: statements with parameters, inside a transaction that the caller has
opened.

The text of a statement is the same for every database. It is written as SQLite reads it;
`postgres_dialect` has what PostgreSQL reads in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

Parameter = int | str | bytes | None

# SQLite has one writer at a time and reads these as comments.
LOCKED: Final = "/* FOR UPDATE */"  # lock the rows until the transaction ends
UNTAKEN: Final = "/* FOR UPDATE SKIP LOCKED */"  # the same, and skip rows that another transaction has locked
EVERY: Final = 1 << 62  # for LIMIT: no limit
# The time by the clock of the database, in microseconds: the same for all machines that use it.
CLOCK: Final = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


class ResultRows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    @property
    def description(self) -> Any: ...  # a sequence of columns, the first item of each its name

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """One connection, in a transaction."""

    def execute(self, sql: str, parameters: Sequence[Parameter] = ..., /) -> ResultRows: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Parameter]], /) -> object: ...


class Database(Protocol):
    """Gives out connections, each with a transaction that is committed when the body ends, and rolled back
    when it raises."""

    @property
    def where(self) -> str:
        """Its name in errors: a file, or an address without a password."""
        ...

    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that reads: all statements inside see one commit."""
        ...

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        """A transaction that writes. There is one at a time, and it sees what all earlier ones committed.
        What is not `lasting` may be lost when all processes that use the database end."""
        ...

    def claim(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        """A transaction that writes beside another writer, where the database can do that. It may change only
        rows that it selected as `UNTAKEN`, or that nobody else changes."""
        ...

    def hold(self, name: str) -> AbstractContextManager[None]:
        """One holder of a name at a time among the machines that use the database; others wait."""
        ...

    def trim_log(self) -> None:
        """Free the space of the write-ahead log where the database does not do so by itself; does nothing
        while somebody reads."""
        ...

    def close(self) -> None: ...


def greater(kept: str, new: str) -> str:
    """The greater of two values, neither of which is null."""
    return f"CASE WHEN {new} > {kept} THEN {new} ELSE {kept} END"
