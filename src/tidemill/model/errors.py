"""Every error a user can meet: a stable code, whether to try again, and a hint.

Nothing here formats for a terminal; the CLI and the API render the same fields.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import ClassVar


class Retry(StrEnum):
    """What the caller can do about it."""

    NEVER = "never"  # the request itself is wrong
    LATER = "later"  # a condition outside the request: try the same again later
    REFRESH = "refresh"  # the caller has an old state: read again, then retry


class TidemillError(Exception):
    """Root of all errors that a user or operator can fix, as opposed to bugs."""

    code: str = "error"  # of its class, except for errors of a server, which have the code of the response
    retry: Retry = Retry.NEVER
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def as_dict(self) -> dict[str, str]:
        return {
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "hint": self.hint,
            "retry": self.retry.value,
        }

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        return f"{prefix}{self.message}"


class ConfigError(TidemillError):
    """`tidemill.yaml` (or an override of it) is invalid."""

    code = "config"
    exit_code = 2


class InputError(TidemillError):
    """A file, a value or an argument that came from outside is not usable."""

    code = "input"
    exit_code = 2


class RetractedError(InputError):
    """The bytes are a slice that was retracted: it stays retracted, which is reported."""

    code = "retracted"


class NotFoundError(TidemillError):
    """The named stream, slice, level … does not exist."""

    code = "not_found"
    exit_code = 2


class QueryError(TidemillError):
    """A query text that cannot be parsed or planned; `position` is a character offset."""

    code = "query"
    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", where: str = "", position: int | None = None) -> None:
        super().__init__(message, hint=hint, where=where)
        self.position = position


class IncompleteError(TidemillError):
    """A strict answer lacks something that expired, is not built yet or is pending."""

    code = "incomplete"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", where: str = "", retry: Retry = Retry.NEVER) -> None:
        super().__init__(message, hint=hint, where=where)
        self.retry = retry


class ConflictError(TidemillError):
    """Another writer committed first; read again and retry."""

    code = "conflict"
    retry = Retry.REFRESH
    exit_code = 4


class BusyError(TidemillError):
    """Another process holds the lease that this work needs."""

    code = "busy"
    retry = Retry.LATER
    exit_code = 4


class LeaseLostError(BusyError):
    """Another process has taken over the streams of this one, which can commit nothing any more."""


class StorageError(TidemillError):
    """The warehouse cannot be read or written (disk full, no permission, damage)."""

    code = "storage"
    retry = Retry.LATER
    exit_code = 3


class UnlandedError(StorageError):
    """Events are durable in the log of a gateway, but did not land in a slice in time, which their sender
    waits for."""

    def __init__(self, message: str) -> None:
        hint = "send the same again: what the gateway has landed meanwhile is a duplicate then"
        super().__init__(message, hint=hint)


class DamageError(StorageError):
    """A file of the warehouse is missing, cut short, or is not what was written; `where` names the file."""

    code = "damaged"
    retry = Retry.NEVER

    def __init__(self, message: str, *, where: str, hint: str = "") -> None:
        hint = hint or "`tidemill repair` sets the file aside and makes it again from what is whole"
        super().__init__(message, hint=hint, where=where)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by its arguments, so that it can be raised in another process."""
        return partial(DamageError, where=self.where, hint=self.hint), (self.message,)


class MachineError(TidemillError):
    """The machine lacks something: Java, Python, memory."""

    code = "environment"
    exit_code = 3


class AuthError(TidemillError):
    """The caller is not known: a token is missing, wrong, expired or revoked."""

    code = "unauthorized"
    exit_code = 2


class ForbiddenError(TidemillError):
    """The caller is known but not allowed: another scope, or another tenant."""

    code = "forbidden"
    exit_code = 2


class TooLargeError(TidemillError):
    """A request beyond a limit: of its body, its events, their depth or their fields."""

    code = "too_large"
    exit_code = 2


class TooSpreadError(TidemillError):
    """A request whose events lie in more windows than one request may touch."""

    code = "too_spread"
    exit_code = 2


class MediaTypeError(TidemillError):
    """A body of a kind, or in an encoding, that is not read."""

    code = "media_type"
    exit_code = 2


class OverloadedError(TidemillError):
    """No memory is left for it: nothing of it was taken, and the same can be sent again."""

    code = "overloaded"
    retry = Retry.LATER
    exit_code = 4

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", after: float = 1.0, refused: bool = False
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.after = after  # seconds until it is worth another try
        self.refused = refused  # in an emergency, rather than asked to slow down


class RateLimitError(TidemillError):
    """A token was used more often than it may be."""

    code = "rate_limited"
    retry = Retry.LATER
    exit_code = 4

    def __init__(self, message: str, *, hint: str = "", where: str = "", after: float = 1.0) -> None:
        super().__init__(message, hint=hint, where=where)
        self.after = after


class DefectError(TidemillError):
    """A bug of Tidemill."""

    code = "internal"
    exit_code = 70


def as_tidemill_error(error: Exception) -> TidemillError:
    """Any error as one that is shown to users."""
    if isinstance(error, TidemillError):
        return error
    if isinstance(error, MemoryError):
        return MachineError("there is not enough memory", hint="stop other programs, or lower engine.memory")
    if isinstance(error, ConnectionError | TimeoutError) and not error.filename:
        return MachineError(
            error.strerror or str(error) or type(error).__name__,
            hint="another machine or process did not answer: check its address, and that it runs",
        )
    if isinstance(error, OSError):
        return StorageError(
            error.strerror or str(error),
            where=str(error.filename or ""),
            hint=getattr(error, "hint", "") or "check the disk, its free space and who may write to it",
        )
    first = (str(error).splitlines() or [""])[0]
    return DefectError(
        f"{type(error).__name__}: {first}",
        hint="this is a defect of Tidemill; the same command with -vv shows where it is",
    )
