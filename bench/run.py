"""`python -m bench.run [--quick] [--case NAME] [--peers-only]`: runs the cases and keeps the numbers.

The only part that prints. Results are saved after each case, with what was run and on what. Exit code 1
when a case fails or a target is missed (with --quick, which is too small for targets, when a case fails).
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.cases import CASES, clean, peers_only, save
from bench.contract import Ours
from bench.running import QUICK, Bench, Plan, Result, Skipped

RESULTS = Path(__file__).resolve().parent / "results.json"


def contender() -> Ours:
    ours: Ours = importlib.import_module("bench.ours").contender()
    return ours


def shown(results: Sequence[Result]) -> Table:
    table = Table(title="Tidemill beside its peers", caption="every result was checked to be equal")
    for heading in ("case", "ours", "peer", "ratio", "target", "ok", "note"):
        table.add_column(heading, justify="right" if heading in {"ours", "peer", "ratio"} else "left")
    for result in results:
        table.add_row(
            result.case,
            f"{result.ours:.2f} {result.unit}" if result.ours else "",
            "" if result.peer is None else f"{result.peer:.2f} {result.unit}",
            "" if result.ratio is None else f"{result.ratio:.2f}",
            "" if result.target is None else f"{result.sense} {result.target:g}",
            "" if result.target is None else "[green]yes[/]" if result.ok else "[red]no[/]",
            result.note,
        )
    return table


def described(plan: Plan, *, quick: bool) -> dict[str, object]:
    """The run that results are of."""
    root = Path(__file__).resolve().parent.parent
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "commit": said.stdout.strip() or None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "repeats": plan.repeats,
        "quick": quick,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the work, once: does it all run and agree?"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this case (may be repeated)")
    parser.add_argument("--repeats", type=int, help="best of how many (default 2)")
    parser.add_argument(
        "--peers-only", action="store_true", help="measure the peers alone; writes no results"
    )
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    console = Console(stderr=True)
    load = os.getloadavg()[0]
    if load > 0.5:
        console.print(f"[yellow]the machine is busy (load {load:.1f}); times will not be comparable[/]")
    plan = QUICK if asked.quick else Plan()
    if asked.repeats:
        plan = replace(plan, repeats=asked.repeats)
    clean()
    bench = Bench(plan, None if asked.peers_only else contender(), lambda text: console.print(f"… {text}"))
    results: list[Result] = []
    failed: list[str] = []
    run = described(plan, quick=asked.quick)
    seconds: dict[str, float] = {}
    try:
        bench.warm_up()
        if asked.peers_only:
            results = peers_only(bench)
        else:
            for name in asked.case or CASES:
                console.print(f"[bold]{name}[/]")
                began = time.perf_counter()
                try:
                    found = CASES[name](bench)
                except Skipped as reason:
                    console.print(f"[yellow]skipped: {reason}[/]")
                    continue
                except Exception:  # noqa: BLE001 (the other cases are still worth their time)
                    console.print_exception()
                    failed.append(name)
                    continue
                results += found
                seconds[name] = round(time.perf_counter() - began, 1)
                save(
                    results, {**run, "seconds": seconds}, RESULTS
                )  # after each case: a run that is stopped keeps what it has
                console.print(shown(found))
                console.print(f"{name} took {seconds[name]:.0f} s")
    finally:
        if bench.ours is not None:
            bench.ours.stop()
        clean()
    Console().print(shown(results))
    if failed:
        console.print(f"[red]failed: {', '.join(failed)}[/]")
        return 1
    return 0 if asked.quick or all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
