"""Views of verify, repair, recover, expire and pack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import Piece, View, all_of, line, listing, many, size
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.scrub import remedy

if TYPE_CHECKING:
    from tidemill.model.expiry import ExpiryStep
    from tidemill.pipeline.move import Moved, MovePlan
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.repair import Repaired, RepairPlan, RepairStep
    from tidemill.pipeline.retention import ExpiryPlan
    from tidemill.pipeline.scrub import Scrubbed
    from tidemill.pipeline.verify import Audit, Finding
    from tidemill.raw.compaction.packer import Packed, PackRound, PackStep


def audit(audit: Audit) -> View:
    for one in audit.streams:
        found = sum(1 for finding in audit.findings if finding.stream == one.stream)
        outcome = (many(found, "difference"), "bold red") if found else ("equal", "bold green")
        pending = f" ({one.pending:,} pending)" if one.pending else ""
        made = [many(one.tiles, "tile")]
        made += [many(one.datasets, "dataset")] if one.datasets else []
        made += [many(one.results, "result")] if one.results else []
        made += [many(one.chains, "chain")] if one.chains else []
        gone = [many(one.sealed, "tile")] if one.sealed else []
        gone += [many(one.sealed_windows, "window")] if one.sealed_windows else []
        sealed = f" ({all_of(gone)} sealed: raw is gone)" if gone else ""
        yield line(
            (one.stream, "bold"),
            f": {many(one.slices, 'slice')}{pending}, {many(one.raw_rows, 'raw row')}",
            f", {all_of(made)} recomputed{sealed}: ",
            outcome,
        )
    if audit.findings:
        yield _findings(audit.findings)


def scrubbed(of: Scrubbed) -> View:
    without = f", {of.tally.unchecked:,} without a checksum" if of.tally.unchecked else ""
    outcome = (many(len(of.damages), "damaged file"), "bold red") if of.damages else ("whole", "bold green")
    yield line(f"{many(of.tally.files, 'file')}, {size(of.tally.bytes)} read{without}: ", outcome)
    if of.damages:
        table = listing("file", "kind", "reason", "remedy")
        for one in of.damages:
            cells = (one.file, one.kind.value, one.reason, remedy(one))
            table.add_row(*(Text(escaped(text)) for text in cells))
        yield table


def repair_plan(of: RepairPlan) -> View:
    if not of.steps:
        yield line("nothing is damaged")
        return
    yield _steps(of.steps)


def repaired(of: Repaired) -> View:
    yield from repair_plan(of.plan)
    if of.set_aside:
        yield line(f"{many(len(of.set_aside), 'file')} set aside in _damaged/")
    for step in of.left:
        what = step.affects or step.damage.reason
        yield line((escaped(step.damage.file), "bold red"), f" is still damaged: {escaped(what)}")


def _steps(steps: Sequence[RepairStep]) -> Table:
    table = listing("file", "what", "damage", "repair")
    for step in steps:
        repair = Text(escaped(step.action))
        if step.affects:
            repair.append(f"{'; lost: ' if step.action else ''}{escaped(step.affects)}", style="red")
        about = (step.damage.file, step.damage.kind.value, step.damage.reason)
        table.add_row(*(Text(escaped(text)) for text in about), repair)
    return table


def move_plan(of: MovePlan) -> View:
    there = f"; {many(of.there, 'file')} of an earlier try are there" if of.there else ""
    yield line(f"{many(of.files, 'file')}, {size(of.bytes)} to ", (escaped(of.url), "bold"), there)


def moved(of: Moved) -> View:
    there = of.plan.files - of.sent
    known = f"; {many(there, 'file')} were there" if there > 0 else ""
    yield line(f"{many(of.sent, 'file')} sent to ", (escaped(of.plan.url), "bold"), known)
    yield line(f"now write `warehouse: {escaped(of.plan.url)}` in tidemill.yaml, then run `tidemill recover`")


def recovered(of: Recovered) -> View:
    yield line(
        "rebuilt ",
        (escaped(str(of.state)), "bold"),
        f": {many(of.slices, 'slice')}, {of.batches:,} batch{'es' * (of.batches != 1)},",
        f" {many(of.tiles, 'tile')} and {many(of.datasets, 'dataset')} found",
        f"; {many(of.results, 'commit')} of results announced again" if of.results else "",
    )
    if of.set_aside:
        yield line(f"{many(len(of.set_aside), 'damaged file')} set aside in _damaged/")
    for one in of.left:
        yield line((escaped(one.file), "bold red"), f" could not be recovered: {escaped(one.reason)}")


def _findings(findings: Sequence[Finding]) -> Table:
    table = listing("stream", "what", "where", "difference")
    for one in findings:
        what = f"{one.difference}; {one.remedy}" if one.remedy else one.difference
        table.add_row(*(Text(escaped(text)) for text in (one.stream, one.what, one.where, what)))
    return table


def expiry(plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> View:
    """Yield the plan step by step; with `done`, what was deleted."""
    if not plan.steps:
        yield line("no retention is declared: everything is kept")
    for step in done or ():
        yield line(*expired_pieces(step))
    if done is not None and not done and plan.steps:
        yield line("nothing is old enough to go, or all of it is still needed")
    for step in plan.steps:
        where = (f"{step.stream} {step.what}", "bold")
        if done is None:
            yield line(where, f", kept {format_duration(step.keep)}: {_going(step)}")
        if step.held_by is not None:
            yield line(where, (" is held back", "yellow"), f" by {escaped(step.held_by)}")


def expired_pieces(step: ExpiryStep) -> list[Piece]:
    where = (f"{step.stream} {step.what}", "bold")
    return [("expired ", "magenta"), where, f": {_amount(step)} before {format_instant(step.before)}"]


def _going(step: ExpiryStep) -> str:
    if not step.due:
        return f"nothing before {format_instant(step.before)}"
    return f"{_amount(step)} before {format_instant(step.before)}"


def _amount(step: ExpiryStep) -> str:
    windows = f" of {many(step.windows, 'window')}" if step.windows else ""
    return f"{many(step.rows, 'row')} in {many(step.files, 'file')}{windows}, {size(step.bytes)},"


def packing(steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]) -> View:
    """Yield the plan group by group; with `done`, what was packed. Then the slices that wait for more."""
    if done is None:
        for step in steps:
            days = step.days[0] if len(step.days) == 1 else f"{step.days[0]} to {step.days[-1]}"
            parts = f"{many(step.rows, 'row')} in {many(step.parts_before, 'part')}, {size(step.bytes)}"
            slices = many(len(step.slices), "slice")
            yield line((step.stream, "bold"), f": {slices} to pack, {parts}, of {days}")
    for one in done or ():
        before, after = size(one.bytes_before), size(one.bytes_after)
        text = f"{many(len(one.slices), 'slice')}, {many(one.rows, 'row')} in {many(len(one.parts), 'part')}"
        yield line(("packed ", "green"), (one.stream, "bold"), f": {text}, {before} before, {after} now")
    if not steps:
        yield line("nothing to pack")
    for stream, count in waiting.items():
        if count:
            verb = "waits" if count == 1 else "wait"
            yield line((stream, "bold"), f": {many(count, 'slice')} {verb} until there are enough")


def manifest(manifest: Mapping[str, object]) -> View:
    """Yield indented JSON."""
    yield line(escaped(json.dumps(manifest, indent=2), lines=True))


def look_words(of: PackRound) -> str:
    """Return what a round packed: `128 slices packed, 4,000 rows in 2 parts`."""
    slices = sum(len(one.slices) for one in of.packed)
    rows, parts = sum(one.rows for one in of.packed), sum(len(one.parts) for one in of.packed)
    return f"{many(slices, 'slice')} packed, {many(rows, 'row')} in {many(parts, 'part')}"
