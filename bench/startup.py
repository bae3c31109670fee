"""What a command costs that only reads: CPU seconds of its process, imports included.

CPU and not wall time: it is the same on a busy machine, and it is what a script pays that calls us often.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

from bench.running import OUT, Bench, Result, within

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LIGHT, READING = 0.2, 0.6  # CPU seconds in user mode
QUERY = "SELECT count FROM requests SINCE 90d GROUP BY region"
COMMANDS: dict[str, tuple[float, tuple[str, ...]]] = {
    "version": (LIGHT, ("version",)),
    "--help": (LIGHT, ("--help",)),
    "status": (READING, ("status",)),
    "ledger": (READING, ("ledger",)),
    "windows": (READING, ("windows",)),
    "datasets": (READING, ("datasets",)),
    "query": (READING, ("query", QUERY, "--all-tenants")),
    "search": (READING, ("search", "requests", "SINCE 90d", "--all-tenants")),
    "tail": (READING, ("tail", "requests", "--no-follow")),
    "explain": (READING, ("explain", "requests")),
    "catalog": (READING, ("catalog",)),
    "quarantine": (READING, ("quarantine", "requests")),
}
OF_VECTORS: dict[str, tuple[float, tuple[str, ...]]] = {
    "vector": (READING, ("vector", "embeddings", "doc-00017")),
    "chain": (READING, ("chain", "embeddings", "doc-00017")),
    "deltas": (READING, ("deltas", "embeddings", "--window", "6h", "-o", "batches")),
}


def startup(bench: Bench) -> list[Result]:
    requests, vectors = OUT / "startup", OUT / "startup_vectors"
    shutil.rmtree(requests, ignore_errors=True)
    shutil.rmtree(vectors, ignore_errors=True)
    requests.mkdir(parents=True)
    _tidemill(requests, "init", ".")
    _tidemill(requests, "ingest", "requests", "data/requests-1.ndjson", "data/requests-2.ndjson")
    _tidemill(requests, "run", "--once")
    shutil.copytree(EXAMPLES / "embeddings", vectors)
    _run(vectors, "make.py", "--vectors", "50", "--deltas", "500")
    _tidemill(vectors, "ingest", "embeddings", "data")
    _tidemill(vectors, "run", "--once")
    return [
        within(f"startup {name}", _best(folder, words, bench.plan.repeats), None, limit, "s", "user CPU")
        for folder, commands in ((requests, COMMANDS), (vectors, OF_VECTORS))
        for name, (limit, words) in commands.items()
    ]


def _best(folder: Path, words: tuple[str, ...], repeats: int) -> float:
    """The first call of a command may compile; what counts is how it goes on."""
    _tidemill(folder, *words)
    return min(_tidemill(folder, *words) for _ in range(repeats))


def _tidemill(folder: Path, *words: str) -> float:
    return _run(folder, "-m", "tidemill.cli.main", *words)


def _run(folder: Path, *words: str) -> float:
    """CPU seconds in user mode."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
