"""Whatever goes wrong: a code, a hint, an exit code, and no stack trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tidemill.cli.main import main
from tidemill.cli.session import Session
from tidemill.cli.settings import CommandSettings, OutputKind, asks_for_json
from tidemill.model import errors
from tidemill.model.errors import as_tidemill_error
from tidemill.storage.locks import exclusive


def test_no_project_is_a_config_error(cli, tmp_path):
    done = cli("status", "--project", tmp_path)
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0] == f"error[config]: {tmp_path}/tidemill.yaml: no tidemill.yaml in {tmp_path}"
    assert lines[1] == f"  hint: run tidemill init {tmp_path}"


def test_a_wrong_project_lists_every_problem_with_its_line(cli, project):
    text = (project / "tidemill.yaml").read_text("utf-8")
    (project / "tidemill.yaml").write_text(
        text.replace("version: 1", "version: 9").replace("skew:", "askew:")
    )
    done = cli("status")
    assert done.code == 2
    assert "tidemill.yaml:4" in done.err
    assert "askew" in done.err


def test_json_errors_are_one_document_on_stderr(cli, project):
    done = cli("slice", "ffff", "--output", "json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err) == {
        "error": {
            "code": "not_found",
            "message": "there is no slice 'ffff'",
            "where": "",
            "hint": "`tidemill ledger` lists the slices",
            "retry": "never",
        }
    }


def test_a_query_error_points_at_the_character(cli, project):
    text = cli("query", "SELECT cont FROM requests")
    assert text.code == 2
    assert text.err.splitlines()[1:3] == ["  SELECT cont FROM requests", "         ^"]
    assert cli("query", "SELECT cont FROM requests", "--output", "json").error["position"] == 7


def test_a_warehouse_that_cannot_be_made_is_3(cli, project):
    (project / "warehouse").write_text("a file")
    done = cli("status", "--output", "json")
    assert (done.code, done.error["code"]) == (3, "storage")


def test_a_lost_state_is_3_and_names_recover(cli, landed):
    (landed / "warehouse" / "state.db").unlink()
    done = cli("status")
    assert done.code == 3
    assert "tidemill recover" in done.err


@pytest.mark.parametrize("command", ["run --once", "verify", "quarantine requests --replay"])
def test_a_warehouse_in_use_is_4(cli, landed, command):
    with exclusive(landed / "warehouse" / ".tick.lock", "test"):
        done = cli(*command.split(), "--output", "json")
    assert (done.code, done.error["code"], done.error["retry"]) == (4, "busy", "later")


def test_no_java_is_3(cli, landed, monkeypatch):
    monkeypatch.setenv("TIDEMILL__ENGINE__INLINE_BYTES", "0")
    monkeypatch.setenv("JAVA_HOME", str(landed))
    done = cli("run", "--once")
    assert done.code == 3
    assert "error[environment]: Spark needs Java 17" in done.err


def test_bench_needs_a_clone(cli, project, monkeypatch):
    monkeypatch.setattr("tidemill.__file__", str(project / "a" / "b" / "c.py"))
    done = cli("bench")
    assert done.code == 3
    assert "error[environment]" in done.err
    assert "clone the repository" in done.err


def test_records_are_not_replayed_by_slice_or_tenant(cli, landed):
    for option in ("slice", "tenant"):
        done = cli("quarantine", "requests", f"--{option}", "ab", "--replay")
        assert done.code == 2
        assert f"not replayed by {option}" in done.err
        assert "--reason" in done.err


def test_an_interval_that_would_spin_is_refused(cli, project):
    assert cli("run", "--interval", "0s").code == 2
    assert "PT1H" in cli("run", "--interval", "soon").err


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (errors.ConfigError("x"), "config", 2),
        (errors.InputError("x"), "input", 2),
        (errors.NotFoundError("x"), "not_found", 2),
        (errors.QueryError("x"), "query", 2),
        (errors.StorageError("x"), "storage", 3),
        (errors.MachineError("x"), "environment", 3),
        (errors.ConflictError("x"), "conflict", 4),
        (errors.BusyError("x"), "busy", 4),
        (OSError(28, "No space left on device", "/w"), "storage", 3),
        (MemoryError(), "environment", 3),
        (ZeroDivisionError("x"), "internal", 70),
    ],
)
@pytest.mark.parametrize("kind", list(OutputKind))
def test_each_kind_of_error_has_its_exit_code(capsys, kind, error, code, exit_code):
    def fail(_session: Session) -> int:
        raise error

    assert Session(CommandSettings(output=kind)).call(fail) == exit_code
    printed = capsys.readouterr()
    assert printed.out == ""
    if kind is OutputKind.JSON:
        assert json.loads(printed.err)["error"]["code"] == code
    else:
        assert printed.err.startswith(f"error[{code}]: ")
    assert "Traceback" not in printed.err


def test_a_defect_says_so_and_very_verbose_shows_where(capsys):
    def fail(_session: Session) -> int:
        raise ZeroDivisionError("one\ntwo")

    refused = as_tidemill_error(ConnectionRefusedError(111, "Connection refused"))
    assert (refused.code, "disk" in refused.hint) == ("environment", False)
    assert "ZeroDivisionError: one" in str(as_tidemill_error(ZeroDivisionError("one\ntwo")))
    Session(CommandSettings(verbose=2)).call(fail)
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_130(capsys):
    def interrupted(_session: Session) -> int:
        raise KeyboardInterrupt

    assert Session(CommandSettings()).call(interrupted) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_nobody_reading_the_output_is_141_and_quiet(landed):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tidemill.cli.main", "ledger"],
            cwd=landed, stdout=writer, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


USAGE = [
    ["nope"],
    ["ledger", "--status", "lost"],
    ["ledger", "--limit", "-1"],
    ["ledger", "--limit", "many"],
    ["query"],
    ["status", "--nope"],
]


@pytest.mark.parametrize("arguments", USAGE)
@pytest.mark.parametrize("kind", list(OutputKind))
def test_wrong_usage_is_2_in_the_form_of_all_errors(capsys, arguments, kind):
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--output", kind.value])
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    if kind is OutputKind.JSON:
        assert json.loads(printed.err)["error"]["code"] == "usage"
    else:
        assert printed.err.startswith("error[usage]: ")
        assert "--help` explains it" in printed.err


@pytest.mark.parametrize(
    "arguments", ["ledger --limit", "windows --limit", "quarantine requests --limit", "events --after"]
)
def test_a_number_that_is_too_large_for_the_state_is_wrong_input(cli, landed, arguments):
    done = cli(*arguments.split(), "9" * 20, "--output", "json")
    assert (done.code, done.error["code"], done.out) == (2, "input", "")
    assert "9" * 20 in done.error["message"]
    assert cli(*arguments.split(), 1 << 62).code == 0


def test_wrong_status_names_the_valid_ones(capsys):
    with pytest.raises(SystemExit):
        main(["ledger", "--status", "lost"])
    assert "'pending', 'accepted', 'failed', 'retracted'" in capsys.readouterr().err


def test_a_line_that_asks_for_json_is_known_before_it_is_parsed(monkeypatch):
    monkeypatch.delenv("TIDEMILL_OUTPUT", raising=False)
    assert asks_for_json(["--output=json", "nope"])
    assert asks_for_json(["nope", "--output", "JSON"])
    assert not asks_for_json(["nope", "--output"])
    assert not asks_for_json(["query", "--", "--output", "json"])
    monkeypatch.setenv("TIDEMILL_OUTPUT", "json")
    assert asks_for_json(["nope"])
    assert not asks_for_json(["nope", "--output", "text"])


def test_options_count_before_and_after_the_command_and_after_wins(cli, landed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("--project", landed, "--output", "json", "ledger").json["more"] is False
    assert cli("-p", tmp_path / "nowhere", "ledger", "-p", landed, "--output", "json").code == 0
    assert (
        cli("--output", "json", "ledger", "-p", landed, "--output", "text")
        .out.splitlines()[1]
        .startswith(" #")
    )


def test_the_environment_gives_way_to_what_is_typed(landed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMILL_PROJECT", str(landed))
    monkeypatch.setenv("TIDEMILL_OUTPUT", "json")
    with pytest.raises(SystemExit) as left:
        main(["ledger"])
    assert left.value.code == 0
    assert len(json.loads(capsys.readouterr().out)["slices"]) == 2
    with pytest.raises(SystemExit) as left:
        main(["-p", os.fspath(tmp_path / "nowhere"), "ledger"])
    assert left.value.code == 2
