"""Commands that only look import neither Spark nor Numba, and are quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

LOOKING = [
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
    ["query", "SELECT count FROM requests SINCE 1h USING ROLLUP 1m GROUP BY region"],
    ["query", "EXPLAIN SELECT count FROM requests"],
    ["catalog"],
]
SCRIPT = """
import io, json, sys
from contextlib import redirect_stdout
from tidemill.cli.main import main

found = {}
for command in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()):
        try:
            main(command)
        except SystemExit as left:
            code = left.code
    heavy = [name for name in ("pyspark", "py4j", "numba") if name in sys.modules]
    found[" ".join(command)] = [code, heavy]
print(json.dumps(found))
"""


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_looking_imports_neither_spark_nor_numba(cli, landed):
    id_ = cli("ledger", "--output", "json").json["slices"][0]["id"]
    commands = [[word.replace("{slice}", id_) for word in command] for command in LOOKING]
    found = json.loads(run("-c", SCRIPT, json.dumps(commands), cwd=landed).stdout)
    assert found == {" ".join(command): [0, []] for command in commands}


ONLY: dict[str, tuple[str, ...]] = {
    "--help": ("rich",),
    "status": ("deltalake", "numpy", "pyarrow", "pydantic", "rich"),
}
HEAVY = (
    "deltalake", "duckdb", "fastapi", "google.protobuf", "httpx", "lark", "numba", "numpy", "orjson",
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
