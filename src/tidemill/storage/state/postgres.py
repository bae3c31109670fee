"""The database of a state in a schema of a PostgreSQL server, for processes on several machines.

Transactions that write run one after another, as on SQLite, so that each sees what all earlier ones
committed; a builder that takes windows does not wait for them. No message ever contains a password. `recover`
makes a lost state again from the warehouse.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from tidemill.model.errors import BusyError, ConfigError, StorageError
from tidemill.storage.state.database import Connection, Parameter
from tidemill.storage.state.ddl import VERSIONS
from tidemill.storage.state.postgres_dialect import SEQUENCE, postgres_statement, postgres_tables
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sql_state import SqlState

Link = psycopg.Connection[tuple[Any, ...]]

VERSION: Final = len(VERSIONS)
BUSY_SECONDS: Final = 30  # how long to wait for a lock
STOPPED_SECONDS: Final = 60  # after which the server ends an idle transaction
CONNECT_SECONDS: Final = 10
FRESH: Final = "_new"  # suffix of the schema that `recover` fills
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE: Final = "BEGIN; LOCK TABLE counters IN SHARE ROW EXCLUSIVE MODE"  # readers and builders do not wait
_CLAIM: Final = "BEGIN"
_APPLICATION: Final = "tidemill state"  # a schema without it is not ours


def open_state(url: str, schema: str) -> State:
    """The state in a schema of a server, created if it does not exist."""
    return SqlState(PostgresDatabase(url, schema))


class PostgresDatabase:
    """`Database` on a server. Connections are pooled: there are as many as simultaneous calls."""

    def __init__(self, url: str, schema: str) -> None:
        self._server = Server(url)
        self._schema = schema
        self._idle: list[Link] = []
        self._guard = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        with self._server.errors():
            link = self._connect()
            _make(link, schema, self.where)
            self._give_back(link)

    @property
    def where(self) -> str:
        return f"{self._server.name} schema {self._schema}"

    def read(self) -> AbstractContextManager[Connection]:
        return self._transaction(_READ)

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        return self._transaction(_WRITE)  # a server may restart while its clients keep running

    def claim(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        return self._transaction(_CLAIM)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """A lock of the session: it ends with the connection, also when the process dies. A state that
        `recover` fills uses the locks of the state that it replaces."""
        key = f"{self._schema.removesuffix(FRESH)} {name}"
        with self._server.errors():
            link = self._begun("SELECT 1")
            link.execute("SELECT pg_advisory_lock(hashtextextended(%s, 1))", (key,))
        try:
            yield
        finally:
            with suppress(psycopg.Error):
                link.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 1))", (key,))
            self._give_back(link)

    def trim_log(self) -> None:
        """The server does that by itself."""

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        with self._server.errors():
            link = self._begun(begin)
            try:
                try:
                    yield _Statements(link)
                    if link.execute("COMMIT").statusmessage != "COMMIT":
                        raise StorageError("a statement failed, so nothing was changed", where=self.where)
                except BaseException:
                    if not link.closed:
                        link.execute("ROLLBACK")
                    raise
            finally:
                self._give_back(link)

    def _begun(self, begin: str) -> Link:
        """A connection with a new transaction. Idle ones that the server has closed are thrown away."""
        while True:
            link = self._idle_link()
            new = link is None
            link = link or self._connect()
            try:
                link.execute(begin)
            except psycopg.Error:
                if not link.closed:
                    link.execute("ROLLBACK")
                if new or not link.closed:
                    self._give_back(link)
                    raise
            else:
                return link

    def _idle_link(self) -> Link | None:
        with self._guard:
            if self._closed:
                raise StorageError("state is closed", where=self.where, hint="open the warehouse again")
            if self._process != os.getpid():  # a forked process must not use the connections of its parent
                self._idle, self._process = [], os.getpid()
            return self._idle.pop() if self._idle else None

    def _connect(self) -> Link:
        link = self._server.connect()
        link.execute("SELECT set_config('search_path', %s, false)", (_quoted(self._schema),))
        return link

    def _give_back(self, link: Link) -> None:
        with self._guard:
            if not self._closed and not link.closed:
                self._idle.append(link)
                return
        link.close()


class _Statements:
    """A connection that translates statements to PostgreSQL."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def execute(self, sql: str, parameters: Sequence[Parameter] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._link.execute(_text(sql), _storable(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Parameter]], /) -> None:
        with self._link.cursor() as cursor:
            cursor.executemany(_text(sql), [_storable(row) for row in parameters])


def _text(statement: str) -> bytes:
    return postgres_statement(statement).encode()


def _storable(parameters: Sequence[Parameter]) -> Sequence[Parameter]:
    """The parameters without zero characters, which PostgreSQL cannot store in a text."""
    if any(type(value) is str and "\0" in value for value in parameters):
        return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in parameters]
    return parameters


class Server:
    """How a server is reached, and how its errors are reported."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._options = conninfo_to_dict(url)
        except psycopg.Error:
            raise ConfigError(
                "the url of the state is not a PostgreSQL address",
                where="state.url",
                hint="write postgresql://user@host:5432/database; percent-encode special characters "
                "of a password",
            ) from None

    @property
    def name(self) -> str:
        """The address without user and password."""
        options = self._options
        host = options.get("host") or options.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
        port = options.get("port") or os.environ.get("PGPORT") or "5432"
        database = options.get("dbname") or os.environ.get("PGDATABASE") or options.get("user") or ""
        return f"postgresql://{host}:{port}/{database}"

    def connect(self) -> Link:
        """In autocommit mode: transactions are opened by name. A commit that returned is on disk."""
        options = {
            name: value
            for name, value in {
                "connect_timeout": CONNECT_SECONDS,
                "application_name": "tidemill",
                "keepalives_idle": 30,
                "keepalives_interval": 10,
                "keepalives_count": 3,
            }.items()
            if name not in self._options
        }
        link: Link = psycopg.connect(self._url, autocommit=True, **options)  # type: ignore[arg-type]
        link.execute(
            "SELECT set_config('lock_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false),"
            " set_config('client_min_messages', 'warning', false),"
            " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
            " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)",
            (f"{BUSY_SECONDS}s", f"{STOPPED_SECONDS}s"),
        )
        return link

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of the server and of the driver into errors with a hint."""
        try:
            yield
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            raise BusyError(
                f"state is locked by another process ({self._message(error)})",
                where=self.name,
                hint=f"something has held it for more than {BUSY_SECONDS} s: find it, or try again",
            ) from None
        except errors.DiskFull as error:
            raise StorageError(
                f"no space left to write the state: {self._message(error)}",
                where=self.name,
                hint="free disk space on the server, then try again",
            ) from None
        except (errors.InvalidSchemaName, errors.UndefinedTable) as error:
            raise StorageError(
                f"there is no state: {self._message(error)}",
                where=self.name,
                hint="run `tidemill recover`: it rebuilds the state from the warehouse",
            ) from None
        except psycopg.Error as error:
            raise StorageError(
                f"state cannot be used: {self._message(error)}",
                where=self.name,
                hint="check that the server runs, that state.url names it, and that user and password are "
                "right (PGUSER, PGPASSWORD or ~/.pgpass where the url has none)",
            ) from None

    def _message(self, error: psycopg.Error) -> str:
        text = " ".join(str(error).split())
        written = urlsplit(self._url).password or ""
        secrets = {written, unquote(written), str(self._options.get("password") or "")}
        for secret in sorted(secrets - {""}, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


# -- schemas


def exists(url: str, schema: str) -> bool:
    """Whether there is a state in the schema."""
    server = Server(url)
    with server.errors(), server.connect() as link:
        return _version(link, schema) is not None


def drop(url: str, schema: str) -> None:
    """Delete the state in the schema, if there is one."""
    server = Server(url)
    with server.errors(), server.connect() as link, link.transaction():
        if _version(link, schema) is not None:
            link.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def replace(url: str, schema: str, fresh: str) -> None:
    """The state in `fresh` becomes that in `schema`, and what was there is dropped, in one step."""
    server = Server(url)
    with server.errors(), server.connect() as link, link.transaction():
        if _version(link, fresh) is None:
            raise StorageError("there is no fresh state", where=fresh, hint="run `tidemill recover`")
        link.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
        renamed = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
        link.execute(renamed.format(sql.Identifier(fresh), sql.Identifier(schema)))


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _version(link: Link, schema: str) -> int | None:
    """The version of the state in the schema; None if there is none. Reads the catalogue, because
    `to_regclass` may return a cached result from before another process created it."""
    (found,) = _one(
        link, "SELECT count(*) FROM pg_tables WHERE schemaname = %s AND tablename = 'about'", schema
    )
    if not found:
        return None
    query = sql.SQL("SELECT application, version FROM {}").format(sql.Identifier(schema, "about"))
    row = link.execute(query).fetchone()
    return int(row[1]) if row is not None and row[0] == _APPLICATION else None


def _make(link: Link, schema: str, where: str) -> None:
    """Create or upgrade the tables of the schema; other processes may be doing the same."""
    version = _version(link, schema)
    if version == VERSION:
        return
    with link.transaction():
        link.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"{_APPLICATION} {schema}",))
        version = _version(link, schema)
        if version is None:
            _create(link, schema, where)
            version = 0
        if version > VERSION:
            raise StorageError(
                f"state has schema version {version}, this Tidemill knows {VERSION}",
                where=where,
                hint="use the newer Tidemill that wrote it, or run `tidemill recover`",
            )
        for step in VERSIONS[version:]:
            for statement in postgres_tables(step):
                link.execute(statement.encode())
        link.execute("UPDATE about SET version = %s", (VERSION,))


def _create(link: Link, schema: str, where: str) -> None:
    (made,) = _one(link, "SELECT count(*) FROM pg_namespace WHERE nspname = %s", schema)
    (tables,) = _one(link, "SELECT count(*) FROM pg_tables WHERE schemaname = %s", schema)
    if tables:
        raise StorageError(
            "this schema has tables and is not the state of a warehouse",
            where=where,
            hint="name another schema in `state.schema`",
        )
    if not made:
        link.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    link.execute("CREATE TABLE about (application TEXT NOT NULL, version BIGINT NOT NULL)")
    link.execute("INSERT INTO about (application, version) VALUES (%s, 0)", (_APPLICATION,))
    link.execute(f"CREATE SEQUENCE {SEQUENCE}".encode())


def _one(link: Link, query: str, *parameters: str) -> tuple[Any, ...]:
    row = link.execute(query.encode(), parameters).fetchone()
    assert row is not None, query
    return row
