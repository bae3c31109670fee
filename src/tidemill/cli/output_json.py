"""What every command prints for programs: `JsonOutput`. Results go to stdout, errors to stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.model.errors import TidemillError
from tidemill.pipeline.documents import gateway as plain_gateway
from tidemill.pipeline.documents import shapes as plain
from tidemill.pipeline.documents import ticks as plain_ticks
from tidemill.pipeline.documents import windows as plain_windows
from tidemill.pipeline.documents.shapes import dumps

if TYPE_CHECKING:
    import pyarrow as pa

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
    from tidemill.pipeline.documents.ticks import Remaking
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.reports import StreamStatus, TickReport
    from tidemill.pipeline.retention import ExpiryPlan, ExpiryStep
    from tidemill.pipeline.verify import Audit
    from tidemill.query import Answer, Explanation
    from tidemill.raw.retract import RetractionPlan


class JsonOutput:
    """One document a command; those that go on and on print one a line for each thing that happened."""

    def __init__(self, *, verbose: int = 0) -> None:
        self._details = verbose > 0

    @cached_property
    def windows(self) -> WindowsOutput:
        from tidemill.cli.output_windows import JsonWindows

        return JsonWindows(self._print)

    @cached_property
    def time(self) -> TimeOutput:
        from tidemill.cli.output_time import JsonTime

        return JsonTime(self._print)

    @cached_property
    def results(self) -> ResultsOutput:
        from tidemill.cli.output_results import JsonResults

        return JsonResults(self._print)

    @cached_property
    def asked(self) -> AskOutput:
        from tidemill.cli.output_ask import JsonAsk

        return JsonAsk(self._print)

    @cached_property
    def access(self) -> AccessOutput:
        from tidemill.cli.output_access import JsonAccess

        return JsonAccess(self._print)

    @cached_property
    def serving(self) -> ServingOutput:
        from tidemill.cli.output_serving import JsonServing

        return JsonServing(self._print)

    @cached_property
    def packing(self) -> PackingOutput:
        from tidemill.cli.output_packing import JsonPacking

        return JsonPacking(self._print)

    @cached_property
    def vectors(self) -> VectorsOutput:
        from tidemill.cli.output_vectors import JsonVectors

        return JsonVectors(self._print)

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

    def landed(self, stream: str | None, done: LandedMany) -> None:
        self._print(plain.landed_many(stream, done))

    def replayed(self, stream: str, landed: Sequence[Landed]) -> None:
        self._print({"stream": stream, "replayed": [plain.landed(one) for one in landed]})

    def retraction(self, plan: RetractionPlan, done: SliceEntry | None) -> None:
        self._print(plain_ticks.retraction(plan, done))

    def expiry(self, plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> None:
        self._print(plain_ticks.expiry(plan, done))

    def remade(self, stream: str, remade: Remaking, *, done: bool) -> None:
        self._print(plain_ticks.remade(stream, remade, done=done))

    def tick(self, report: TickReport) -> None:
        self._print(plain_ticks.tick(report, details=self._details))

    def status(
        self, now: int, streams: Sequence[StreamStatus], gateway: Gateway, running: Sequence[GatewayStatus]
    ) -> None:
        gateways = [plain_gateway.status(one) for one in running]
        settings = plain_gateway.settings(gateway)
        self._print({**plain.status(now, streams), "gateway": settings, "gateways": gateways})

    def ledger(self, entries: Sequence[SliceEntry], *, more: bool) -> None:
        self._print({"slices": [plain.entry(entry) for entry in entries], "more": more})

    def slice(self, entry: SliceEntry, windows: Sequence[tuple[Window, Member]], total: int) -> None:
        touched = plain_windows.touched(windows)
        self._print({**plain.entry(entry), "windows": touched, "windows_total": total})

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

    def metrics(self, text: str, samples: Sequence[plain.Plain]) -> None:
        self._print({"metrics": samples})

    def bench(self, results: object) -> None:
        self._print({"results": results})
