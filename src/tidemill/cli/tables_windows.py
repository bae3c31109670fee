"""Windows, datasets and builds as Rich tables and lines for people.

Only `Text` goes into a cell, so that nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.shown import shown
from tidemill.cli.tables import ID_LETTERS, PHASE_STYLES, Piece, listing, many, pairs_table, size
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, format_duration, format_instant
from tidemill.model.windows import Dataset, Member, Window, WindowKey
from tidemill.outputs.datasets.damage import damage_of, repair_command
from tidemill.pipeline.documents import windows as plain_windows

if TYPE_CHECKING:
    from tidemill.outputs.datasets.builder import Outcome
    from tidemill.outputs.datasets.reader import RebuildStep, WindowStory, WindowView


def about(us: int) -> str:
    """A duration for people: nobody reads the seconds of an age in days, nor its microseconds."""
    unit = 1 if us < SECOND else SECOND if us < HOUR else MINUTE if us < DAY else HOUR
    return format_duration(us - us % unit)


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _state(word: str) -> Text:
    return Text(word, style=PHASE_STYLES.get(word, ""))


def _start(us: int) -> Text:
    return Text(format_instant(us))


def window_table(views: Sequence[WindowView]) -> Table:
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
            _state(of.standing.value),
            Text(shown(of.detail or of.reason or "")),
            number(of.desired),
            number(of.observed),
            number(of.ignored),
            Text(number(of.rejected or None), style="yellow"),
            number(window.revision or None),
            number(window.rows),
            about(of.age),
        )
    return table


def story_tables(of: WindowStory) -> Iterator[Table]:
    window = of.view.window
    yield pairs_table(f"{window.key.stream} {window.key.interval}", list(_story_pairs(of)))
    if of.members:
        yield _members(of)
    if of.revisions:
        yield _revisions(of.revisions, window)


def _story_pairs(of: WindowStory) -> Iterator[tuple[str, Text]]:
    view, rules = of.view, of.rules
    window = view.window
    yield "state", _state(view.standing.value)
    if view.detail or view.reason:
        yield "why", Text(shown(view.detail or view.reason or ""), style="yellow")
    if view.remedy:
        yield "remedy", Text(view.remedy)
    waits = f"{format_instant(plain_windows.cutoff(of))}, {format_duration(rules.stc)} after its end"
    yield "cutoff", Text("none: it is built without waiting" if rules.allow_incomplete else waits)
    if rules.max_lateness or rules.allow_incomplete:
        yield "slices count", Text(f"until {format_instant(of.cutoff)}")
    slices = f"{view.desired:,} desired, {view.observed:,} observed, {view.ignored:,} ignored"
    yield "slices", Text(slices)
    if view.rejected:
        told = f"{many(view.rejected, 'record')} of its slices: `tidemill quarantine` shows them"
        yield "rejected", Text(told, style="yellow")
    if window.sealed is not None:
        yield "sealed", Text(f"slices up to #{window.sealed} of the ledger count, although they came late")
    yield "desired", Text(window.desired or "not judged yet")
    yield "observed", Text(window.observed or "none", style="" if view.current else "yellow")
    if window.revision:
        yield "revision", Text(f"{window.revision}, {_built(window)}")
    if window.trigger:
        yield "last trigger", Text(shown(window.trigger))
    if window.attempts:
        yield "tries", Text(f"{window.attempts:,}")
    if window.error:
        yield "last error", Text(shown(window.error), style="red")
    if window.owner:
        until = format_instant(window.lease_until or 0)
        yield "builder", Text(f"{shown(window.owner)}, its lease runs until {until}")
    yield "age", Text(about(view.age))


def _built(window: Window) -> str:
    if window.file is None:
        return "withdrawn"
    when = "" if window.built_at is None else f", built at {format_instant(window.built_at)}"
    return many(window.rows or 0, "row") + when


def _members(of: WindowStory) -> Table:
    table = listing("#", "slice", "arrived", "covers", "counts", "why", "built in", right=("#",))
    for member in of.members:
        word, why = member_words(member, plain_windows.cutoff(of))
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
    """The start of the id; after a retraction changed what it holds, with the number of that."""
    return member.slice[:ID_LETTERS] + member.name.removeprefix(member.slice)


def member_words(member: Member, cutoff: int) -> tuple[str, str]:
    """Whether a slice counts for a window, and why."""
    after = member.arrival - cutoff
    if member.ignored is not None:
        came = f": it came {about(after)} after the cutoff" if after > 0 else ""
        return "ignored", shown(member.ignored) + came
    if not member.desired:
        return "open", "not judged yet; the next round does"
    if after > 0:
        return "used", f"came {about(after)} after the cutoff, but the window was still open for it"
    return "used", "came by the cutoff"


def _revisions(datasets: Sequence[Dataset], window: Window) -> Table:
    table = listing(
        "rev", "rows", "bytes", "slices", "hash", "file", right=("rev", "rows", "bytes", "slices")
    )
    for one in datasets:
        current = one.revision == window.revision and plain_windows.is_current(window)
        table.add_row(
            Text(str(one.revision), style="bold green" if current else ""),
            number(one.rows),
            size(one.bytes),
            number(len(one.slices)),
            Text(one.hash[:ID_LETTERS]),
            Text(shown(one.file)),
        )
    return table


def touched_table(pairs: Sequence[tuple[Window, Member]]) -> Table:
    table = listing("start", "end", "state", "counts", "built in")
    for window, member in pairs:
        ignored = f"ignored: {shown(member.ignored)}" if member.ignored is not None else None
        table.add_row(
            _start(window.key.start),
            _start(window.key.end),
            _state(window.phase.value),
            Text(ignored or ("used" if member.desired else "not judged yet")),
            Text("yes" if member.observed else "no"),
        )
    return table


def dataset_table(windows: Sequence[Window], warehouse: Path) -> Table:
    numbers = ("rev", "rows", "bytes")
    table = listing("stream", "start", "end", "rev", "rows", "bytes", "hash", "is", "file", right=numbers)
    for of in windows:
        table.add_row(
            Text(of.key.stream),
            _start(of.key.start),
            _start(of.key.end),
            number(of.revision),
            number(of.rows),
            "" if of.bytes is None else size(of.bytes),
            Text((of.observed or "")[:ID_LETTERS]),
            _is(of, damage_of(warehouse, of)),
            Text(shown(str(warehouse / (of.file or "")))),
        )
    return table


def _is(of: Window, damage: str | None) -> Text:
    if damage is not None:
        return Text(f"damaged: {shown(damage)}; {repair_command(of.key)}", style="red")
    return Text("current", style="green") if plain_windows.is_current(of) else _stale(of)


def _stale(of: Window) -> Text:
    told = {"queued": "being rebuilt", "building": "being rebuilt", "failed": "stale: its rebuild failed"}
    return Text(told.get(of.phase.value, "stale"), style="yellow")


def step_table(steps: Sequence[RebuildStep], outcomes: Sequence[Outcome] | None) -> Table:
    """The plan; once it was run, with what became of each step."""
    ran = outcomes is not None
    table = listing(
        "stream", "start", "end", "do", "revision", "slices", "why", *(["outcome"] if ran else []),
        right=("slices",),
    )  # fmt: skip
    found = plain_windows.last_of(outcomes or ())
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
            Text(shown(one.reason)),
            *([_outcome(one, found)] if ran else []),
        )
    return table


def _outcome(step: RebuildStep, found: Mapping[WindowKey, Outcome]) -> Text:
    of = found.get(step.key)
    if of is None:
        return Text("left in the queue" if step.action == "build" else "")
    if of.error is not None:
        return Text(f"try {of.attempt} failed: {shown(of.error)}", style="red")
    if of.lost or of.dataset is None:
        return Text("another builder was faster", style="yellow")
    return Text(f"revision {of.dataset.revision}, {many(of.dataset.rows, 'row')}", style="green")


def event_line(seq: int, event: Mapping[str, object]) -> Iterator[Piece]:
    """A CloudEvent for people: when, what, and of which window."""
    data = event.get("data")
    said: Mapping[str, object] = data if isinstance(data, Mapping) else {}
    yield f"{seq:>6} "
    yield (f"{_word(event, 'time')[:19]}Z ", "dim")
    yield (_word(event, "type").removeprefix("tidemill."), "green")
    yield (f"  {_word(said, 'stream')} [{_word(said, 'start')}, {_word(said, 'end')})", "cyan")
    yield f"  revision {_word(said, 'revision')}"
    if said.get("supersedes") is not None:
        yield f" in place of {_word(said, 'supersedes')}"
    if said.get("rows") is not None:
        yield f", {_word(said, 'rows')} rows"
    if why := said.get("trigger") or said.get("reason"):
        yield f": {shown(str(why))}"
    if said.get("location") is not None:
        yield (f"  {_word(said, 'location')}", "dim")


def _word(of: Mapping[str, object], name: str) -> str:
    return shown(str(of.get(name, "")))
