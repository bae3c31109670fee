"""What commands say of tokens: the part of both outputs that knows these words.

A secret is printed by whoever made it, once; what is kept of a token, its digest, never is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.model.time import format_instant

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Plain
    from tidemill.server.access import Token


class AccessOutput(Protocol):
    """One method for each thing that a command can say of tokens."""

    def created(self, token: Token, secret: str) -> None: ...
    def tokens(self, tokens: Sequence[Token], now: int) -> None: ...
    def revoked(self, token: Token) -> None: ...


class JsonAccess:
    """One document a command."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def created(self, token: Token, secret: str) -> None:
        self._print({"token": secret, **_plain(token, token.created)})

    def tokens(self, tokens: Sequence[Token], now: int) -> None:
        self._print({"tokens": [_plain(token, now) for token in tokens]})

    def revoked(self, token: Token) -> None:
        self._print(_plain(token, token.revoked or token.created))


class TextAccess:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def created(self, token: Token, secret: str) -> None:
        self._say.line("created ", (token.id, "bold"), f": {_allowed(token)}")
        self._say.line((secret, "bold"))
        self._say.note("keep it now: it is not shown again; send it as `Authorization: Bearer tm_…`")

    def tokens(self, tokens: Sequence[Token], now: int) -> None:
        from rich.text import Text

        from tidemill.cli.tables import listing

        if not tokens:
            self._say.line("no tokens")
            self._say.note("without one, the server is open to this machine and to no other")
            return
        table = listing(
            "id", "name", "scopes", "tenant", "rate", "created", "expires", "state", right=("rate",)
        )
        for token in tokens:
            cells = (
                token.id,
                shown(token.name),
                ", ".join(sorted(token.scopes)),
                "all" if token.tenant is None else shown(token.tenant),
                "" if token.rate is None else f"{token.rate:,}/s",
                format_instant(token.created),
                "" if token.expires is None else format_instant(token.expires),
                _state(token, now),
            )
            table.add_row(*map(Text, cells))
        self._say.table(table)

    def revoked(self, token: Token) -> None:
        self._say.line("revoked ", (token.id, "bold"), f": {_allowed(token)}")


def _allowed(token: Token) -> str:
    whose = "all tenants" if token.tenant is None else f"tenant {shown(token.tenant)}"
    rate = "" if token.rate is None else f", {token.rate:,} events a second"
    until = "" if token.expires is None else f", until {format_instant(token.expires)}"
    return f"{' and '.join(sorted(token.scopes))} for {whose}{rate}{until}"


def _state(token: Token, now: int) -> str:
    if token.revoked is not None:
        return "revoked"
    return "active" if token.active(now) else "expired"


def _plain(token: Token, now: int) -> Plain:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "tenant": token.tenant,
        "rate": token.rate,
        "created": format_instant(token.created),
        "expires": None if token.expires is None else format_instant(token.expires),
        "revoked": None if token.revoked is None else format_instant(token.revoked),
        "state": _state(token, now),
    }
