"""`--help` teaches: the story, the panels, an example for each command, the exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.cli.app import EXIT_CODES, Panel
from tidemill.cli.main import every_command

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
COMMANDS = [command.name for command in every_command().registered_commands]
GROUPS = {group.name: group.typer_instance.registered_commands for group in every_command().registered_groups}
BEHIND = [f"{name} {command.name}" for name, commands in GROUPS.items() for command in commands]


def test_the_commands_come_in_the_order_in_which_one_meets_them(cli):
    assert COMMANDS == [
        "init", "types", "version",
        "ingest", "ingest-command", "run", "retract", "expire", "pack",
        "status", "ledger", "slice", "quarantine", "metrics", "manifest",
        "query", "changes", "search", "sql", "catalog", "trace",
        "tail", "late", "explain", "results", "flush",
        "windows", "timeline", "window", "rebuild", "retry", "build",
        "datasets", "export", "events",
        "vector", "chain", "deltas", "compact",
        "verify", "repair", "recover", "move", "bench",
        "serve", "up", "bundle",
    ]  # fmt: skip
    assert BEHIND == ["token create", "token list", "token revoke"]
    shown = cli("--help").out
    places = [shown.index(f"─ {panel.value} ─") for panel in Panel]
    assert places == sorted(places)


def test_help_tells_the_story_of_the_commands(cli):
    shown = cli("--help").out
    steps = re.findall(r"\$ tidemill (\w+)", shown)
    assert steps == ["init", "ingest", "run", "status", "query", "search", "verify"]


def test_help_says_that_windows_become_datasets(cli):
    shown = " ".join(cli("--help").out.split())
    assert "exact rollups and datasets out" in shown
    assert "builds each time window that is ready as a dataset" in shown


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_alone_shows_its_commands(cli, name):
    done = cli(name)
    assert done.code == 0
    assert all(f" {command.name} " in done.out for command in GROUPS[name])


def test_no_arguments_show_the_help(cli):
    assert cli().out.strip() == cli("--help").out.strip()
    assert cli().code == 0


@pytest.mark.parametrize("name", [*COMMANDS, *BEHIND])
def test_each_command_has_an_example_and_the_common_options(cli, name):
    done = cli(*name.split(), "--help")
    assert done.code == 0
    assert re.search(rf"Example:.*tidemill {name}", done.out, flags=re.DOTALL)
    for option in ("--project", "--output", "--verbose", "--quiet"):
        assert option in done.out


def test_exit_codes_are_in_the_help_and_in_the_docs(cli):
    shown = cli("--help").out
    for code, meaning in EXIT_CODES:
        assert re.search(rf"\s{code}  {re.escape(meaning)}", shown)
        assert f"| {code} | {meaning} |" in PAGE


def test_every_command_is_in_the_docs():
    for name in (*COMMANDS, *GROUPS):
        assert re.search(rf"^## {name}\b", PAGE, flags=re.MULTILINE), name


def test_version_can_be_asked_in_two_ways(cli):
    short = cli("--version")
    assert short.code == 0
    assert re.fullmatch(r"tidemill \S+\n", short.out)
    assert cli("version").out.startswith(short.out.strip() + " (python 3.")
    assert list(cli("version", "--output", "json").json) == [
        "tidemill", "python", "pyspark", "deltalake", "pyarrow", "duckdb",
    ]  # fmt: skip


def test_types_lists_the_built_in_event_time_types(cli):
    names = ["iso8601", "unixtimestamp_ms", "unixtimestamp_ns", "unixtimestamp_s", "unixtimestamp_us"]
    shown = [line.split() for line in cli("types").out.splitlines()]
    assert [words for words in shown if words[1:] == ["built", "in"]] == [
        [name, "built", "in"] for name in names
    ]
    assert cli("--output", "json", "types").json == {
        "event_time_types": [{"name": name, "origin": "built_in", "provided_by": None} for name in names]
    }
