"""Views of windows and builds.

Only `Text` goes into a cell, so that nothing from outside is read as markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import (
    ID_LETTERS,
    PHASE_STYLES,
    Note,
    Piece,
    View,
    cell,
    level_words,
    line,
    listing,
    many,
    newest_note,
    number,
    pairs_table,
    size,
)
from tidemill.cli.views.status import slice_table
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, format_duration, format_instant
from tidemill.model.windows import Dataset, Member, Window, WindowKey, WindowStatus
from tidemill.pipeline.documents import windows as documents
from tidemill.pipeline.documents.shapes import took

if TYPE_CHECKING:
    from tidemill.model.slices import SliceEntry
    from tidemill.outputs.datasets.as_of import PastDataset
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.datasets.changes import RevisionChanges
    from tidemill.outputs.datasets.reader import RebuildStep, WindowStory, WindowView
    from tidemill.outputs.datasets.timeline import Timeline
    from tidemill.pipeline.documents.operations import Remaking
    from tidemill.raw.compaction.column_rewrite import RemadeColumns

STEPS_SHOWN: Final = 100  # of a plan, in a table


def listed(views: Sequence[WindowView], *, more: bool) -> View:
    if not views:
        yield line("no windows")
        return
    yield _windows(views)
    if more:
        yield newest_note(len(views))
    for reason, remedy in {view.reason: view.remedy for view in reversed(views)}.items():
        if remedy is not None:
            yield Note(f"{reason}: {remedy}")


def details(of: WindowStory) -> View:
    window = of.view.window
    yield pairs_table(f"{window.key.stream} {window.key.interval}", list(_story_pairs(of)))
    if of.members:
        yield _members(of)
    if of.revisions:
        yield _revisions(of.revisions, window)


def past_dataset(of: PastDataset) -> View:
    """What a dataset was at an instant of arrival."""
    found = of.revision
    if found is None:
        yield line(f"no dataset that is kept was there at {format_instant(of.at)}")
    else:
        data = found.dataset
        since = format_instant(found.since)
        yield line(f"revision {data.revision}, {many(data.rows, 'row')}, since {since}: {data.file}")
        yield line("it is the newest" if not of.changed else "it is another now")
    for name in of.slices_after:
        yield line(("  came later ", "yellow"), name)
    for name in of.not_built:
        yield line(("  had arrived, and was built later ", "yellow"), name)
    if of.reaches_back_to is not None:
        yield Note(f"revisions that are kept reach back to {format_instant(of.reaches_back_to)}")


def timeline(of: Timeline) -> View:
    if not of.total:
        yield line("no windows")
        return
    if of.windows is not None:
        yield _states((one.start, one.start + of.width, {status: 1}) for one, status in of.windows)
    else:
        pieces = of.stretches or ()
        yield _states((one.start, one.start + of.stretch, one.counts) for one in pieces)
    yield line(f"{many(of.total, 'window')}, {many(of.slices_total, 'slice')}, {many(len(of.gaps), 'gap')}")
    for gap in of.gaps[:STEPS_SHOWN]:
        yield line(("  gap ", "yellow"), str(gap))


def _states(pieces: Iterable[tuple[int, int, Mapping[WindowStatus, int]]]) -> Table:
    table = listing("start", "end", "windows")
    for start, end, counts in pieces:
        words = [
            (f"{status.value}{f' {count:,}' if count > 1 else ''} ", PHASE_STYLES[status.value])
            for status, count in counts.items()
        ]
        table.add_row(Text(format_instant(start)), Text(format_instant(end)), Text.assemble(*words))
    return table


def changes(of: RevisionChanges) -> View:
    yield line(
        (f"{of.key.stream} {of.key.interval}", "bold"),
        f"  revision {of.old_revision} to {of.new.revision}: "
        f"{of.added:,} rows added, {of.removed:,} removed, {of.unchanged:,} unchanged",
    )
    if of.rows:
        table = listing("change", *of.columns)
        for change, row in of.rows:
            style = "green" if change == "added" else "red"
            table.add_row(Text(change, style=style), *(Text(escaped(cell(row[name]))) for name in of.columns))
        yield table
    if of.more:
        yield Note(f"the first {len(of.rows)} changed rows; --limit shows more")


def rebuild_plan(stream: str, steps: Sequence[RebuildStep]) -> View:
    yield from _steps(stream, steps, None)


def rebuilt(stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[BuildOutcome]) -> View:
    yield from _steps(stream, steps, outcomes)
    builds = {step.key for step in steps if step.action == "build"}
    if builds - {outcome.key for outcome in outcomes}:
        yield Note("what is left in the queue is for `tidemill run` or another builder")


def _steps(stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[BuildOutcome] | None) -> View:
    if not steps:
        yield line(f"{escaped(stream)} has no windows to rebuild")
        return
    failed = {outcome.key for outcome in outcomes or () if outcome.error is not None}
    chosen = sorted(steps, key=lambda step: step.key not in failed)[:STEPS_SHOWN]
    yield _step_table(sorted(chosen, key=lambda step: step.key), outcomes)
    if len(steps) > len(chosen):
        counts = Counter(step.action for step in steps)
        summary = ", ".join(f"{action} {count:,}" for action, count in sorted(counts.items()))
        yield Note(f"{len(chosen)} of {len(steps):,} windows ({summary}); --output json has all")


def slice_with_windows(of: SliceEntry, windows: Sequence[tuple[Window, Member]], total: int) -> View:
    yield slice_table(of)
    if windows:
        yield _touched(windows)
    if total > len(windows):
        yield Note(f"the first {len(windows)} of {total:,} windows; --limit 0 shows all")


def built(of: BuildOutcome) -> View:
    yield line(*build_pieces(of))


def build_pieces(of: BuildOutcome) -> Iterator[Piece]:
    """Return the outcome of one attempt to build a window."""
    yield (f"{of.key.stream} {of.key.interval}", "cyan")
    if of.error is not None:
        yield (f"  try {of.attempt} failed: {escaped(of.error)}", "red")
    elif of.dataset is None or of.lost:
        yield ("  built, but another builder was faster", "yellow")
    else:
        built = of.dataset
        slices = many(len(built.slices), "slice")
        yield f"  revision {built.revision}, {many(built.rows, 'row')} of {slices}: {escaped(of.trigger)}"
    yield (f"; {took(of.seconds)}", "dim")


def remade(stream: str, of: Remaking, *, done: bool) -> View:
    """Yield what is rebuilt from raw, or would be."""
    made = "made again" if done else "to make again"
    if of.tiles is not None:
        tiles = many(sum(of.tiles.values()), "tile")
        levels = f" ({level_words(of.tiles)})" if of.tiles else ""
        sealed = f"; {many(of.sealed, 'tile')} of 5s sealed: raw is gone" if of.sealed else ""
        yield line((f"{stream} rollups", "bold"), f": {tiles}{levels} {made}{sealed}")
    if of.parts is not None:
        yield line((f"{stream} index", "bold"), f": {many(of.parts, 'part')} {made}")


def columns(stream: str, done: RemadeColumns) -> View:
    """What was made again of the columns of raw, and what is left."""
    words = f"{many(done.rows, 'row')} in {many(done.parts, 'part')} made again"
    left = f"; {many(done.left.rows, 'row')} in {many(done.left.parts, 'part')} to make again"
    yield line((f"{stream} columns", "bold"), f": {words}{left if done.left.parts else ''}")


def retried(stream: str, count: int) -> View:
    if not count:
        yield line(f"{escaped(stream)} has no failed windows")
        return
    yield line(f"{many(count, 'window')} of {escaped(stream)} back in the queue, with all tries")
    yield Note("`tidemill run` or `tidemill build` builds what is queued")


def slices_retried(stream: str, count: int) -> View:
    if not count:
        yield line(f"{escaped(stream)} has no failed slices")
        return
    yield line(f"{many(count, 'slice')} of {escaped(stream)} to be tried again")
    yield Note("the next round of `tidemill run` tries them")


def about(us: int) -> str:
    """Return a duration rounded for people: days without seconds, seconds without microseconds."""
    unit = 1 if us < SECOND else SECOND if us < HOUR else MINUTE if us < DAY else HOUR
    return format_duration(us - us % unit)


def _state(word: str) -> Text:
    return Text(word, style=PHASE_STYLES.get(word, ""))


def _start(us: int) -> Text:
    return Text(format_instant(us))


def _windows(views: Sequence[WindowView]) -> Table:
    table = listing(
        "stream", "start", "end", "state", "why", "desired", "observed", "ignored", "rejected", "rev", "rows",
        "age",
        right=("desired", "observed", "ignored", "rejected", "rev", "rows", "age"),
    )  # fmt: skip
    for of in views:
        window = of.window
        table.add_row(
            Text(window.key.stream),
            _start(window.key.start),
            _start(window.key.end),
            _state(of.status.value),
            Text(escaped(of.detail or of.reason or "")),
            number(of.desired),
            number(of.observed),
            number(of.ignored),
            Text(number(of.rejected or None), style="yellow"),
            number(window.revision or None),
            number(window.rows),
            about(of.age),
        )
    return table


def _story_pairs(of: WindowStory) -> Iterator[tuple[str, Text]]:
    view, rules = of.view, of.rules
    window = view.window
    yield "state", _state(view.status.value)
    if view.detail or view.reason:
        yield "why", Text(escaped(view.detail or view.reason or ""), style="yellow")
    if view.remedy:
        yield "remedy", Text(view.remedy)
    waits = f"{format_instant(documents.cutoff(of))}, {format_duration(rules.stc)} after its end"
    yield "cutoff", Text("none: it is built without waiting" if rules.allow_incomplete else waits)
    if rules.max_lateness or rules.allow_incomplete:
        yield "slices count", Text(f"until {format_instant(of.cutoff)}")
    slices = f"{view.desired:,} desired, {view.observed:,} observed, {view.ignored:,} ignored"
    yield "slices", Text(slices)
    if view.rejected:
        summary = f"{many(view.rejected, 'record')} of its slices: `tidemill quarantine` shows them"
        yield "rejected", Text(summary, style="yellow")
    if window.sealed is not None:
        yield "sealed", Text(f"slices up to #{window.sealed} of the ledger count, although they came late")
    yield "desired", Text(window.desired or "not evaluated yet")
    yield "observed", Text(window.observed or "none", style="" if view.current else "yellow")
    if window.revision:
        yield "revision", Text(f"{window.revision}, {_built(window)}")
    if window.trigger:
        yield "last trigger", Text(escaped(window.trigger))
    if window.attempts:
        yield "tries", Text(f"{window.attempts:,}")
    if window.error:
        yield "last error", Text(escaped(window.error), style="red")
    if window.owner:
        until = format_instant(window.lease_until or 0)
        yield "builder", Text(f"{escaped(window.owner)}, its lease runs until {until}")
    yield "age", Text(about(view.age))


def _built(window: Window) -> str:
    if window.file is None:
        return "withdrawn"
    when = "" if window.built_at is None else f", built at {format_instant(window.built_at)}"
    return many(window.rows or 0, "row") + when


def _members(of: WindowStory) -> Table:
    table = listing("#", "slice", "arrived", "covers", "counts", "why", "built in", right=("#",))
    for member in of.members:
        word, why = member_words(member, documents.cutoff(of))
        table.add_row(
            str(member.seq),
            Text(short_name(member), style="bold"),
            _start(member.arrival),
            Text(str(member.bounds) if member.bounds else "nothing"),
            Text(word, style={"used": "green", "ignored": "yellow"}.get(word, "")),
            Text(why),
            Text("yes" if member.observed else "no"),
        )
    return table


def short_name(member: Member) -> str:
    """Return the start of the id; with the number of the change after a retraction changed its content."""
    return member.slice[:ID_LETTERS] + member.name.removeprefix(member.slice)


def member_words(member: Member, cutoff: int) -> tuple[str, str]:
    """Return whether a slice counts for a window, and why."""
    after = member.arrival - cutoff
    if member.ignored is not None:
        late_by = f": it came {about(after)} after the cutoff" if after > 0 else ""
        return "ignored", escaped(member.ignored) + late_by
    if not member.desired:
        return "open", "not evaluated yet; the next round does"
    if after > 0:
        return "used", f"came {about(after)} after the cutoff, but the window was still open for it"
    return "used", "came by the cutoff"


def _revisions(datasets: Sequence[Dataset], window: Window) -> Table:
    table = listing(
        "rev", "rows", "bytes", "slices", "hash", "file", right=("rev", "rows", "bytes", "slices")
    )
    for one in datasets:
        current = one.revision == window.revision and documents.is_current(window)
        table.add_row(
            Text(str(one.revision), style="bold green" if current else ""),
            number(one.rows),
            size(one.bytes),
            number(len(one.slices)),
            Text(one.hash[:ID_LETTERS]),
            Text(escaped(one.file)),
        )
    return table


def _touched(pairs: Sequence[tuple[Window, Member]]) -> Table:
    table = listing("start", "end", "state", "counts", "built in")
    for window, member in pairs:
        ignored = f"ignored: {escaped(member.ignored)}" if member.ignored is not None else None
        table.add_row(
            _start(window.key.start),
            _start(window.key.end),
            _state(window.phase.value),
            Text(ignored or ("used" if member.desired else "not evaluated yet")),
            Text("yes" if member.observed else "no"),
        )
    return table


def _step_table(steps: Sequence[RebuildStep], outcomes: Sequence[BuildOutcome] | None) -> Table:
    """Return the plan; after a run, with the outcome of each step."""
    ran = outcomes is not None
    table = listing(
        "stream", "start", "end", "do", "revision", "slices", "why", *(["outcome"] if ran else []),
        right=("slices",),
    )  # fmt: skip
    found = documents.last_of(outcomes or ())
    for one in steps:
        builds = one.action == "build"
        late = f" ({one.late:,} late)" if one.late else ""
        table.add_row(
            Text(one.key.stream),
            _start(one.key.start),
            _start(one.key.end),
            Text(one.action, style="green" if builds else "yellow"),
            f"{one.revision} -> {one.next_revision}" if builds else str(one.revision),
            f"{one.slices:,}{late}",
            Text(escaped(one.reason)),
            *([_outcome(one, found)] if ran else []),
        )
    return table


def _outcome(step: RebuildStep, found: Mapping[WindowKey, BuildOutcome]) -> Text:
    of = found.get(step.key)
    if of is None:
        return Text("left in the queue" if step.action == "build" else "")
    if of.error is not None:
        return Text(f"try {of.attempt} failed: {escaped(of.error)}", style="red")
    if of.lost or of.dataset is None:
        return Text("another builder was faster", style="yellow")
    return Text(f"revision {of.dataset.revision}, {many(of.dataset.rows, 'row')}", style="green")
