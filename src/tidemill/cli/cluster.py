"""The command for Spark clusters: bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session

# Imports inside functions keep start-up short: a command loads only what it runs.


@command(
    "bundle",
    Panel.SERVE,
    "tidemill bundle -o tidemill.tar.gz",
    "spark-submit --master spark://HOST:7077 $(tidemill bundle --entry) run --once",
)
def bundle(
    session: Session,
    file: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The archive to write, a .tar.gz.")
    ] = Path("tidemill.tar.gz"),
    entry: Annotated[
        bool, typer.Option("--entry", metavar="", help="Only print the script that spark-submit starts.")
    ] = False,
) -> int:
    """Pack Tidemill and all it needs for the executors of a Spark cluster.

    They need the same version of Python, and nothing else installed. The settings that it prints belong in
    engine.conf of tidemill.yaml, or behind --conf of spark-submit. Needs no project.
    """
    if entry:
        script = str(Path(__file__).with_name("submit.py"))
        session.emit(lambda: {"entry": script}, lambda: views.cluster.entry(script))
        return OK
    from tidemill.engine.bundle import write_bundle  # lazy: no other command needs it
    from tidemill.storage.writers import whole_file

    with whole_file(file) as target:
        made = write_bundle(target)
    conf = made.conf_at(file)
    session.emit(
        lambda: {"file": str(file), "bytes": made.size, "packages": list(made.packages), "conf": conf},
        lambda: views.cluster.bundled(file, made, conf),
    )
    return OK
