"""Finds the files that a user names: paths, globs, folders, `-`. It never opens a file."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidemill.model.errors import InputError

STDIN: Final = Path("-")
KINDS_HINT: Final = "give a file, a folder, a glob or - for stdin"


def expand(patterns: Sequence[str]) -> tuple[list[Path], list[InputError]]:
    """Files in the order given, those of a glob or a folder sorted by name, each once; and what is
    wrong with the rest. Files whose names start with a dot are left out of globs and folders."""
    found: dict[Path, None] = {}
    errors: list[InputError] = []
    for pattern in patterns:
        try:
            found.update(dict.fromkeys(_expand_one(pattern)))
        except InputError as error:
            errors.append(error)
    return list(found), errors


def _expand_one(pattern: str) -> list[Path]:
    if pattern == "-":
        return [STDIN]
    path = Path(pattern)
    try:
        if path.is_dir():
            return _files_of(path)
        if path.exists():
            return [_readable(path)]
        if glob.has_magic(pattern):
            matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207
            files = [match for match in matches if match.is_file()]
            if not files:
                raise InputError("no file matches", where=pattern, hint="check it; ** goes into folders")
            return files
    except OSError as error:
        raise InputError(
            f"cannot be examined: {error.strerror or error}", where=pattern, hint="check its permissions"
        ) from error
    raise InputError("there is no such file", where=pattern, hint=KINDS_HINT)


def _files_of(folder: Path) -> list[Path]:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError("folder cannot be read", where=str(folder), hint="check its permissions")
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError("folder has no files in it", where=str(folder), hint="name its folders, or use **")
    return files


def _readable(path: Path) -> Path:
    if not os.access(path, os.R_OK):
        raise InputError("file cannot be read", where=str(path), hint="check its permissions")
    return path
