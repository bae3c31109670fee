"""Commands about windows: windows, timeline and window only read; rebuild, retry and build build them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import DIFFERENCES, OK, Session
from tidemill.cli.settings import From, Limit, MetricsPort, To, Wait, instant_of, pause_of, span_of
from tidemill.cli.signals import until_stopped
from tidemill.model.errors import InputError
from tidemill.model.time import SECOND, Interval, parse_instant, since_when
from tidemill.model.windows import WindowKey, WindowStatus
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from tidemill.mill import Mill
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.datasets.reader import RebuildStep

# Imports inside functions keep start-up short: a command loads only what it runs.

StreamName = Annotated[str, typer.Argument(help="A stream that declares an aggregation_span.")]
OneWindow = Annotated[
    str | None, typer.Option("--window", metavar="START", help="Only the window that holds this instant.")
]
RebuildFrom = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="T", help="Only windows that start, or events that happened, here or later …"
    ),
]
RebuildTo = Annotated[str | None, typer.Option("--to", metavar="T", help="… and before this.")]
RollupsOnly = Annotated[
    bool, typer.Option("--rollups", metavar="", help="No windows: rebuild the rollups from raw.")
]
IndexOnly = Annotated[
    bool, typer.Option("--index", metavar="", help="No windows: rebuild the index from raw.")
]
ResultsOnly = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="WINDOW",
        help="No windows: rebuild damaged results of this streaming window from raw.",
    ),
]
ColumnsOnly = Annotated[
    bool,
    typer.Option(
        "--columns", metavar="", help="No windows: make the columns of raw as the schema declares them."
    ),
]
IncludeLate = Annotated[
    bool, typer.Option("--include-late", metavar="", help="Include slices that arrived too late.")
]
Explain = Annotated[bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")]


@command(
    "windows",
    Panel.WINDOWS,
    "tidemill windows",
    "tidemill windows weather --state waiting",
    "tidemill windows weather --from 2024-01-15T00:00:00Z --to 2024-01-16T00:00:00Z --limit 0",
)
def windows(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    state: Annotated[WindowStatus | None, typer.Option(help="Only windows in this state.")] = None,
    start: From = None,
    end: To = None,
    limit: Limit = 50,
) -> int:
    """List windows, the newest first: the state of each, and the reason why one is not ready.

    A window waits until its cutoff (its end and the stream's subject_to_change_window) and until slices
    cover it without a gap. final: nothing that still arrives changes it; built: it may.
    """
    with session.mill() as mill:
        found = mill.windows.windows(
            stream, state, span=span_of(start, end), limit=limit + 1 if limit else None
        )
    shown = found[:limit] if limit else found
    more = len(found) > len(shown)
    session.emit(
        lambda: documents.windows.listed(shown, more=more), lambda: views.windows.listed(shown, more=more)
    )
    return OK


@command(
    "timeline",
    Panel.WINDOWS,
    "tidemill timeline weather",
    "tidemill timeline weather --from 2024-01-15T00:00:00Z --to 2024-02-01T00:00:00Z --output json",
)
def timeline(
    session: Session,
    stream: StreamName,
    start: From = None,
    end: To = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Windows and slices that are listed one by one.")
    ] = 2000,
) -> int:
    """Show windows over time: each with its state or, if there are more than --limit, how many of each state;
    the slices beside them, and what no slice covers."""
    with session.mill() as mill:
        span = span_of(start, end)
        bounds = (None, None) if span is None else (span.start, span.end)
        found = mill.timeline(stream, start=bounds[0], end=bounds[1], limit=limit)
        now, watermark = mill.clock(), mill.watermark(stream)
        cutoff = now - mill.project.stream(stream).subject_to_change_window
    session.emit(
        lambda: documents.windows.timeline(found, stream, now, cutoff, watermark),
        lambda: views.windows.timeline(found),
    )
    return OK


@command(
    "window",
    Panel.WINDOWS,
    "tidemill window weather 2024-01-15T13:00:00Z",
    "tidemill window weather 2024-01-15T13:00:00Z --changes --old 1 --new 3",
    "tidemill window weather 2024-01-15T13:00:00Z --as-of 2024-01-15T15:00:00Z",
)
def window(
    session: Session,
    stream: StreamName,
    at: Annotated[
        str, typer.Argument(metavar="START", help="Its start, or any instant in it: 2024-01-15T13:00:00Z.")
    ],
    changes: Annotated[
        bool, typer.Option("--changes", metavar="", help="Show what changed from one revision to another.")
    ] = False,
    old: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="From this revision; 0 is the empty dataset.")
    ] = None,
    new: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="To this one; by default the newest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Changed rows that are shown.")] = 50,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="T", help="Its dataset at this instant of arrival, or so long ago."),
    ] = None,
) -> int:
    """Explain one window: its state and cutoff, each slice that touches it with its arrival and whether it
    counts, and every revision on disk with its hash. With --changes: the rows that came and went between two
    revisions. With --as-of: which revision was its dataset then."""
    if not changes and (old is not None or new is not None):
        raise InputError("--old and --new are for --changes", hint="add --changes")
    with session.mill() as mill:
        if as_of is not None:
            then = mill.windows.as_of(stream, parse_instant(at), since_when(as_of, mill.clock()))
            session.emit(
                lambda: documents.windows.past_dataset(then), lambda: views.windows.past_dataset(then)
            )
            return OK
        if changes:
            changed = mill.window_changes(stream, parse_instant(at), old=old, new=new, limit=limit)
            session.emit(
                lambda: {**documents.windows.changes(changed), "more": changed.more},
                lambda: views.windows.changes(changed),
            )
            return OK
        found = mill.windows.window(stream, parse_instant(at))
    session.emit(lambda: documents.windows.details(found), lambda: views.windows.details(found))
    return OK


@command(
    "rebuild",
    Panel.WINDOWS,
    "tidemill rebuild weather --window 2024-01-15T13:00:00Z --explain",
    "tidemill rebuild weather --from 2024-01-15T00:00:00Z --to 2024-01-16T00:00:00Z",
    "tidemill rebuild weather --window 2024-01-15T13:00:00Z --include-late",
    "tidemill rebuild requests --rollups --index",
    "tidemill rebuild requests --results visits",
    "tidemill rebuild requests --columns",
)
def rebuild(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")],
    at: OneWindow = None,
    start: RebuildFrom = None,
    end: RebuildTo = None,
    rollups: RollupsOnly = False,
    index: IndexOnly = False,
    results: ResultsOnly = None,
    columns: ColumnsOnly = False,
    include_late: IncludeLate = False,
    explain: Explain = False,
) -> int:
    """Build windows again, each as a new revision; without --window, --from and --to all of the stream.

    A window that is not ready stays as it is, and the plan says why. The exit code is 1 if one could not be
    built. With --rollups or --index these are rebuilt from raw instead, byte by byte the same; tiles whose
    raw has expired are sealed and stay. With --results it rebuilds results of a streaming window whose
    files were deleted or damaged. With --columns the columns of raw are made of its payloads where the schema
    was another when they were written; rounds do the same bit by bit, and `status` says what is left.
    """
    if columns:
        if any((at, start, end, include_late, rollups, index, results)):
            raise InputError(
                "--columns takes no other option but --explain", hint=f"tidemill rebuild {stream} --columns"
            )
        return _remake_columns(session, stream, explain=explain)
    if results is not None:
        if (at, start, end) != (None, None, None) or include_late or rollups or index or explain:
            raise InputError(
                "--results takes no other option", hint=f"tidemill rebuild {stream} --results NAME"
            )
        return _rebuild_results(session, stream, results)
    if rollups or index:
        if at is not None or include_late:
            raise InputError(
                "--window and --include-late are about windows, --rollups and --index are not",
                hint="use --rollups, --index or both with --from T --to T, or leave them out",
            )
        return _remake(session, stream, start, end, rollups=rollups, index=index, explain=explain)
    if at is not None and (start is not None or end is not None):
        raise InputError(
            "--window is one window, --from and --to are several",
            hint="use --window START, or --from T --to T",
        )

    def plan(mill: Mill) -> Sequence[RebuildStep]:
        span = _window_at(mill, stream, at) if at is not None else span_of(start, end)
        return mill.windows.plan_rebuild(stream, span, include_late=include_late)

    return _explain_windows(session, stream, plan) if explain else _rebuild_windows(session, stream, plan)


def _rebuild_results(session: Session, stream: str, window: str) -> int:
    with session.working() as progress, session.mill(progress) as mill:
        made = mill.remake.results(stream, window)
    session.emit(
        lambda: documents.results.flushed({stream: [made]}), lambda: views.results.rebuilt(stream, made)
    )
    return OK


def _explain_windows(session: Session, stream: str, plan: Callable[[Mill], Sequence[RebuildStep]]) -> int:
    with session.mill() as mill:
        steps = plan(mill)
    session.emit(
        lambda: documents.windows.rebuild_plan(stream, steps),
        lambda: views.windows.rebuild_plan(stream, steps),
    )
    return OK


def _rebuild_windows(session: Session, stream: str, plan: Callable[[Mill], Sequence[RebuildStep]]) -> int:
    with session.working() as progress, session.mill(progress) as mill:
        steps = plan(mill)
        outcomes = mill.rebuild(steps)
    session.emit(
        lambda: documents.windows.rebuilt(stream, steps, outcomes),
        lambda: views.windows.rebuilt(stream, steps, outcomes),
    )
    return DIFFERENCES if any(outcome.error is not None for outcome in outcomes) else OK


def _remake_columns(session: Session, stream: str, *, explain: bool) -> int:
    from tidemill.raw.compaction.column_rewrite import RemadeColumns

    if explain:
        with session.mill() as mill:
            left = mill.packer.stale(mill.project.stream(stream).name)
        done = RemadeColumns(0, 0, left)
    else:
        with session.working() as progress, session.mill(progress) as mill:
            done = mill.remake.columns(stream)
    session.emit(
        lambda: documents.operations.columns(stream, done), lambda: views.windows.columns(stream, done)
    )
    return OK


def _remake(
    session: Session, stream: str, start: str | None, end: str | None, *,
    rollups: bool, index: bool, explain: bool,
) -> int:  # fmt: skip
    from tidemill.pipeline.documents.operations import Remaking, by_level

    if explain:
        with session.mill() as mill:
            plan = mill.remake.plan(stream, start, end, rollups=rollups, index=index)
        would = Remaking(plan.tiles if rollups else None, plan.sealed, plan.parts if index else None)
        session.emit(
            lambda: documents.operations.remade(stream, would, done=False),
            lambda: views.windows.remade(stream, would, done=False),
        )
        if plan.pending:
            session.note(f"what waits comes first: {plan.pending:,} landed, not accepted yet")
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        # both are checked before one is done: a stream may have only one of them
        mill.remake.plan(stream, start, end, rollups=rollups, index=index)
        tiles = mill.remake.rollups(stream, start, end) if rollups else None
        parts = mill.remake.index(stream, start, end) if index else None
    made = Remaking(
        by_level(tiles.tiles) if tiles is not None else None,
        tiles.sealed if tiles is not None else 0,
        parts.built if parts is not None else None,
    )
    session.emit(
        lambda: documents.operations.remade(stream, made, done=True),
        lambda: views.windows.remade(stream, made, done=True),
    )
    return OK


def _window_at(mill: Mill, stream: str, at: str) -> Interval:
    """The window that holds an instant, by its start."""
    key = mill.windows.window(stream, parse_instant(at)).view.window.key
    return Interval(key.start, key.start + 1)


@command(
    "retry",
    Panel.WINDOWS,
    "tidemill retry weather",
    "tidemill retry weather --window 2024-01-15T13:00:00Z",
    "tidemill retry weather --slices",
)
def retry(
    session: Session,
    stream: StreamName,
    at: Annotated[
        str | None, typer.Option("--window", metavar="START", help="Only the window that holds this instant.")
    ] = None,
    slices: Annotated[
        bool, typer.Option("--slices", metavar="", help="No windows: slices that cannot be read.")
    ] = False,
) -> int:
    """Give windows that were set aside as failed new attempts; `windows --state failed` lists them.

    With --slices the next round tries all slices that could not be read; `ledger --status failed` lists
    them.
    """
    if slices and at is not None:
        raise InputError("--slices and --window cannot be combined", hint="give one of them")
    with session.mill() as mill:
        if slices:
            count = mill.state.prioritise(mill.project.stream(stream).name)
            session.emit(
                lambda: {"stream": stream, "slices": count},
                lambda: views.windows.slices_retried(stream, count),
            )
            return OK
        count = mill.windows.retry(stream, instant_of(at))
    session.emit(lambda: {"stream": stream, "retried": count}, lambda: views.windows.retried(stream, count))
    return OK


@command(
    "build",
    Panel.WINDOWS,
    "tidemill build",
    "tidemill build --once --concurrency 4",
    "tidemill build --metrics-port 9465 --output json",
)
def build(
    session: Session,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Stop when there is nothing to take from the queue.")
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=256, metavar="N", help="Windows built at once. By default as declared."),
    ] = None,
    interval: Wait = "1s",
    metrics_port: MetricsPort = None,
) -> int:
    """Build queued windows beside `run`, in as many processes as you like, until Ctrl-C or SIGTERM.

    Leases keep builders apart: a window is built by one of them, and by another if that one dies. Prints a
    line for each try. With --once the exit code is 1 if a window could not be built.
    """
    wait = pause_of(interval)
    failed: set[WindowKey] = set()

    with session.working() as progress:

        def work(stop: threading.Event) -> None:
            with session.mill(progress) as mill, session.measured(mill, metrics_port) as meter:

                def print_outcomes(outcomes: Sequence[BuildOutcome]) -> None:
                    if meter is not None:
                        meter.builds(outcomes)
                    for outcome in outcomes:
                        _print_outcome(session, outcome)
                        (failed.discard if outcome.error is None else failed.add)(outcome.key)

                if not once:
                    from tidemill.storage.bucket_path import location

                    session.note(f"building for {location(mill.project.warehouse)}; Ctrl-C stops")
                # if it is declared as 0, building is left to processes like this one
                at_once = concurrency or max(1, mill.project.builder.concurrency)
                mill.build(stop, wait / SECOND, print_outcomes, at_once, once=once)

        until_stopped(work)
    return DIFFERENCES if once and failed else OK


def _print_outcome(session: Session, outcome: BuildOutcome) -> None:
    session.emit(lambda: documents.windows.outcome(outcome), lambda: views.windows.built(outcome))
