"""The two ways in which every command prints: `JsonOutput` for programs, `TextOutput` for people.

Results go to stdout, errors and advice to stderr. Data is never read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.model.errors import TidemillError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console, RenderableType

    from tidemill.cli.output_access import AccessOutput
    from tidemill.cli.output_ask import AskOutput
    from tidemill.cli.output_packing import PackingOutput
    from tidemill.cli.output_results import ResultsOutput
    from tidemill.cli.output_serving import ServingOutput
    from tidemill.cli.output_time import TimeOutput
    from tidemill.cli.output_vectors import VectorsOutput
    from tidemill.cli.output_windows import WindowsOutput
    from tidemill.cli.sample import SampleFile
    from tidemill.config.gateway import Gateway
    from tidemill.ingest.landing import Landed, LandedMany
    from tidemill.model.gateway import GatewayStatus
    from tidemill.model.slices import SliceEntry
    from tidemill.model.windows import Member, Window
    from tidemill.pipeline.documents import shapes as plain
    from tidemill.pipeline.documents.ticks import Remaking
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.reports import StreamStatus, TickReport
    from tidemill.pipeline.retention import ExpiryPlan, ExpiryStep
    from tidemill.pipeline.verify import Audit
    from tidemill.query import Answer, Explanation
    from tidemill.raw.retract import RetractionPlan


class Output(Protocol):
    """One method for each thing that a command can say."""

    @property
    def windows(self) -> WindowsOutput:
        """The same for what is said of windows, datasets and events."""
        ...

    @property
    def time(self) -> TimeOutput:
        """The same for what is said of event time."""
        ...

    @property
    def results(self) -> ResultsOutput:
        """The same for what is said of the results of streaming windows."""
        ...

    @property
    def asked(self) -> AskOutput:
        """The same for what is said of searches and the catalogue."""
        ...

    @property
    def access(self) -> AccessOutput:
        """The same for what is said of tokens."""
        ...

    @property
    def serving(self) -> ServingOutput:
        """The same for what is said of servers."""
        ...

    @property
    def packing(self) -> PackingOutput:
        """The same for what is said of large parts."""
        ...

    @property
    def vectors(self) -> VectorsOutput:
        """The same for what is said of vectors."""
        ...

    def error(self, problem: TidemillError) -> None: ...
    def note(self, text: str) -> None:
        """Something that helps a person and is no part of the result."""
        ...

    def made(self, folder: Path, files: Sequence[SampleFile], steps: Sequence[tuple[str, str]]) -> None: ...
    def versions(self, versions: Mapping[str, str]) -> None: ...
    def landed(self, stream: str | None, done: LandedMany) -> None: ...
    def replayed(self, stream: str, landed: Sequence[Landed]) -> None: ...
    def retraction(self, plan: RetractionPlan, done: SliceEntry | None) -> None:
        """The plan; with the slice as it is then, once it was carried out."""
        ...

    def expiry(self, plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> None:
        """The plan; with what went, once it was carried out."""
        ...

    def remade(self, stream: str, remade: Remaking, *, done: bool) -> None:
        """What was made again from raw, or when it is not done: would be."""
        ...

    def tick(self, report: TickReport) -> None: ...
    def status(
        self, now: int, streams: Sequence[StreamStatus], gateway: Gateway, running: Sequence[GatewayStatus]
    ) -> None:
        """Where the streams stand; how events are gathered, and who does so now."""
        ...

    def ledger(self, entries: Sequence[SliceEntry], *, more: bool) -> None: ...
    def slice(self, entry: SliceEntry, windows: Sequence[tuple[Window, Member]], total: int) -> None: ...
    def quarantine(self, stream: str, rows: pa.Table, *, more: bool) -> None: ...
    def answer(self, answer: Answer) -> None: ...
    def explanation(self, explanation: Explanation) -> None: ...
    def audit(self, audit: Audit) -> None: ...
    def recovered(self, recovered: Recovered) -> None: ...
    def metrics(self, text: str, samples: Sequence[plain.Plain]) -> None: ...
    def bench(self, results: object) -> None: ...


class TextOutput:
    """Tables and lines through Rich; colours only on a terminal."""

    def __init__(
        self,
        out: Callable[[], Console],
        err: Callable[[], Console],
        *,
        verbose: int = 0,
        quiet: bool = False,
    ) -> None:
        self._out = out
        self._err = err
        self._verbose = verbose
        self._quiet = quiet
        self._voice = Voice(self._print, self._line, self.note)

    @cached_property
    def windows(self) -> WindowsOutput:
        from tidemill.cli.output_windows import TextWindows

        return TextWindows(self._voice)

    @cached_property
    def time(self) -> TimeOutput:
        from tidemill.cli.output_time import TextTime

        return TextTime(self._voice)

    @cached_property
    def results(self) -> ResultsOutput:
        from tidemill.cli.output_results import TextResults

        return TextResults(self._voice)

    @cached_property
    def asked(self) -> AskOutput:
        from tidemill.cli.output_ask import TextAsk

        return TextAsk(self._voice)

    @cached_property
    def access(self) -> AccessOutput:
        from tidemill.cli.output_access import TextAccess

        return TextAccess(self._voice)

    @cached_property
    def serving(self) -> ServingOutput:
        from tidemill.cli.output_serving import TextServing

        return TextServing(self._voice)

    @cached_property
    def packing(self) -> PackingOutput:
        from tidemill.cli.output_packing import TextPacking

        return TextPacking(self._voice)

    @cached_property
    def vectors(self) -> VectorsOutput:
        from tidemill.cli.output_vectors import TextVectors

        return TextVectors(self._voice)

    def _print(self, what: RenderableType, *, soft_wrap: bool = False) -> None:
        # By way of sys.stdout, which progress bars replace to put lines above themselves; a console
        # would write past them.
        console = self._out()
        with console.capture() as text:
            console.print(what, soft_wrap=soft_wrap)
        sys.stdout.write(text.get())
        sys.stdout.flush()

    def _line(self, *pieces: str | tuple[str, str]) -> None:
        from rich.text import Text

        self._print(Text.assemble(*pieces), soft_wrap=True)

    def error(self, problem: TidemillError) -> None:
        from rich.text import Text

        code = (f"error[{problem.code}]", "bold red")
        self._err().print(Text.assemble(code, f": {shown(str(problem), lines=True)}"), soft_wrap=True)
        if problem.hint:
            hint = shown(problem.hint, lines=True).replace("\n", "\n        ")
            self._err().print(Text.assemble(("  hint", "cyan"), f": {hint}"), soft_wrap=True)

    def note(self, text: str) -> None:
        from rich.text import Text

        if not self._quiet:
            self._err().print(Text(shown(text, lines=True), style="dim"), soft_wrap=True)

    def made(self, folder: Path, files: Sequence[SampleFile], steps: Sequence[tuple[str, str]]) -> None:
        self._line(
            "made ", (shown(str(folder / "tidemill.yaml")), "bold"), ", the project: one stream, explained"
        )
        for file in files:
            self._line("made ", (shown(str(folder / "data" / file.name)), "bold"), f", {file.about}")
        if not self._quiet:
            self._line("\nNext:")
            width = max(len(command) for command, _ in steps)
            for command, why in steps:
                self._line("  ", (shown(command).ljust(width), "bold"), (f"  # {why}", "dim"))

    def versions(self, versions: Mapping[str, str]) -> None:
        first, *others = versions.items()
        rest = ", ".join(f"{name} {version}" for name, version in others)
        self._line((f"{first[0]} {first[1]}", "bold"), f" ({rest})")

    def landed(self, stream: str | None, done: LandedMany) -> None:
        from tidemill.cli.tables import landed_line

        for one in done.landed:
            self._line(*landed_line(one))
        for refused in done.refused:
            self._line(("refused ", "red"), shown(refused.name))
            self.error(refused.error)

    def replayed(self, stream: str, landed: Sequence[Landed]) -> None:
        from tidemill.cli.tables import landed_line

        for one in landed:
            self._line(*landed_line(one))
        if landed:
            self.note("`tidemill run --once` decides these records again")
        else:
            self._line(f"nothing in the quarantine of {shown(stream)} to replay")

    def retraction(self, plan: RetractionPlan, done: SliceEntry | None) -> None:
        from tidemill.cli.tables_ticks import retraction_lines

        for line in retraction_lines(plan, done):
            self._line(*line)
        if done is not None:
            self.note("`tidemill run --once` judges again what has to be, and builds what changed")

    def expiry(self, plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> None:
        from tidemill.cli.tables_ticks import expiry_lines

        for line in expiry_lines(plan, done):
            self._line(*line)

    def remade(self, stream: str, remade: Remaking, *, done: bool) -> None:
        from tidemill.cli.tables_ticks import remade_lines

        for line in remade_lines(stream, remade, done=done):
            self._line(*line)

    def tick(self, report: TickReport) -> None:
        from tidemill.cli.tables_ticks import tick_lines

        for line in tick_lines(report, details=self._verbose > 0):
            self._line(*line)

    def status(
        self, now: int, streams: Sequence[StreamStatus], gateway: Gateway, running: Sequence[GatewayStatus]
    ) -> None:
        from tidemill.cli.tables_serving import gateways_table
        from tidemill.cli.tables_status import status_table

        for stream in streams:
            self._print(status_table(now, stream))
        self._print(gateways_table(gateway, running))

    def ledger(self, entries: Sequence[SliceEntry], *, more: bool) -> None:
        from tidemill.cli.tables import ledger_table

        if not entries:
            self._line("no slices")
            return
        self._print(ledger_table(entries))
        if more:
            self.note(f"the newest {len(entries)}; --limit 0 shows all")

    def slice(self, entry: SliceEntry, windows: Sequence[tuple[Window, Member]], total: int) -> None:
        from tidemill.cli.tables import slice_table
        from tidemill.cli.tables_windows import touched_table

        self._print(slice_table(entry))
        if windows:
            self._print(touched_table(windows))
        if total > len(windows):
            self.note(f"the first {len(windows)} of {total:,} windows; --limit 0 shows all")

    def quarantine(self, stream: str, rows: pa.Table, *, more: bool) -> None:
        from tidemill.cli.tables import quarantine_table

        if not rows.num_rows:
            self._line("nothing in quarantine")
            return
        self._print(quarantine_table(rows))
        if more:
            self.note(f"the newest {rows.num_rows}; --limit 0 shows all")

    def answer(self, answer: Answer) -> None:
        from tidemill.cli.tables import answer_facts, answer_table
        from tidemill.cli.tables_ask import completeness_lines

        self._print(answer_table(answer.table))
        self._line((answer_facts(answer), "dim"))
        for line in completeness_lines(answer.completeness):
            self._line(line)

    def explanation(self, explanation: Explanation) -> None:
        self._line(shown(str(explanation), lines=True))

    def audit(self, audit: Audit) -> None:
        from tidemill.cli.tables import audit_lines, findings_table

        for line in audit_lines(audit):
            self._line(*line)
        if audit.findings:
            self._print(findings_table(audit.findings))

    def recovered(self, recovered: Recovered) -> None:
        from tidemill.cli.tables import many

        self._line(
            "rebuilt ",
            (shown(str(recovered.state)), "bold"),
            f": {recovered.slices:,} slices, {recovered.batches:,} batches,",
            f" {recovered.tiles:,} tiles and {recovered.datasets:,} datasets found",
            f"; {many(recovered.results, 'commit')} of results told again" if recovered.results else "",
        )

    def metrics(self, text: str, samples: Sequence[plain.Plain]) -> None:
        self._line(text.rstrip("\n"))

    def bench(self, results: object) -> None:
        pass  # the benchmark prints its own table
