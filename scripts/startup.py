"""Fails when a command that only reads imports what it has no need of: pandas, Spark or Numba, and for some
commands more.

Makes the sample project and one of vectors in a temporary folder, then runs each command in this process.
What an earlier command imported cannot be held against a later one, so those that may import least come
first.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

HEAVY = ("pandas", "pyspark", "py4j", "numba")
DATA = ("numpy", "pyarrow", "duckdb", "deltalake", "yaml", "tidemill.config", "tidemill.mill")
WITHOUT: tuple[tuple[list[str], tuple[str, ...]], ...] = (
    (["--help"], ("pydantic", "importlib.metadata", *DATA)),
    (["ingest", "--help"], DATA),
    (["version"], DATA),
    (
        ["query", "SELECT count FROM requests USING ROLLUP 1m GROUP BY region", "--all-tenants"],
        ("pyarrow.parquet", "pyarrow.dataset", "ssl", "asyncio"),
    ),
)
LOOKING = (
    ["types"],
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
    ["query", "EXPLAIN SELECT count FROM requests", "--all-tenants"],
    ["search", "requests", "SINCE 90d", "--all-tenants"],
    ["sql"],
    ["sql", "SELECT tenant, count(*) FROM raw.requests GROUP BY 1", "--all-tenants"],
    ["catalog"],
    ["token", "list"],
)
VECTORS = (
    ["vector", "embeddings", "doc-00017"],
    ["chain", "embeddings", "doc-00017"],
    ["deltas", "embeddings"],
    ["deltas", "embeddings", "--window", "6h", "-o", "batches"],
)
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def tidemill(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "tidemill.cli.main", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"startup: tidemill {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


def made(folder: Path) -> tuple[Path, Path, str]:
    """The sample project, one of vectors, and a slice of the first."""
    requests, vectors = folder / "requests", folder / "vectors"
    requests.mkdir()
    tidemill(requests, "init", ".")
    tidemill(requests, "ingest", "requests", "data/requests-1.ndjson", "data/requests-2.ndjson")
    tidemill(requests, "run", "--once")
    landed = json.loads(tidemill(requests, "ledger", "--output", "json"))["slices"][0]["id"]
    shutil.copytree(EXAMPLES / "embeddings", vectors)
    make = [sys.executable, "make.py", "--vectors", "50", "--deltas", "100"]
    subprocess.run(make, cwd=vectors, check=True, stdout=subprocess.DEVNULL)
    tidemill(vectors, "ingest", "embeddings", "data")
    tidemill(vectors, "run", "--once")
    return requests, vectors, landed


def faults(folder: Path) -> list[str]:
    """Of each command that does too much, what it imported."""
    requests, vectors, landed = made(folder)
    os.chdir(requests)
    found = [fault for words, unneeded in WITHOUT for fault in tried(words, unneeded)]
    for words in LOOKING:
        found += tried([word.replace("{slice}", landed) for word in words])
    os.chdir(vectors)
    return found + [fault for words in VECTORS for fault in tried(words)]


def tried(words: list[str], unneeded: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with one command, which is run in this process."""
    from tidemill.cli.main import main

    known = set(sys.modules)
    said, code = io.StringIO(), 0
    try:
        with redirect_stdout(said), redirect_stderr(said):
            main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    found = [f"tidemill {' '.join(words)} ends with {code}: {said.getvalue().strip()}"] if code else []
    more = [name for name in (*HEAVY, *unneeded) if name in sys.modules and name not in known]
    return [*found, f"tidemill {' '.join(words)} imports {', '.join(more)}"] if more else found


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
