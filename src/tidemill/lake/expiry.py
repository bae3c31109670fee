"""Deleting the files of a table that no reader can need any more.

Told what to keep; never decides that itself, and never touches a file that Tidemill did not write.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from tidemill.lake.parts import is_ours
from tidemill.lake.sync import storage_errors


def _is_older(path: Path, instant: int) -> bool:
    try:
        return path.stat().st_mtime_ns // 1000 < instant
    except FileNotFoundError:  # went away while we looked
        return False


def delete_unreferenced(root: Path, kept: Collection[str], oldest: int) -> list[str]:
    """Delete our parts under `root` that were written before `oldest` and are not in `kept`.

    Staging that was last touched before `oldest` goes too. Returns the paths of the parts.
    """
    deleted: list[str] = []
    with storage_errors("vacuum", root):
        for path in sorted(root.rglob("*.parquet")):
            relative = path.relative_to(root)
            hidden = any(name.startswith(("_", ".")) for name in relative.parts)
            if hidden or relative.as_posix() in kept or not _is_older(path, oldest):
                continue
            if is_ours(path):
                path.unlink()
                deleted.append(relative.as_posix())
        areas = [root / name for name in ("_staging", "_packing")]
        for folder in (one for area in areas if area.is_dir() for one in area.iterdir()):
            if all(_is_older(path, oldest) for path in (folder, *folder.rglob("*"))):
                shutil.rmtree(folder)
    return deleted
