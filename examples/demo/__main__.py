"""`python -m examples.demo [FOLDER] [--warehouse URL] [--events N] [--quick] [--serve]`: exit code 0: all is
right.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
from pathlib import Path

from examples.demo.project import TIME_TYPE
from examples.demo.story import run_demo
from rich.console import Console

from tidemill.cli.signals import until_stopped
from tidemill.config import load_project
from tidemill.mill import Mill
from tidemill.model.errors import TidemillError
from tidemill.server import start
from tidemill.server.start import Started


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="The Tidemill demo, on Spark."
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("demo"), help="of the demo project (demo)"
    )
    parser.add_argument(
        "--warehouse",
        metavar="URL",
        help="keep the warehouse in a bucket (s3://BUCKET/PREFIX), not in the folder",
    )
    parser.add_argument("--events", type=int, default=300_000, help="of the feed (300000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    parser.add_argument("--serve", action="store_true", help="then serve the console, until interrupted")
    given = parser.parse_args()
    # Where there is no terminal, nothing is cut to fit one.
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        result = run_demo(
            given.folder, events=given.events, console=console, quick=given.quick, warehouse=given.warehouse
        )
        if given.serve:
            serve(given.folder, console)
    except TidemillError as error:
        sys.stderr.write(f"error: {error}\n{error.hint}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the next demo starts afresh\n")
        return 130
    return 0 if result.ok else 1


def serve(folder: Path, console: Console) -> None:
    """The console on the demo's warehouse: at the port of the project, or a free one where that is taken."""
    gateway = load_project(folder, {TIME_TYPE}).gateway
    with socket.socket() as probe:
        taken = probe.connect_ex((gateway.host, gateway.port)) == 0

    def announce(started: Started) -> None:
        console.print(f"\nThe console is at {started.url}/ until you press Ctrl+C.", highlight=False)

    def work(stop: threading.Event) -> None:
        with Mill.open(folder) as mill:
            start.serve(mill, stop, port=0 if taken else None, announce=announce)

    until_stopped(work)


if __name__ == "__main__":
    sys.exit(main())
