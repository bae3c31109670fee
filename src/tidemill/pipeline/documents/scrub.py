"""What a scrub found, and the progress of the one in the background, as plain documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.damage import FileKind
from tidemill.model.time import format_duration, format_instant
from tidemill.pipeline.documents.shapes import Document

if TYPE_CHECKING:
    from tidemill.model.damage import Damage, KnownDamage
    from tidemill.pipeline.scrub import Scrubbed
    from tidemill.pipeline.scrub_progress import ScrubPass, ScrubStatus


def scrubbed(of: Scrubbed) -> Document:
    return {
        "ok": of.ok,
        "files": of.tally.files,
        "bytes": of.tally.bytes,
        "unchecked": of.tally.unchecked,
        "damages": [damage(one) for one in of.damages],
    }


def damage(of: Damage) -> Document:
    return {
        "file": of.file,
        "kind": of.kind.value,
        "stream": of.stream or None,
        "reason": of.reason,
        "remedy": remedy(of),
    }


def known_damage(of: KnownDamage) -> Document:
    return {**damage(of.damage), "since": format_instant(of.since)}


def remedy(of: Damage) -> str:
    """The command that repairs it, as far as possible."""
    if of.kind is FileKind.STATE:
        return "tidemill recover"
    return f"tidemill repair {of.stream}".rstrip()


def scrub_status(of: ScrubStatus, now: int) -> Document:
    """For `status`: the last full pass with its age, the current one, and what is damaged."""
    last = None
    if of.last_full is not None:
        last = {**_pass(of.last_full), "age": format_duration(max(0, now - of.last_full.started))}
    return {
        "last_full": last,
        "current": None if of.current is None else _pass(of.current),
        "damages": [known_damage(one) for one in of.damages],
    }


def _pass(of: ScrubPass) -> Document:
    return {
        "started": format_instant(of.started),
        "finished": None if of.finished is None else format_instant(of.finished),
        "files": of.files,
        "bytes": of.bytes,
        "unchecked": of.unchecked,
        "damaged": of.damaged,
    }
