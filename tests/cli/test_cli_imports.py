"""What is asked for most imports little. `scripts/startup.py` looks at all commands that only read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tidemill.cli.main import MODULES, every_command


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_every_module_declares_the_commands_that_it_is_loaded_for():
    """Else a command would be there in the help and not when it is called."""
    declared = {name: set(commands) for name, commands in MODULES.items()}
    app = every_command()
    found = {command.name: command.callback for command in app.registered_commands}
    assert set(found) | {group.name for group in app.registered_groups} == set().union(*declared.values())
    for module, commands in declared.items():
        script = f"import tidemill.cli.{module}\nfrom tidemill.cli.app import app\n" + NAMES
        assert set(json.loads(run("-c", script, cwd=".").stdout)) == commands


NAMES = """
import json
print(json.dumps([each.name for each in (*app.registered_commands, *app.registered_groups)]))
"""


@pytest.mark.parametrize("words", [["-p", "status", "types"], ["types", "--output", "json"], ["typos"], []])
def test_a_command_is_found_whatever_words_stand_around_it(cli, words):
    """A folder can have the name of a command; a word that is none loads them all."""
    script = "import sys\nfrom tidemill.cli.main import main\nmain(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (cli(*words).code, cli(*words).out)


ONLY: dict[str, tuple[str, ...]] = {
    "--help": ("rich",),
    "status": ("deltalake", "numpy", "pyarrow", "pydantic", "rich"),
}
HEAVY = (
    "deltalake", "duckdb", "fastapi", "google.protobuf", "httpx", "numba", "numpy", "orjson",
    "pandas", "prometheus_client", "pyarrow", "pydantic", "pyspark", "redis", "rich", "uvicorn",
)  # fmt: skip
IMPORTED = """
import io, json, sys
from contextlib import redirect_stdout
from tidemill.cli.main import main

with redirect_stdout(io.StringIO()):
    try:
        main([sys.argv[1]])
    except SystemExit:
        pass
print(json.dumps([name for name in json.loads(sys.argv[2]) if name in sys.modules]))
"""


@pytest.mark.parametrize("command", ONLY)
def test_what_is_asked_for_most_imports_little(landed, command):
    """It is what takes the time: a second, with nothing else on the machine, is soon gone."""
    found = json.loads(run("-c", IMPORTED, command, json.dumps(HEAVY), cwd=landed).stdout)
    assert tuple(found) == ONLY[command]
