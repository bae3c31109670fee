"""Whose events a question on the command line is about: those of one tenant, unless all are asked for.

It looks at the declaration and at the statistics of a table; it never reads an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.model.errors import InputError

if TYPE_CHECKING:
    from tidemill.mill import Mill

Tenant = Annotated[str | None, typer.Option(metavar="T", help="Only the events of this tenant.")]
AllTenants = Annotated[
    bool, typer.Option("--all-tenants", metavar="", help="The events of all tenants together.")
]


def tenant_of(mill: Mill, stream: str, table: str, tenant: str | None, *, everyone: bool) -> str | None:
    """The tenant, None for all of them. Who names none means the only one that the stream's table has."""
    if everyone:
        if tenant is not None:
            raise InputError(
                "--tenant is one of them, --all-tenants all", hint="use --tenant NAME, or --all-tenants"
            )
        return None
    if tenant is not None:
        return tenant
    declared = mill.project.stream(stream).tenant
    return declared.value if declared.value is not None else _only_one(mill, stream, table)


def _only_one(mill: Mill, stream: str, table: str) -> str | None:
    """None: the table has none yet, so that all of them are no more."""
    found = mill.snapshot(table, stream)
    parts = [part for part in found.parts if part.rows] if found is not None else []
    bounds = {side.get("tenant") for part in parts for side in (part.mins, part.maxs)}
    if len(bounds) > 1 or None in bounds:
        raise InputError(
            f"stream {stream!r} has events of several tenants",
            hint="--tenant NAME for one of them, --all-tenants for all",
        )
    return str(bounds.pop()) if bounds else None
