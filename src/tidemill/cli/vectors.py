"""Commands about vectors: vector, chain and deltas only read; compact shortens chains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import Limit, instant_of
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from tidemill.mill import Mill

StreamName = Annotated[str, typer.Argument(help="A stream of `kind: delta`.")]
VectorId = Annotated[str, typer.Argument(metavar="ID", help="The id of the vector, as its deltas spell it.")]
Tenant = Annotated[str | None, typer.Option(metavar="T", help="The tenant, if several have the vector.")]


@command(
    "vector",
    Panel.VECTORS,
    "tidemill vector embeddings doc-00017",
    "tidemill vector embeddings doc-00017 --at 2024-01-15T12:00:00Z --output json",
)
def vector(
    session: Session,
    stream: StreamName,
    id_: VectorId,
    at: Annotated[
        str | None, typer.Option(metavar="T", help="An instant: 2024-01-15T12:00:00Z. By default now.")
    ] = None,
    tenant: Tenant = None,
) -> int:
    """Show a vector now, or as it was at an instant: all deltas up to it, in order of event time.

    It is read from its checkpoint and later deltas, or from raw if the chain does not go back that far.
    """
    instant = instant_of(at)
    with session.mill() as mill:
        found = mill.vectors(stream, [id_], instant, tenant=tenant)
    document = documents.vectors.vector(stream, found, instant)
    session.emit(lambda: document, lambda: views.vectors.vector(document))
    return OK


@command("chain", Panel.VECTORS, "tidemill chain embeddings doc-00017")
def chain(session: Session, stream: StreamName, id_: VectorId, tenant: Tenant = None) -> int:
    """Show what a vector is made of: its checkpoints, pending deltas, and their sizes."""
    with session.mill() as mill:
        found = mill.chain(stream, id_, tenant=tenant)
    session.emit(lambda: documents.vectors.chain(found), lambda: views.vectors.chain(found))
    return OK


@command(
    "deltas",
    Panel.VECTORS,
    "tidemill deltas embeddings",
    "tidemill deltas embeddings --window 1h --from 2024-01-15T12:00:00Z --to 2024-01-15T13:00:00Z -o out/",
)
def deltas(
    session: Session,
    stream: StreamName,
    window: Annotated[
        str | None,
        typer.Option(metavar="D", help="Make batches of this width now; without aggregation_span, of 1h."),
    ] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="Only from here on …")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="… and before this.")] = None,
    tenant: Tenant = None,
    target: Annotated[
        str | None, typer.Option("-o", "--folder", metavar="PATH", help="Write each batch as an Arrow file.")
    ] = None,
    limit: Limit = 50,
) -> int:
    """Show the deltas of each window as one batch: how many arrived, how many are left merged, and the size.

    Those of a stream with an aggregation_span are its datasets, with revision, hash and trigger; with
    --window or --tenant they are made for this answer. A batch has each delta once, in order of time; only
    what changes no bit is merged, so that applied to any vectors it gives what all of its deltas give.
    """
    with session.mill() as mill:
        found = mill.chains.windows(
            stream,
            window,
            start,
            end,
            tenant=tenant,
            folder=None if target is None else Path(target),
            limit=None if target is not None else limit or None,
        )
    session.emit(
        lambda: documents.vectors.batches(stream, found), lambda: views.vectors.batches(stream, found)
    )
    return OK


@command("compact", Panel.VECTORS, "tidemill compact --explain", "tidemill compact embeddings")
def compact(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams of deltas.")] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", metavar="", help="Rebuild all chains from raw first.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")
    ] = False,
) -> int:
    """Merge what the strategy of a stream allows, regardless of its thresholds.

    `tidemill run` compacts by itself the chains that are long, old or full, unless `background` is false.
    No vector changes, now or at an instant that is kept.
    """
    if explain:
        with session.mill() as mill:
            now = mill.clock()
            plans = {name: mill.chains.plan(name, now, force=True) for name in _streams(mill, stream)}
        session.emit(lambda: documents.vectors.planned(plans), lambda: views.vectors.planned(plans))
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        done = {
            name: mill.chains.compact_now(name, mill.clock(), rebuild=rebuild)
            for name in _streams(mill, stream)
        }
    session.emit(lambda: documents.vectors.compacted(done), lambda: views.vectors.compacted(done))
    return OK


def _streams(mill: Mill, stream: str | None) -> list[str]:
    if stream is not None:
        return [mill.project.stream(stream).name]
    return [name for name, one in mill.project.streams.items() if one.kind == "delta"]
