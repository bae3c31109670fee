"""What was compared or rebuilt from the warehouse, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tidemill.cli.shown import shown
from tidemill.cli.views.layout import View, all_of, line, listing, many, size
from tidemill.pipeline.documents.scrub import remedy

if TYPE_CHECKING:
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.repair import Repaired, RepairPlan, RepairStep
    from tidemill.pipeline.scrub import Scrubbed
    from tidemill.pipeline.verify import Audit, Finding


def audit(audit: Audit) -> View:
    for one in audit.streams:
        found = sum(1 for finding in audit.findings if finding.stream == one.stream)
        verdict = (many(found, "difference"), "bold red") if found else ("equal", "bold green")
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
            verdict,
        )
    if audit.findings:
        yield _findings(audit.findings)


def scrubbed(of: Scrubbed) -> View:
    without = f", {of.tally.unchecked:,} without a checksum" if of.tally.unchecked else ""
    verdict = (many(len(of.damages), "damaged file"), "bold red") if of.damages else ("whole", "bold green")
    yield line(f"{many(of.tally.files, 'file')}, {size(of.tally.bytes)} read{without}: ", verdict)
    if of.damages:
        table = listing("file", "kind", "reason", "remedy")
        for one in of.damages:
            cells = (one.file, one.kind.value, one.reason, remedy(one))
            table.add_row(*(Text(shown(text)) for text in cells))
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
        yield line((shown(step.damage.file), "bold red"), f" is still damaged: {shown(what)}")


def _steps(steps: Sequence[RepairStep]) -> Table:
    table = listing("file", "what", "damage", "repair")
    for step in steps:
        repair = Text(shown(step.action)) if step.repairable else Text(shown(step.affects), style="red")
        about = (step.damage.file, step.damage.kind.value, step.damage.reason)
        table.add_row(*(Text(shown(text)) for text in about), repair)
    return table


def recovered(of: Recovered) -> View:
    yield line(
        "rebuilt ",
        (shown(str(of.state)), "bold"),
        f": {of.slices:,} slices, {of.batches:,} batches,",
        f" {of.tiles:,} tiles and {of.datasets:,} datasets found",
        f"; {many(of.results, 'commit')} of results announced again" if of.results else "",
    )
    if of.set_aside:
        yield line(f"{many(len(of.set_aside), 'damaged file')} set aside in _damaged/")
    for one in of.left:
        yield line((shown(one.file), "bold red"), f" could not be recovered: {shown(one.reason)}")


def _findings(findings: Sequence[Finding]) -> Table:
    table = listing("stream", "what", "where", "difference")
    for one in findings:
        what = f"{one.difference}; {one.remedy}" if one.remedy else one.difference
        table.add_row(*(Text(shown(text)) for text in (one.stream, one.what, one.where, what)))
    return table
