"""One step of an expiry plan: what is deleted of one kind of data of one stream. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.time import format_duration, format_instant


@dataclass(frozen=True, slots=True)
class ExpiryStep:
    """What is deleted of one kind of data of one stream, or why nothing is."""

    stream: str
    what: str  # quarantine, datasets, rollups:<level>, raw
    keep: int  # how long it is kept, as declared
    before: int  # what is before this instant is deleted
    files: int = 0
    rows: int = 0
    bytes: int = 0
    windows: int = 0  # windows that are deleted with their datasets, including those without one
    held_by: str | None = None  # why less is deleted than the retention says

    @property
    def due(self) -> bool:
        return self.files > 0 or self.windows > 0

    def __str__(self) -> str:
        what = f"{self.stream} {self.what} is kept {format_duration(self.keep)}"
        gone = f"{self.files:,} files with {self.rows:,} rows before {format_instant(self.before)} go"
        held = f"; held back by {self.held_by}" if self.held_by else ""
        return f"{what}: {gone if self.due else 'nothing to go'}{held}"
