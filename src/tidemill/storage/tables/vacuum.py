"""Deleting the files of a table that no reader can need any more.

Told what to keep; never decides that itself, and never touches a file that Tidemill did not write.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from tidemill.storage import layout
from tidemill.storage.files import storage_errors
from tidemill.storage.tables.parts import is_ours


def _is_older(path: Path, instant: int) -> bool:
    try:
        return path.stat().st_mtime_ns // 1000 < instant
    except FileNotFoundError:  # went away while we looked
        return False


def unreferenced(root: Path, kept: Collection[str]) -> dict[str, int]:
    """Parquet files under `root` that are not in `kept`, by path, with the instant each was written."""
    found: dict[str, int] = {}
    with storage_errors("vacuum", root):
        for path in sorted(root.rglob("*.parquet")):
            relative = path.relative_to(root)
            hidden = any(name.startswith(("_", ".")) for name in relative.parts)
            if hidden or relative.as_posix() in kept:
                continue
            with suppress(FileNotFoundError):  # went away while we looked
                found[relative.as_posix()] = path.stat().st_mtime_ns // 1000
    return found


def delete_parts(root: Path, paths: Iterable[str]) -> list[str]:
    """Delete those of the files that Tidemill wrote; returns their paths."""
    deleted: list[str] = []
    with storage_errors("vacuum", root):
        for path in paths:
            if is_ours(root / path):
                (root / path).unlink()
                deleted.append(path)
    return deleted


def delete_staging(root: Path, oldest: int) -> None:
    """Delete staging in which nothing was touched since `oldest`."""
    with storage_errors("vacuum", root):
        areas = (layout.staging(root), layout.packing(root))
        for folder in (one for area in areas if area.is_dir() for one in area.iterdir()):
            if all(_is_older(path, oldest) for path in (folder, *folder.rglob("*"))):
                shutil.rmtree(folder)
