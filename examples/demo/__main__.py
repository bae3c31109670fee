"""`python -m examples.demo [FOLDER] [--events N] [--quick]`: exit code 0 when all is right, else 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.demo.story import run_demo
from rich.console import Console

from tidemill.model.errors import TidemillError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="The Tidemill demo, on Spark."
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("demo"), help="of the demo project (demo)"
    )
    parser.add_argument("--events", type=int, default=300_000, help="of the feed (300000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    given = parser.parse_args()
    # Where there is no terminal, nothing is cut to fit one.
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        result = run_demo(given.folder, events=given.events, console=console, quick=given.quick)
    except TidemillError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the next demo starts afresh\n")
        return 130
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
