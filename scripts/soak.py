"""Runs the long tests within a budget of minutes, with other examples each time, and prints what was done.

Each suite gets a share of the time and runs in rounds with seeds of their own, until its share is over: then
the round that runs is cut, unless something has failed in it, whose smallest case is looked for. A failure
stops the soak: what the tests printed is shown, with the command that repeats that round.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SHRINKING: Final = 600.0  # seconds for a round in which something failed to find its smallest case
PYTEST: Final = ("-m", "pytest", "-x", "--hypothesis-profile=soak", "--hypothesis-seed={seed}")


@dataclass(frozen=True, slots=True)
class Suite:
    """`arguments` are those of Python; `{seed}` and `{seconds}` in them are filled in."""

    name: str
    share: float  # of the time
    arguments: Sequence[str]
    rounds: bool = True  # False: one round, which is cut when its share is over


HAS_ATHERIS: Final = importlib.util.find_spec("atheris") is not None
FUZZER: Final = "tests.support.fuzzing_atheris" if HAS_ATHERIS else "tests.support.fuzzing"
FUZZED: Final = (
    "body application/json", "body application/x-ndjson", "body application/cloudevents+json",
    "body application/vnd.apache.parquet", "body application/vnd.apache.arrow.stream", "otlp json",
    "otlp protobuf", "wal", "slice log", "part", "footer of raw", "footer of rollups", "query",
    "query document", "condition", "config",
)  # fmt: skip
SUITES: Final = (
    Suite("stories of a whole mill", 0.4, (*PYTEST, "tests/pipeline/test_whole_mill.py")),
    Suite("killed servers", 0.2, (*PYTEST, "-m", "soak", "tests/ingest/gateway/test_gateway_kill.py")),
    *(
        Suite(
            f"fuzzing: {target}",
            0.2 / len(FUZZED),
            ("-m", FUZZER, target, "--seed", "{seed}", "--seconds", "{seconds}"),
        )
        for target in FUZZED
    ),
    Suite("all other long tests", 0.2, (*PYTEST, "-m", "soak or property"), rounds=False),
)
# What is printed at the end, if a suite counted it.
FIGURES: Final = {
    "stories": "stories of a whole mill",
    "checks": "comparisons of a whole mill with its input",
    "crashes": "deaths at a fail point",
    "kills": "servers killed by SIGKILL",
    "stops": "servers stopped and continued",
    "damages": "files flipped, cut or deleted",
    "repairs": "repairs",
    "losses": "files that nothing could make again: answers said so",
    "rebuilt": "rebuilds of everything",
    "recoveries": "states lost and recovered",
    "fuzzed": "inputs of the fuzzer",
    "acknowledged": "events acknowledged",
    "lost": "events lost",
    "doubled": "events doubled",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; chosen when left out")
    parser.add_argument("--only", default="", help="suites whose name begins with this")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 20) if chosen.seed is None else chosen.seed
    suites = [suite for suite in SUITES if suite.name.startswith(chosen.only)]
    whole = sum(suite.share for suite in suites)
    figures = Path(tempfile.mkdtemp(prefix="soak-")) / "figures.ndjson"
    figures.touch()
    if not HAS_ATHERIS:
        print("atheris is not installed: fuzzing mutates samples, and does not follow branches", flush=True)
    ok = True
    for suite in suites:
        ok = _run(suite, chosen.minutes * 60 * suite.share / whole, seed, figures)
        if not ok:
            break
    _print_figures(figures)
    return 0 if ok else 1


def _run(suite: Suite, seconds: float, seed: int, figures: Path) -> bool:
    """Whether every round of a suite passed."""
    until = time.monotonic() + seconds
    rounds, cut = 0, ""
    while rounds == 0 or (suite.rounds and time.monotonic() < until):
        passed = _round(suite, max(1.0, until - time.monotonic()), seed + rounds, figures)
        rounds += 1
        if passed is False:
            return False
        cut = ", the last one cut when its time was over" if passed is None else ""
    print(f"{suite.name}: {rounds} rounds, seeds {seed} to {seed + rounds - 1}: passed{cut}", flush=True)
    return True


def _round(suite: Suite, seconds: float, seed: int, figures: Path) -> bool | None:
    """Whether it passed; None: its time was over, and nothing had failed."""
    filled = [one.format(seed=seed, seconds=int(seconds)) for one in suite.arguments]
    if not suite.rounds:
        filled += _shuffled_tests(seed)  # so that others are run each time
    environment = {"TIDEMILL_SOAK_FIGURES": str(figures), "TIDEMILL_SOAK_SEED": str(seed)}
    before = _totals(figures)["failing"]
    with subprocess.Popen(
        [sys.executable, *filled], cwd=ROOT, env=os.environ | environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        said = _output(process, seconds)
        if said is None and _totals(figures)["failing"] > before:
            print(f"{suite.name}: seed {seed} failed; looking for the smallest case", flush=True)
            said = _output(process, SHRINKING) or "no smaller case was found in time"
        if said is None:
            _end(process)
            return None
        _end(process)
    if process.returncode == 0:
        return True
    command = " ".join(f"'{one}'" if " " in one else one for one in filled)
    print(said)
    print(f"{suite.name}: failed. Repeat it with\n  TIDEMILL_SOAK_SEED={seed} .venv/bin/python {command}")
    return False


def _output(process: subprocess.Popen[str], seconds: float) -> str | None:
    """What it printed, if it ends in that time."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[str]) -> None:
    """With all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _shuffled_tests(seed: int) -> list[str]:
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    random.Random(seed).shuffle(files)
    return files


def _totals(figures: Path) -> Counter[str]:
    totals: Counter[str] = Counter()
    for line in figures.read_text().splitlines():
        with suppress(ValueError):  # half a line, of a process that was ended
            totals.update(json.loads(line))
    return totals


def _print_figures(figures: Path) -> None:
    totals = _totals(figures)
    for name, meaning in FIGURES.items():
        if name in totals:
            print(f"{totals[name]:>12,} {meaning}")


if __name__ == "__main__":
    sys.exit(main())
