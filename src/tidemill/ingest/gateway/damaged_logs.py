"""Damaged stretches of the logs of gateways: set aside with their reason, and listed.

Their bytes are durable in `_damaged/` before their log is removed, so nothing that was acknowledged is
dropped silently. An operator who has dealt with one (by sending the events again) removes its two files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tidemill.ingest.gateway.log_replay import BadBytes
from tidemill.model.damage import Damage, FileKind
from tidemill.storage import layout
from tidemill.storage.files import atomic_write, make_folder, storage_errors


def set_aside(warehouse: Path, bad: Sequence[BadBytes]) -> list[Damage]:
    """Keep these stretches; idempotent."""
    return [_keep(warehouse, one) for one in bad]


def _keep(warehouse: Path, bad: BadBytes) -> Damage:
    offset = layout.damaged_stretch(warehouse, bad.path, bad.start)
    make_folder(offset.parent, top=warehouse)
    content = b""
    if bad.end > bad.start:
        with storage_errors("read the log", bad.path), bad.path.open("rb") as file:
            file.seek(bad.start)
            content = file.read(bad.end - bad.start)
    atomic_write(offset, content)
    log = bad.path.relative_to(warehouse).as_posix()
    note = {
        "file": offset.relative_to(warehouse).as_posix(),
        "log": log,
        "start": bad.start,
        "end": bad.end,
        "reason": f"bytes {bad.start} to {bad.end} of {log}: {bad.reason}"
        if content
        else f"{log}: {bad.reason}",
    }
    atomic_write(layout.damage_note(offset), json.dumps(note, indent=1).encode() + b"\n")
    return _damage(note["file"], note["reason"])


def damaged_logs(warehouse: Path) -> list[Damage]:
    """What was set aside and still exists, by name."""
    found: list[Damage] = []
    for path in sorted(layout.damaged_gateway_logs(warehouse).glob("*/*.json")):
        try:
            note = json.loads(path.read_bytes())
            found.append(_damage(str(note["file"]), str(note["reason"])))
        except (OSError, ValueError, KeyError, TypeError):
            name = path.relative_to(warehouse).as_posix()
            found.append(_damage(name, "the note about it cannot be read"))
    return found


def _damage(file: object, reason: object) -> Damage:
    return Damage(str(file), FileKind.GATEWAY_LOG, "", str(reason))
