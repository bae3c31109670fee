"""Tokens: which scopes for which tenant. They are in one file of the warehouse, and need nothing else.

Only the SHA-256 of a secret is stored, and unknown and wrong tokens get the same answer.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from tidemill.model.errors import AuthError, DamageError, InputError, NotFoundError, TidemillError
from tidemill.model.time import format_instant
from tidemill.server.access.grants import (
    LOCAL,
    AccessToken,
    Principal,
    Scope,
    checked_expiry,
    checked_name,
    checked_rate,
    checked_scopes,
    checked_tenant,
)
from tidemill.server.access.token_file import (
    LOST,
    FileVersion,
    changing,
    read_tokens,
    replace_tokens,
    unusable,
    version_of,
    was_written,
)
from tidemill.storage import layout

__all__ = ["LOCAL", "AccessToken", "Principal", "Scope", "Tokens"]

log = logging.getLogger(__name__)

MAX_TOKENS: Final = 10_000
NEEDED: Final = "send `Authorization: Bearer tm_…`; `tidemill token create` makes a token"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
# A secret has 256 random bits: nothing slower than one SHA-256 is needed to keep it from being guessed.
_SHOWN: Final = re.compile(r"(?i:bearer) +tm_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
_NOBODY: Final = "0" * 64  # compared with for an unknown id, so that it takes as long as a known one


@dataclass(frozen=True, slots=True)
class _SeenFile:
    """The file as it was last read."""

    file_version: FileVersion | None = None  # None: there was no file
    tokens: Mapping[str, AccessToken] = field(default_factory=dict)
    damage: str = ""  # why the tokens cannot be read


class Tokens:
    """The tokens of a warehouse. Changes by other processes are seen at the next call. Thread-safe.

    Once there was a token, a file that is missing or damaged raises DamageError from every call: the absence
    of the file never means that no token is needed.
    """

    def __init__(self, warehouse: Path) -> None:
        self._path = layout.tokens(warehouse)
        self._seen = _SeenFile()

    def create(
        self,
        scopes: Iterable[str],
        *,
        tenant: str | None,
        now: int,
        name: str = "",
        rate: int | None = None,
        expires: int | None = None,
    ) -> tuple[AccessToken, str]:
        """A new, durable token, and its text `tm_<id>_<secret>`, which is shown only once.

        `tenant` None: all; `rate` is in events a second; `expires` is an instant.
        """
        secret = secrets.token_hex(_SECRET_BYTES)
        new = AccessToken(
            id="",
            name=checked_name(name),
            scopes=checked_scopes(scopes),
            tenant=checked_tenant(tenant),
            rate=checked_rate(rate),
            created=now,
            expires=checked_expiry(expires, now),
            revoked=None,
            digest=_digest(secret),
        )
        with changing(self._path):
            kept = _with_room(read_tokens(self._path)[1], now)
            taken = {token.id for token in kept}
            token = replace(new, id=_new_id(taken))
            replace_tokens(self._path, [*kept, token])
        return token, f"tm_{token.id}_{secret}"

    def list(self) -> tuple[AccessToken, ...]:
        """All tokens in order of creation, including those that no longer work."""
        return tuple(self._query().values())

    def revoke(self, id: str, now: int) -> AccessToken:
        """Revoke it, from the next request on. Idempotent."""
        if (known := self._query()).get(id) is None:
            raise NotFoundError(f"there is no token {id!r}", hint=_ids(known.values(), now))
        with changing(self._path):
            kept = {token.id: token for token in read_tokens(self._path)[1]}
            found = kept.get(id, known[id])
            if found.revoked is None:
                kept[id] = found = replace(found, revoked=now)
                replace_tokens(self._path, [*kept.values()])
        return found

    def any_made(self) -> bool:
        """Whether there ever was one. From then on every request needs one: a token that expired or was
        revoked does not open the server to all."""
        return bool(self._query())

    def any_active(self, now: int) -> bool:
        return any(token.active(now) for token in self._query().values())

    def version(self, now: int) -> object:
        """A value that changes when a token is made, revoked or expires, or the file is lost: for callers
        that must notice without checking each token."""
        try:
            active = frozenset(token.id for token in self._query().values() if token.active(now))
        except TidemillError:
            active = frozenset()
        return active

    def authenticate(self, authorization: str | None, now: int) -> Principal:
        """The principal of this header; AuthError if there is none."""
        if authorization is None:
            raise AuthError("a token is needed", hint=NEEDED)
        shown = _SHOWN.fullmatch(authorization.strip(" \t")) if len(authorization) < 1000 else None
        if shown is None:
            raise AuthError("the Authorization header has no Tidemill token", hint=NEEDED)
        id, secret = shown.group(1), shown.group(2)
        token = self._query().get(id)
        right = hmac.compare_digest(_digest(secret), _NOBODY if token is None else token.digest)
        if token is None or not right:
            raise AuthError("the token is not known", hint="check it for typing errors, or create another")
        # Only the owner of the secret learns why it is refused.
        if token.revoked is not None:
            raise AuthError(f"this token was revoked at {format_instant(token.revoked)}", hint=NEEDED)
        if not token.active(now):
            raise AuthError(f"this token expired at {format_instant(token.expires or 0)}", hint=NEEDED)
        return Principal(token.id, token.tenant, token.scopes, token.rate)

    def _query(self) -> Mapping[str, AccessToken]:
        seen, file_version = self._seen, version_of(self._path)
        lost = file_version is None and not seen.damage and was_written(self._path)
        if file_version != seen.file_version or lost:
            seen = self._seen = self._read(file_version)
        if seen.damage:
            raise unusable(self._path, seen.damage)
        return seen.tokens

    def _read(self, file_version: FileVersion | None) -> _SeenFile:
        before = self._seen
        try:
            file_version, found = read_tokens(self._path)
            if found or not (before.tokens or before.damage or was_written(self._path)):
                return _SeenFile(file_version, {token.id: token for token in found})
            damage = LOST
        except DamageError as error:
            damage = error.message
        if damage != before.damage:
            log.error("%s: %s", self._path, damage)
        return _SeenFile(file_version, {}, damage)


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _new_id(taken: set[str]) -> str:
    while (id := secrets.token_hex(_ID_BYTES)) in taken:
        pass
    return id


def _with_room(kept: tuple[AccessToken, ...], now: int) -> tuple[AccessToken, ...]:
    """With room for one more: at the limit, the oldest that no longer works is dropped."""
    if len(kept) < MAX_TOKENS:
        return kept
    over = next((token for token in kept if not token.active(now)), None)
    if over is None:
        raise InputError(
            f"there are {MAX_TOKENS:,} tokens that work", hint="revoke those that are no longer used"
        )
    return tuple(token for token in kept if token is not over)


def _ids(kept: Iterable[AccessToken], now: int) -> str:
    active = [token.id for token in kept if token.active(now)]
    named = ", ".join(active[:5]) + (", …" if len(active) > 5 else "")
    return (
        f"tokens that work: {named}; `tidemill token list` shows all"
        if active
        else "there are none that work"
    )
