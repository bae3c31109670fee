"""The progress of the scrub in the background, and which files are known to be damaged: for `status` and the
metrics. It only reads the state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from tidemill.model.damage import KnownDamage
from tidemill.storage.state.protocol import State

CHECKPOINT: Final = "@scrub"  # belongs to no stream; no window has this name


@dataclass(frozen=True, slots=True)
class ScrubPass:
    """One pass over all files."""

    started: int
    finished: int | None = None
    files: int = 0
    bytes: int = 0
    unchecked: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of the scrub in the background, kept as a checkpoint of the state."""

    last_full: ScrubPass | None = None
    current: ScrubPass | None = None  # None: none is due
    section: str = ""  # section of the current pass …
    file: str = ""  # … and the last file that was read
    paid: int = 0  # the instant up to which the declared pace covers what was read
    found: tuple[str, ...] = field(default=())  # damaged files of the current pass

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def progress_of(state: State) -> ScrubProgress:
    text = state.checkpoints("").get(CHECKPOINT)
    if text is None:
        return ScrubProgress()
    fields = json.loads(text)
    passes = {name: fields[name] and ScrubPass(**fields[name]) for name in ("last_full", "current")}
    return ScrubProgress(
        **passes,
        section=fields["section"],
        file=fields["file"],
        paid=fields["paid"],
        found=tuple(fields["found"]),
    )


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """When all files were last read, the progress of the current pass, and what is damaged."""

    last_full: ScrubPass | None
    current: ScrubPass | None
    damages: Sequence[KnownDamage]


def scrub_status(state: State) -> ScrubStatus:
    progress = progress_of(state)
    return ScrubStatus(progress.last_full, progress.current, state.damages())
