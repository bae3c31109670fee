"""What a token allows: scopes, a tenant, a rate, a time; and the principal that it identifies.

Values and rules only: no clock, no file, no secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT

MAX_TENANT_BYTES: Final = 256  # as in the gate
MAX_NAME: Final = 100
MAX_RATE: Final = 10**9


class Scope(StrEnum):
    """What may be done."""

    INGEST = "ingest"  # send events
    READ = "read"  # query
    ADMIN = "admin"  # both, and operations on the warehouse itself


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token as it is stored. Instants are microseconds; None: no limit, or not yet."""

    id: str
    name: str
    scopes: frozenset[Scope]
    tenant: str | None  # None: all of them
    rate: int | None  # events a second
    created: int
    expires: int | None
    revoked: int | None
    digest: str = field(repr=False)  # SHA-256 of the secret, in hex

    def active(self, now: int) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def state(self, now: int) -> str:
        if self.revoked is not None:
            return "revoked"
        return "active" if self.active(now) else "expired"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller."""

    id: str
    tenant: str | None  # None: all of them
    scopes: frozenset[Scope]
    rate: int | None = None  # events a second; None: any

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


LOCAL: Final = Principal("local", None, frozenset({Scope.ADMIN}))
"""Any caller on this machine, if there are no tokens."""


def checked_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    named = list(scopes)
    unknown = sorted(set(named) - set(Scope))
    if unknown or not named:
        message = f"there is no scope {unknown[0]!r}" if unknown else "a token needs a scope"
        raise InputError(message, hint=f"scopes: {', '.join(Scope)}; admin includes the others")
    return frozenset(Scope(name) for name in named)


def checked_tenant(tenant: str | None) -> str | None:
    """A name that an event could carry, and that users can distinguish from others."""
    if tenant is None:
        return None
    if not tenant or tenant != tenant.strip() or not tenant.isprintable():
        raise InputError(
            f"{tenant!r} cannot name a tenant",
            hint="use printable text without spaces at its ends, such as acme; or all tenants",
        )
    if len(tenant.encode()) > MAX_TENANT_BYTES:
        raise InputError(
            f"the name of the tenant is longer than {MAX_TENANT_BYTES} bytes",
            hint="use the name that events have",
        )
    return tenant


def checked_name(name: str) -> str:
    if len(name) > MAX_NAME or not name.isprintable():
        raise InputError(
            f"{name[:MAX_NAME]!r} cannot name a token", hint=f"use up to {MAX_NAME} printable characters"
        )
    return name


def checked_rate(rate: int | None) -> int | None:
    if rate is not None and not 1 <= rate <= MAX_RATE:
        raise InputError(
            f"a rate of {rate} is not possible",
            hint=f"events a second from 1 to {MAX_RATE}; leave it out for no limit",
        )
    return rate


def checked_expiry(expires: int | None, now: int) -> int | None:
    if expires is not None and not now < expires < MAX_INSTANT:
        message = "a token that has expired is of no use" if expires <= now else "a token cannot last so long"
        raise InputError(message, hint="use a duration such as 90d, or leave it out: then it never expires")
    return expires
