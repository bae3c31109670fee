"""Views of tokens. A secret is shown once, by the command that made it; the stored digest never is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import Note, View, line, listing
from tidemill.model.time import format_instant

if TYPE_CHECKING:
    from tidemill.server.access import AccessToken


def created(token: AccessToken, secret: str) -> View:
    yield line("created ", (token.id, "bold"), f": {_allowed(token)}")
    yield line((secret, "bold"))
    yield Note("keep it now: it is not shown again; send it as `Authorization: Bearer tm_…`")


def tokens(tokens: Sequence[AccessToken], now: int) -> View:
    if not tokens:
        yield line("no tokens")
        yield Note("without one, the server is open to this machine and to no other")
        return
    table = listing("id", "name", "scopes", "tenant", "rate", "created", "expires", "state", right=("rate",))
    for token in tokens:
        cells = (
            token.id,
            escaped(token.name),
            ", ".join(sorted(token.scopes)),
            "all" if token.tenant is None else escaped(token.tenant),
            "" if token.rate is None else f"{token.rate:,}/s",
            format_instant(token.created),
            "" if token.expires is None else format_instant(token.expires),
            token.state(now),
        )
        table.add_row(*map(Text, cells))
    yield table


def revoked(token: AccessToken) -> View:
    yield line("revoked ", (token.id, "bold"), f": {_allowed(token)}")


def _allowed(token: AccessToken) -> str:
    tenants = "all tenants" if token.tenant is None else f"tenant {escaped(token.tenant)}"
    rate = "" if token.rate is None else f", {token.rate:,} events a second"
    until = "" if token.expires is None else f", until {format_instant(token.expires)}"
    return f"{' and '.join(sorted(token.scopes))} for {tenants}{rate}{until}"
