"""What commands say of windows, datasets and events: the part of both outputs that knows these words.

It prints only through what it is handed, so that one place decides where results and advice go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.model.windows import Window
from tidemill.outputs.datasets.damage import damage_of
from tidemill.pipeline.documents import windows as plain

if TYPE_CHECKING:
    from tidemill.outputs.datasets.builder import Outcome
    from tidemill.outputs.datasets.reader import RebuildStep, WindowStory, WindowView

STEPS_SHOWN: Final = 100  # of a plan, in a table
Piece = str | tuple[str, str]


class WindowsOutput(Protocol):
    """One method for each thing that a command can say of windows."""

    def listed(self, views: Sequence[WindowView], *, more: bool) -> None: ...
    def story(self, story: WindowStory) -> None: ...
    def datasets(self, warehouse: Path, windows: Sequence[Window], *, more: bool) -> None: ...
    def plan(self, stream: str, steps: Sequence[RebuildStep]) -> None: ...
    def rebuilt(self, stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[Outcome]) -> None: ...
    def built(self, outcome: Outcome) -> None: ...
    def retried(self, stream: str, count: int) -> None: ...
    def hastened(self, stream: str, count: int) -> None: ...
    def exported(self, stream: str, files: Sequence[Path]) -> None: ...
    def event(self, seq: int, event: Mapping[str, object]) -> None: ...


class JsonWindows:
    """One document a command; `build` prints one a line for each try, `events` one for each event."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def listed(self, views: Sequence[WindowView], *, more: bool) -> None:
        self._print({"windows": [plain.view(view) for view in views], "more": more})

    def story(self, story: WindowStory) -> None:
        self._print(plain.story(story))

    def datasets(self, warehouse: Path, windows: Sequence[Window], *, more: bool) -> None:
        found = [plain.newest(window, damage_of(warehouse, window)) for window in windows]
        self._print({"warehouse": str(warehouse), "datasets": found, "more": more})

    def plan(self, stream: str, steps: Sequence[RebuildStep]) -> None:
        self._print({"stream": stream, "steps": [plain.step(step) for step in steps]})

    def rebuilt(self, stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[Outcome]) -> None:
        self._print({"stream": stream, "steps": plain.rebuilt(steps, outcomes)})

    def built(self, outcome: Outcome) -> None:
        self._print(plain.outcome(outcome))

    def retried(self, stream: str, count: int) -> None:
        self._print({"stream": stream, "retried": count})

    def hastened(self, stream: str, count: int) -> None:
        self._print({"stream": stream, "slices": count})

    def exported(self, stream: str, files: Sequence[Path]) -> None:
        self._print({"stream": stream, "files": [str(file) for file in files]})

    def event(self, seq: int, event: Mapping[str, object]) -> None:
        # `seq`, an extension attribute: what --after takes to go on from here
        self._print({**event, "seq": seq})


class TextWindows:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def listed(self, views: Sequence[WindowView], *, more: bool) -> None:
        from tidemill.cli.tables_windows import window_table

        if not views:
            self._say.line("no windows")
            return
        self._say.table(window_table(views))
        if more:
            self._say.note(f"the newest {len(views)}; --limit 0 shows all")
        for reason, remedy in {view.reason: view.remedy for view in reversed(views)}.items():
            if remedy is not None:
                self._say.note(f"{reason}: {remedy}")

    def story(self, story: WindowStory) -> None:
        from tidemill.cli.tables_windows import story_tables

        for table in story_tables(story):
            self._say.table(table)

    def datasets(self, warehouse: Path, windows: Sequence[Window], *, more: bool) -> None:
        from tidemill.cli.tables_windows import dataset_table

        if not windows:
            self._say.line("no datasets")
            return
        self._say.table(dataset_table(windows, warehouse))
        if more:
            self._say.note(f"the newest {len(windows)}; --limit 0 shows all")

    def plan(self, stream: str, steps: Sequence[RebuildStep]) -> None:
        self._steps(stream, steps, None)

    def rebuilt(self, stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[Outcome]) -> None:
        self._steps(stream, steps, outcomes)
        builds = {step.key for step in steps if step.action == "build"}
        if builds - {outcome.key for outcome in outcomes}:
            self._say.note("what is left in the queue is for `tidemill run` or another builder")

    def _steps(self, stream: str, steps: Sequence[RebuildStep], outcomes: Sequence[Outcome] | None) -> None:
        from tidemill.cli.tables_windows import step_table

        if not steps:
            self._say.line(f"{shown(stream)} has no windows to rebuild")
            return
        failed = {outcome.key for outcome in outcomes or () if outcome.error is not None}
        chosen = sorted(steps, key=lambda step: step.key not in failed)[:STEPS_SHOWN]
        self._say.table(step_table(sorted(chosen, key=lambda step: step.key), outcomes))
        if len(steps) > len(chosen):
            counts = Counter(step.action for step in steps)
            told = ", ".join(f"{action} {count:,}" for action, count in sorted(counts.items()))
            self._say.note(f"{len(chosen)} of {len(steps):,} windows ({told}); --output json has all")

    def built(self, outcome: Outcome) -> None:
        from tidemill.cli.tables_ticks import build_line

        self._say.line(*build_line(outcome))

    def retried(self, stream: str, count: int) -> None:
        from tidemill.cli.tables import many

        if not count:
            self._say.line(f"{shown(stream)} has no failed windows")
            return
        self._say.line(f"{many(count, 'window')} of {shown(stream)} back in the queue, with all tries")
        self._say.note("`tidemill run` or `tidemill build` builds what is queued")

    def hastened(self, stream: str, count: int) -> None:
        from tidemill.cli.tables import many

        if not count:
            self._say.line(f"{shown(stream)} has no failed slices")
            return
        self._say.line(f"{many(count, 'slice')} of {shown(stream)} to be tried again")
        self._say.note("the next round of `tidemill run` tries them")

    def exported(self, stream: str, files: Sequence[Path]) -> None:
        for file in files:
            self._say.line(("wrote ", "green"), shown(str(file)))

    def event(self, seq: int, event: Mapping[str, object]) -> None:
        from tidemill.cli.tables_windows import event_line

        self._say.line(*event_line(seq, event))
