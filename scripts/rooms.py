"""Checks that each room imports only the rooms its line in pyproject.toml allows, with import-linter.

import-linter refuses contracts about modules that do not exist; this drops them, and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def existing_rooms(package: Path) -> set[str]:
    """Sub-packages and single modules directly under the package."""
    packages = {child.parent.name for child in package.glob("*/__init__.py")}
    modules = {child.stem for child in package.glob("*.py") if not child.stem.startswith("__")}
    return packages | modules


def contracts(rooms: dict[str, list[str]], existing: set[str]) -> list[tuple[str, list[str]]]:
    """(room, the rooms it must not import directly), for the rooms that exist."""
    found = []
    for room, allowed in rooms.items():
        if room in existing and "*" not in allowed:
            barred = existing - set(allowed) - {room}
            if barred:
                found.append((room, sorted(barred)))
    return found


def as_toml(found: list[tuple[str, list[str]]]) -> str:
    lines = ["[tool.importlinter]", 'root_package = "tidemill"']
    for room, barred in found:
        lines += [
            "[[tool.importlinter.contracts]]",
            f'name = "{room} keeps to its rooms"',
            'type = "forbidden"',
            f'source_modules = ["tidemill.{room}"]',
            f"forbidden_modules = {json.dumps([f'tidemill.{other}' for other in barred])}",
            # What an allowed room imports in its turn is that room's business.
            "allow_indirect_imports = true",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    with (ROOT / "pyproject.toml").open("rb") as file:
        rooms: dict[str, list[str]] = tomllib.load(file)["tool"]["tidemill"]["rooms"]
    existing = existing_rooms(ROOT / "src" / "tidemill")
    unknown = sorted(existing - set(rooms))
    if unknown:
        print(f"rooms: {', '.join(unknown)} not listed in [tool.tidemill.rooms] of pyproject.toml")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "pyproject.toml"
        config.write_text(as_toml(contracts(rooms, existing)), encoding="utf-8")
        linter = Path(sys.executable).parent / "lint-imports"
        done = subprocess.run([str(linter), "--no-logo", "--config", str(config)], cwd=ROOT, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
