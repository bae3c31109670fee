"""What a command costs that only reads: CPU seconds of its process, imports included.

CPU and not wall time: it is the same on a busy machine, and it is what a script pays that calls us often.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from bench.running import OUT, Bench, Result, within
from tidemill.cli.main import every_command

Call = Callable[[Path, tuple[str, ...]], float]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LIGHT, READING = 0.2, 0.6  # CPU seconds in user mode
QUERY = "SELECT count FROM requests SINCE 90d GROUP BY region"
SQL = "SELECT tenant, count(*) FROM raw.requests GROUP BY 1"
COMMANDS: dict[str, tuple[float, tuple[str, ...]]] = {
    "version": (LIGHT, ("version",)),
    "--help": (LIGHT, ("--help",)),
    "status": (READING, ("status",)),
    "ledger": (READING, ("ledger",)),
    "windows": (READING, ("windows",)),
    "datasets": (READING, ("datasets",)),
    "query": (READING, ("query", QUERY, "--all-tenants")),
    "search": (READING, ("search", "requests", "SINCE 90d", "--all-tenants")),
    "sql": (READING, ("sql", SQL, "--all-tenants")),
    "tail": (READING, ("tail", "requests", "--no-follow")),
    "explain": (READING, ("explain", "requests")),
    "catalog": (READING, ("catalog",)),
    "quarantine": (READING, ("quarantine", "requests")),
}
OF_VECTORS: dict[str, tuple[float, tuple[str, ...]]] = {
    "vector": (READING, ("vector", "embeddings", "doc-00017")),
    "chain": (READING, ("chain", "embeddings", "doc-00017")),
    "deltas": (READING, ("deltas", "embeddings")),
    "deltas --window": (READING, ("deltas", "embeddings", "--window", "6h", "-o", "batches")),
}


def startup(bench: Bench) -> list[Result]:
    call = _apart if bench.plan.on_spark else _here
    requests, vectors = OUT / "startup", OUT / "startup_vectors"
    shutil.rmtree(requests, ignore_errors=True)
    shutil.rmtree(vectors, ignore_errors=True)
    requests.mkdir(parents=True)
    call(requests, ("init", "."))
    call(requests, ("ingest", "requests", "data/requests-1.ndjson", "data/requests-2.ndjson"))
    call(requests, ("run", "--once"))
    shutil.copytree(EXAMPLES / "embeddings", vectors)
    _run(vectors, "make.py", "--vectors", "50", "--deltas", "500")
    call(vectors, ("ingest", "embeddings", "data"))
    call(vectors, ("run", "--once"))
    _apart(requests, ("version",))
    return [
        within(
            f"startup {name}", _best(call, folder, words, bench.plan.repeats), None, limit, "s", "user CPU"
        )
        for folder, commands in ((requests, COMMANDS), (vectors, OF_VECTORS))
        for name, (limit, words) in commands.items()
    ]


def _best(call: Call, folder: Path, words: tuple[str, ...], repeats: int) -> float:
    """The first call of a command may compile; what counts is how it goes on."""
    if call is _apart:
        call(folder, words)
    return min(call(folder, words) for _ in range(repeats))


def _apart(folder: Path, words: tuple[str, ...]) -> float:
    """A command as a user starts it; CPU seconds of its process in user mode."""
    return _run(folder, "-m", "tidemill.cli.main", *words)


def _here(folder: Path, words: tuple[str, ...]) -> float:
    """The same command in this process, where that it runs is all that matters."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with contextlib.chdir(folder):
        done = CliRunner().invoke(every_command(), list(words))
    assert done.exit_code == 0, (words, done.output, done.exception)
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


def _run(folder: Path, *words: str) -> float:
    """CPU seconds in user mode. Compiled modules are kept, as after an installation, whatever this process
    was told: otherwise each call would compile all of them again."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(OUT / "startup_pycache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, *words], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
