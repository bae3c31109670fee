"""Which kind of file is damaged, by its path, and where it is put: `_damaged/` of the warehouse."""

from __future__ import annotations

import json
from pathlib import Path

from tidemill.model.damage import Damage, FileKind
from tidemill.model.time import format_instant
from tidemill.storage import layout
from tidemill.storage.files import atomic_write, make_folder, storage_errors, sync_folder


def kind_of(file: str) -> FileKind | None:
    """The kind of a file, by its path in the warehouse; None if it is not repaired."""
    top, *rest = Path(file).parts
    if "_delta_log" in rest:
        return FileKind.TABLE_LOG
    if layout.is_open_rows(Path(file)):
        return FileKind.OPEN_WINDOWS
    if top == "trails":
        is_admitted = file.endswith(layout.ADMITTED_SUFFIX)
        return FileKind.ADMITTED_KEYS if is_admitted else FileKind.OBSERVATIONS
    return {
        "raw": FileKind.RAW,
        "quarantine": FileKind.QUARANTINE,
        "rollups": FileKind.ROLLUP,
        "windows": FileKind.RESULT,
        "index": FileKind.INDEX,
        "chains": FileKind.CHAIN,
        "gate": FileKind.ACCEPTED_IDS,
        "sealed": FileKind.EXPIRED_IDS,
        "datasets": FileKind.DATASET,
    }.get(top)


def set_aside(root: Path, damage: Damage, now: int) -> str:
    """Move a file to `_damaged/`, with the reason beside it; returns its new path. For a missing file only
    the reason is written. A log beside the slices is copied: its intact lines stay in use."""
    target = layout.damaged(root) / damage.file
    number = 1
    while target.exists() or layout.damage_reason(target).exists():
        number += 1
        target = layout.damaged(root) / f"{damage.file}.{number}"
    make_folder(target.parent, top=root)
    note = {
        "file": damage.file,
        "kind": damage.kind.value,
        "stream": damage.stream or None,
        "reason": damage.reason,
        "set_aside_at": format_instant(now),
    }
    text = json.dumps(note, indent=2, ensure_ascii=False)
    atomic_write(layout.damage_reason(target), text.encode() + b"\n")
    source = root / damage.file
    if source.exists():
        with storage_errors("set the damaged file aside", source):
            if damage.kind is FileKind.SLICE_LOG:
                atomic_write(target, source.read_bytes())
            else:
                source.replace(target)
        sync_folder(target.parent)
        sync_folder(source.parent)
    return target.relative_to(root).as_posix()
