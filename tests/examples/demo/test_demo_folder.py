"""The folder of the demo: afresh each time, and never anybody else's."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from examples.demo.project import TIME_TYPE, start_afresh, tidemill_command
from examples.demo.telling import Teller, errors_to
from rich.console import Console
from tests.support.bucket_server import BucketServer
from tests.support.oracles.stream import REQUESTS

from examples.demo import run_demo
from tidemill.config import load_project
from tidemill.model.errors import ConfigError, InputError, StorageError
from tidemill.model.time import HOUR
from tidemill.storage.bucket import Bucket


def test_the_project_declares_the_stream_of_the_feed(tmp_path: Path) -> None:
    place = start_afresh(tmp_path / "demo")
    stream = load_project(place.folder, {TIME_TYPE}).stream("requests")
    assert set(stream.fields) == set(REQUESTS.fields)
    metric = stream.metrics["requests"]
    assert (tuple(metric.dimensions), tuple(metric.measures)) == REQUESTS.metrics["requests"]
    assert stream.aggregation_span == HOUR


def test_a_second_demo_starts_afresh_and_leaves_other_files_alone(tmp_path: Path) -> None:
    place = start_afresh(tmp_path / "demo")
    (place.warehouse / "raw").mkdir(parents=True)
    place.feed.mkdir()
    place.report.write_text("old")
    (place.folder / "notes.txt").write_text("mine")
    place.config.write_text(place.config.read_text() + "# changed\n")
    start_afresh(place.folder)
    assert sorted(path.name for path in place.folder.iterdir()) == ["notes.txt", "tidemill.yaml"]
    assert "# changed" not in place.config.read_text()


def test_a_linked_warehouse_is_unlinked_not_emptied(tmp_path: Path) -> None:
    place = start_afresh(tmp_path / "demo")
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("x")
    place.warehouse.symlink_to(other)
    start_afresh(place.folder)
    assert not place.warehouse.exists()
    assert (other / "precious").read_text() == "x"


def test_a_bucket_is_emptied_for_the_demo_of_the_same_folder_only(
    bucket_server: BucketServer, tmp_path: Path
) -> None:
    address = bucket_server.new_url()
    place = start_afresh(tmp_path / "demo", address)
    assert place.shown_warehouse == address
    bucket = Bucket(address)
    bucket.put("raw/part", b"rows")
    with pytest.raises(InputError, match="holds something that no demo of"):
        start_afresh(tmp_path / "other", address)
    assert not (tmp_path / "other").exists()
    assert bucket.read("raw/part") == b"rows"
    start_afresh(tmp_path / "demo", address)
    assert bucket.objects("") == []
    with pytest.raises(InputError, match="is not the address of a bucket"):
        start_afresh(tmp_path / "demo", "folder")


def test_a_folder_that_no_demo_made_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "tidemill.yaml").write_text("version: 1\n")
    (tmp_path / "warehouse").mkdir()
    with pytest.raises(InputError, match="no demo wrote") as caught:
        start_afresh(tmp_path)
    assert "empty" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tidemill.yaml", "warehouse"]


def test_the_module_says_what_is_wrong_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path} holds something that no demo wrote\nname a folder")
    assert "Traceback" not in done.stderr


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        start_afresh(tmp_path / "demo")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        start_afresh(tmp_path / "file" / "demo")


def test_a_warehouse_from_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_WAREHOUSE", str(tmp_path / "real"))
    with pytest.raises(ConfigError, match="moves the warehouse") as caught:
        start_afresh(tmp_path / "demo")
    assert "TIDEMILL_WAREHOUSE" in caught.value.hint
    assert not (tmp_path / "real").exists()


def test_too_few_events_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no story"):
        run_demo(tmp_path / "demo", events=500, console=Console(file=StringIO()))
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_short_when_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "bin" / "tidemill"
    mine.parent.mkdir()
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(mine.parent / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert tidemill_command() == "bin/tidemill"
    monkeypatch.setenv("PATH", str(mine.parent))
    assert tidemill_command() == "tidemill"


def test_work_is_a_line_in_a_pipe_and_a_bar_on_a_terminal() -> None:
    pipe, terminal = StringIO(), StringIO()
    for console in (Console(file=pipe), Console(file=terminal, force_terminal=True, width=80)):
        teller = Teller(console)
        with teller.work("working", "worked", total=2):
            teller.advance()
            teller.reach(0.5, "almost")
    assert pipe.getvalue() == "   worked (0.0 s)\n"
    assert "\x1b[" in terminal.getvalue()
    assert "working" in terminal.getvalue()
    assert "almost" in terminal.getvalue()


def test_what_is_told_is_never_markup() -> None:
    out = StringIO()
    teller = Teller(Console(file=out, width=80))
    teller.fact("[red]" + "x" * 90)
    teller.table(("name", "n"), [("[b]" + "y" * 60, "1")])
    assert "[red]" + "x" * 90 in out.getvalue()
    assert "[b]" + "y" * 60 + " 1" in out.getvalue()


def test_the_noise_of_a_process_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark.log"
    with errors_to(log, keep=False):
        subprocess.run(["sh", "-c", "echo noise >&2"], check=True)
    subprocess.run(["sh", "-c", "echo heard >&2"], check=True)
    assert log.read_text() == "noise\n"
    assert capfd.readouterr().err == "heard\n"


def test_the_noise_is_shown_when_the_process_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError), errors_to(tmp_path / "spark.log", keep=False):
        subprocess.run(["sh", "-c", "echo why >&2; exit 1"], check=True)
    assert "why" in capfd.readouterr().err
