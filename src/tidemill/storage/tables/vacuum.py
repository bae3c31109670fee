"""Deletes files of a table that no reader can need any more.

The caller says what to keep; files that Tidemill did not write are never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.files import remove_tree, storage_errors
from tidemill.storage.tables.parts import is_ours


def _is_older(path: Path, instant: int) -> bool:
    try:
        return path.stat().st_mtime_ns // 1000 < instant
    except FileNotFoundError:  # deleted meanwhile
        return False


def unreferenced(root: Path, kept: Collection[str]) -> dict[str, int]:
    """Parquet files under `root` that are not in `kept`, by path, with the instant each was written."""
    found: dict[str, int] = {}
    with storage_errors("vacuum", root):
        if isinstance(root, BucketPath):
            written = {
                one.key.removeprefix(f"{root.key}/"): one.modified // 1000
                for one in root.bucket.objects(root.key)
            }
            return {path: at for path, at in written.items() if _is_part(path) and path not in kept}
        for path in sorted(root.rglob("*.parquet")):
            relative = path.relative_to(root).as_posix()
            if not _is_part(relative) or relative in kept:
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                found[relative] = path.stat().st_mtime_ns // 1000
    return found


def _is_part(path: str) -> bool:
    """Whether readers of a table would take a file of its folder for a part."""
    return path.endswith(".parquet") and not any(name.startswith(("_", ".")) for name in path.split("/"))


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
    """Delete staging in which nothing was changed since `oldest`."""
    with storage_errors("vacuum", root):
        areas = (layout.staging(root), layout.packing(root))
        for folder in (one for area in areas if area.is_dir() for one in area.iterdir()):
            if all(_is_older(path, oldest) for path in (folder, *folder.rglob("*"))):
                remove_tree(folder)
