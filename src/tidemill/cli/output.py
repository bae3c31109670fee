"""The two ways in which every command prints: `JsonOutput` for programs, `TextOutput` for people.

Results go to stdout, errors and advice to stderr. Data is never read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemill.cli import plain
from tidemill.cli.plain import dumps, shown
from tidemill.model.errors import TidemillError
from tidemill.model.slices import SliceEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console, RenderableType

    from tidemill.audit import Audit
    from tidemill.cli.sample import SampleFile
    from tidemill.ingest.landing import Landed, LandedMany
    from tidemill.query import Answer, Explanation
    from tidemill.recovery import Recovered
    from tidemill.reports import StreamStatus, TickReport


class Output(Protocol):
    """One method for each thing that a command can say."""

    def error(self, problem: TidemillError) -> None: ...
    def note(self, text: str) -> None:
        """Something that helps a person and is no part of the result."""
        ...

    def made(self, folder: Path, files: Sequence[SampleFile], steps: Sequence[tuple[str, str]]) -> None: ...
    def versions(self, versions: Mapping[str, str]) -> None: ...
    def types(self, names: Sequence[str]) -> None: ...
    def landed(self, stream: str, done: LandedMany) -> None: ...
    def replayed(self, stream: str, landed: Landed | None) -> None: ...
    def tick(self, report: TickReport) -> None: ...
    def status(self, now: int, streams: Sequence[StreamStatus]) -> None: ...
    def ledger(self, entries: Sequence[SliceEntry], *, more: bool) -> None: ...
    def slice(self, entry: SliceEntry) -> None: ...
    def quarantine(self, stream: str, rows: pa.Table, *, more: bool) -> None: ...
    def answer(self, answer: Answer) -> None: ...
    def explanation(self, explanation: Explanation) -> None: ...
    def audit(self, audit: Audit) -> None: ...
    def recovered(self, recovered: Recovered) -> None: ...
    def bench(self, results: object) -> None: ...


class JsonOutput:
    """One document a command; `run` prints one a line for each tick."""

    def __init__(self, *, verbose: int = 0) -> None:
        self._tiles = verbose > 0

    def _print(self, document: object) -> None:
        sys.stdout.write(dumps(document) + "\n")
        sys.stdout.flush()

    def error(self, problem: TidemillError) -> None:
        sys.stderr.write(dumps({"error": plain.error(problem)}) + "\n")

    def note(self, text: str) -> None:
        pass

    def made(self, folder: Path, files: Sequence[SampleFile], steps: Sequence[tuple[str, str]]) -> None:
        self._print(
            {
                "project": str(folder),
                "files": ["tidemill.yaml", *(f"data/{file.name}" for file in files)],
                "next": [command for command, _ in steps],
            }
        )

    def versions(self, versions: Mapping[str, str]) -> None:
        self._print(versions)

    def types(self, names: Sequence[str]) -> None:
        self._print({"event_time_types": names})

    def landed(self, stream: str, done: LandedMany) -> None:
        self._print(plain.landed_many(stream, done))

    def replayed(self, stream: str, landed: Landed | None) -> None:
        self._print({"stream": stream, "replayed": plain.landed(landed) if landed else None})

    def tick(self, report: TickReport) -> None:
        self._print(plain.tick(report, tiles=self._tiles))

    def status(self, now: int, streams: Sequence[StreamStatus]) -> None:
        self._print(plain.status(now, streams))

    def ledger(self, entries: Sequence[SliceEntry], *, more: bool) -> None:
        self._print({"slices": [plain.entry(entry) for entry in entries], "more": more})

    def slice(self, entry: SliceEntry) -> None:
        self._print(plain.entry(entry))

    def quarantine(self, stream: str, rows: pa.Table, *, more: bool) -> None:
        self._print({"stream": stream, "records": plain.quarantined(rows), "more": more})

    def answer(self, answer: Answer) -> None:
        self._print(plain.answer(answer))

    def explanation(self, explanation: Explanation) -> None:
        self._print(plain.explanation(explanation))

    def audit(self, audit: Audit) -> None:
        self._print(plain.audit(audit))

    def recovered(self, recovered: Recovered) -> None:
        self._print(plain.recovered(recovered))

    def bench(self, results: object) -> None:
        self._print({"results": results})


class TextOutput:
    """Tables and lines through Rich; colours only on a terminal."""

    def __init__(self, out: Console, err: Console, *, verbose: int = 0, quiet: bool = False) -> None:
        self._out = out
        self._err = err
        self._verbose = verbose
        self._quiet = quiet

    def _print(self, what: RenderableType, *, soft_wrap: bool = False) -> None:
        # By way of sys.stdout, which progress bars replace to put lines above themselves; a console
        # would write past them.
        with self._out.capture() as text:
            self._out.print(what, soft_wrap=soft_wrap)
        sys.stdout.write(text.get())
        sys.stdout.flush()

    def _line(self, *pieces: str | tuple[str, str]) -> None:
        from rich.text import Text

        self._print(Text.assemble(*pieces), soft_wrap=True)

    def error(self, problem: TidemillError) -> None:
        from rich.text import Text

        code = (f"error[{problem.code}]", "bold red")
        self._err.print(Text.assemble(code, f": {shown(str(problem), lines=True)}"), soft_wrap=True)
        if problem.hint:
            hint = shown(problem.hint, lines=True).replace("\n", "\n        ")
            self._err.print(Text.assemble(("  hint", "cyan"), f": {hint}"), soft_wrap=True)

    def note(self, text: str) -> None:
        from rich.text import Text

        if not self._quiet:
            self._err.print(Text(shown(text, lines=True), style="dim"), soft_wrap=True)

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

    def types(self, names: Sequence[str]) -> None:
        for name in names:
            self._line(shown(name))

    def landed(self, stream: str, done: LandedMany) -> None:
        from tidemill.cli.tables import landed_line

        for one in done.landed:
            self._line(*landed_line(one))
        for refused in done.refused:
            self._line(("refused ", "red"), shown(refused.name))
            self.error(refused.error)

    def replayed(self, stream: str, landed: Landed | None) -> None:
        from tidemill.cli.tables import landed_line

        if landed is None:
            self._line(f"nothing in the quarantine of {shown(stream)} to replay")
        else:
            self._line(*landed_line(landed))
            self.note("`tidemill run --once` judges it again")

    def tick(self, report: TickReport) -> None:
        from tidemill.cli.tables import tick_lines

        for line in tick_lines(report, tiles=self._verbose > 0):
            self._line(*line)

    def status(self, now: int, streams: Sequence[StreamStatus]) -> None:
        from tidemill.cli.tables import status_table

        for stream in streams:
            self._print(status_table(now, stream))

    def ledger(self, entries: Sequence[SliceEntry], *, more: bool) -> None:
        from tidemill.cli.tables import ledger_table

        if not entries:
            self._line("no slices")
            return
        self._print(ledger_table(entries))
        if more:
            self.note(f"the newest {len(entries)}; --limit 0 shows all")

    def slice(self, entry: SliceEntry) -> None:
        from tidemill.cli.tables import slice_table

        self._print(slice_table(entry))

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

        self._print(answer_table(answer.table))
        self._line((answer_facts(answer), "dim"))

    def explanation(self, explanation: Explanation) -> None:
        self._line(shown(str(explanation), lines=True))

    def audit(self, audit: Audit) -> None:
        from tidemill.cli.tables import audit_lines, findings_table

        for line in audit_lines(audit):
            self._line(*line)
        if audit.findings:
            self._print(findings_table(audit.findings))

    def recovered(self, recovered: Recovered) -> None:
        self._line(
            "rebuilt ",
            (shown(str(recovered.state)), "bold"),
            f": {recovered.slices:,} slices, {recovered.batches:,} batches",
            f" and {recovered.tiles:,} tiles found",
        )

    def bench(self, results: object) -> None:
        pass  # the benchmark prints its own table
