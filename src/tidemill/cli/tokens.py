"""The commands about access to the server: token create, token list, token revoke."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command, group
from tidemill.cli.session import OK, Session
from tidemill.model.errors import InputError
from tidemill.model.time import format_instant, parse_duration
from tidemill.server.access import Tokens
from tidemill.server.access.grants import Scope

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access import AccessToken, Tokens

# Imports inside functions keep start-up short: a command loads only what it runs.

TOKEN = group("token", Panel.SERVE, "Who may use the server: create, list and revoke tokens.")


@command(
    "create",
    TOKEN,
    "tidemill token create --scope ingest --tenant acme --name edge --rate 5000 --expires 90d",
    "tidemill token create --scope admin --all-tenants",
)
def create(
    session: Session,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(metavar="SCOPE", help="ingest, read or admin, which includes both; may be repeated."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Only for this tenant.")] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", metavar="", help="For all tenants: an operator.")
    ] = False,
    name: Annotated[str, typer.Option(metavar="N", help="A name for people.")] = "",
    rate: Annotated[
        int | None, typer.Option(metavar="N", help="Events and requests a second; by default unlimited.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="D", help="How long it is valid, such as 90d; by default forever.")
    ] = None,
) -> int:
    """Create a token, and show it. It is shown only once, since only its hash is kept.

    From then on every request needs a token; a running server notices at once.
    """
    if (tenant is None) != all_tenants:
        raise InputError("a token is for one tenant or for all", hint="use --tenant NAME, or --all-tenants")
    now = _now()
    until = None if expires is None else now + parse_duration(expires)
    made, secret = _tokens(session).create(
        scope or [], tenant=tenant, name=name, rate=rate, expires=until, now=now
    )
    session.emit(
        lambda: {"token": secret, **_document(made, made.created)},
        lambda: views.tokens.created(made, secret),
    )
    return OK


@command("list", TOKEN, "tidemill token list", "tidemill token list --output json")
def list_tokens(session: Session) -> int:
    """List all tokens, including those that no longer work; the secrets are not stored."""
    found, now = _tokens(session).list(), _now()
    session.emit(
        lambda: {"tokens": [_document(one, now) for one in found]},
        lambda: views.tokens.tokens(found, now),
    )
    return OK


@command("revoke", TOKEN, "tidemill token revoke 4f9a1c0b7d22")
def revoke(
    session: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id, as `tidemill token list` shows it.")],
) -> int:
    """Revoke a token; a running server refuses it from the next request on."""
    revoked = _tokens(session).revoke(id, _now())
    session.emit(
        lambda: _document(revoked, revoked.revoked or revoked.created),
        lambda: views.tokens.revoked(revoked),
    )
    return OK


def _tokens(session: Session) -> Tokens:
    """The tokens of the warehouse; nothing else of it is opened."""
    from tidemill.config import load_project
    from tidemill.eventtime import registered
    from tidemill.storage.bucket_path import warehouse_path

    return Tokens(warehouse_path(load_project(session.settings.project, registered()).warehouse))


def _document(of: AccessToken, now: int) -> Document:
    return {
        "id": of.id,
        "name": of.name,
        "scopes": sorted(of.scopes),
        "tenant": of.tenant,
        "rate": of.rate,
        "created": format_instant(of.created),
        "expires": None if of.expires is None else format_instant(of.expires),
        "revoked": None if of.revoked is None else format_instant(of.revoked),
        "state": of.state(now),
    }


def _now() -> int:
    return time.time_ns() // 1000
