"""A real standalone cluster of Spark on loopback: one master, two workers, executors that are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.soak
SPARK = Path(str(pyspark.__file__)).parent
CONFIG = """version: 1
engine: {inline_bytes: 0, cores: 2}
streams:
  readings:
    schema: {id: string, at: string, kwh: {type: decimal, scale: 3}, meter: string}
    identity: id
    event_time: {column: at, type: iso8601}
    metrics: {energy: {kind: counter, dimensions: [meter], measures: [kwh]}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the master."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in (1, 2):
        of = [
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            "-c",
            "1",
            "-m",
            "2g",
            "-d",
            str(folder / str(number)),
        ]
        commands.append([f"{deploy}.worker.Worker", *of, master])
    environment = os.environ | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    log = folder / "cluster.log"
    with log.open("w") as out:
        running = [
            subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), *command],
                env=environment,
                stdout=out,
                stderr=out,
                cwd=folder,
            )
            for command in commands
        ]
        try:
            until = time.monotonic() + PATIENCE
            while log.read_text().count("Successfully registered with master") < 2:
                assert time.monotonic() < until, log.read_text()
                threading.Event().wait(0.5)
            yield master
        finally:
            for process in running:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        each.kill()
    process.wait()


def line(i: int) -> str:
    at = f"2024-01-15T{i % 24:02d}:00:{i % 60:02d}Z"
    return f'{{"id": "{i}", "at": "{at}", "kwh": {i}.125, "meter": "m{i % 7}"}}'


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three landed slices, which repeat each other in part: 14,000 events."""
    folder = tmp_path_factory.mktemp("landed") / "project"
    folder.mkdir()
    (folder / "tidemill.yaml").write_text(CONFIG)
    files = []
    for number in range(3):
        first = number * 4000
        files.append(f"{number}.ndjson")
        (folder / files[-1]).write_text("\n".join(line(i) for i in range(first, first + 6000)))
    tidemill(folder, "ingest", "readings", *files)
    return folder


def environment(**settings: str) -> dict[str, str]:
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return os.environ | python | settings


def tidemill(folder: Path, *words: str, **settings: str) -> str:
    command = [sys.executable, "-m", "tidemill.cli.main", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(**settings), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts(folder: Path) -> list[str]:
    """All parts of all tables; their names end with the checksums of their bytes."""
    warehouse = folder / "warehouse"
    return sorted(path.relative_to(warehouse).as_posix() for path in warehouse.rglob("*.parquet"))


@pytest.fixture(scope="module")
def local(landed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a session on this machine writes."""
    folder = tmp_path_factory.mktemp("local") / "project"
    shutil.copytree(landed, folder)
    assert "14000 accepted" in tidemill(folder, "run", "--once").replace(",", "")
    return parts(folder)


@pytest.mark.parametrize("speculation", ["false", "true"])
def test_a_cluster_writes_the_same_bytes(
    cluster: str, landed: Path, local: list[str], tmp_path: Path, speculation: str
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(landed, folder)
    conf = f"{{spark.speculation: {speculation}}}"
    tidemill(folder, "run", "--once", TIDEMILL__ENGINE__MASTER=cluster, TIDEMILL__ENGINE__CONF=conf)
    assert parts(folder) == local
    assert "equal" in tidemill(folder, "verify")


def test_executors_need_nothing_but_the_archive(
    cluster: str, landed: Path, local: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(landed, folder)
    bare = str(Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
    made = json.loads(tidemill(folder, "bundle", "-o", str(tmp_path / "tidemill.tar.gz"), "--output", "json"))
    conf = json.dumps(made["conf"] | {"spark.pyspark.python": bare})
    tidemill(folder, "run", "--once", TIDEMILL__ENGINE__MASTER=cluster, TIDEMILL__ENGINE__CONF=conf)
    assert parts(folder) == local


def test_an_executor_that_is_killed_is_replaced(
    cluster: str, landed: Path, local: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(landed, folder)
    run = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", "run", "--once"],
        cwd=folder,
        env=environment(TIDEMILL__ENGINE__MASTER=cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until, killed = time.monotonic() + PATIENCE, False
    while not killed and run.poll() is None and time.monotonic() < until:
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            if "CoarseGrainedExecutorBackend" in words:
                os.kill(process.pid, signal.SIGKILL)
                killed = True
                break
        threading.Event().wait(0.2)
    said, _ = run.communicate(timeout=PATIENCE)
    assert killed
    assert run.returncode == 0, said
    assert parts(folder) == local
