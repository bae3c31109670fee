"""Fails when a command that only reads imports what it has no need of: pandas, Spark or Numba.

Makes the sample project in a temporary folder, then runs each command in this process, one after the other.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

HEAVY = ("pandas", "pyspark", "py4j", "numba")
LOOKING = (
    ["--help"],
    ["ingest", "--help"],
    ["types"],
    ["version"],
    ["status"],
    ["ledger"],
    ["slice", "{slice}"],
    ["quarantine", "requests"],
    ["metrics"],
    ["manifest", "requests"],
    ["pack", "--explain"],
    ["tail", "requests", "--ordered", "--no-follow"],
    ["tail", "requests", "--no-follow"],
    ["late", "requests"],
    ["explain", "requests"],
    ["results", "requests"],
    ["windows"],
    ["datasets"],
    ["events"],
    ["query", "SELECT count FROM requests USING ROLLUP 1m GROUP BY region", "--all-tenants"],
    ["query", "EXPLAIN SELECT count FROM requests", "--all-tenants"],
    ["catalog"],
    ["token", "list"],
)


def tidemill(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "tidemill.cli.main", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"startup: tidemill {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


def faults(folder: Path) -> list[str]:
    """Of each command that does too much, what it imported."""
    from tidemill.cli.main import main

    tidemill(folder, "init", ".")
    tidemill(folder, "ingest", "requests", "data/requests-1.ndjson", "data/requests-2.ndjson")
    tidemill(folder, "run", "--once")
    landed = json.loads(tidemill(folder, "ledger", "--output", "json"))["slices"][0]["id"]
    os.chdir(folder)
    found: list[str] = []
    known = {name for name in HEAVY if name in sys.modules}
    for command in LOOKING:
        words = [word.replace("{slice}", landed) for word in command]
        said, code = io.StringIO(), 0
        try:
            with redirect_stdout(said), redirect_stderr(said):
                main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        if code:
            found.append(f"tidemill {' '.join(words)} ends with {code}: {said.getvalue().strip()}")
        more = [name for name in HEAVY if name in sys.modules and name not in known]
        known.update(more)
        if more:
            found.append(f"tidemill {' '.join(words)} imports {', '.join(more)}")
    return found


def main() -> int:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        found = faults(Path(folder))
        os.chdir(here)
    for fault in found:
        print(fault)
    print(f"startup: {len(found)} broken" if found else "startup: what only reads imports nothing heavy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
