"""The one way in which commands print: a document for programs, a view for people, and only one of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from rich.table import Table

from tidemill.cli import views
from tidemill.cli.session import Session
from tidemill.cli.settings import CommandSettings, OutputKind
from tidemill.cli.views.layout import Note, cell, line
from tidemill.model.errors import InputError
from tidemill.pipeline import documents

DOCUMENT = {"count": Decimal("1.10")}


def session(output=OutputKind.TEXT, *, quiet=False):
    return Session(CommandSettings(output=output, quiet=quiet))


def unmade():
    raise AssertionError("nobody asked for it")


def view():
    yield line("one ", ("[bold]", "bold"))
    table = Table("head")
    table.add_row("cell")
    yield table
    yield Note("advice")
    yield InputError("wrong", hint="right")
    yield line("two")


def test_a_program_gets_the_exact_document_and_no_view_is_made(capfd):
    session(OutputKind.JSON).emit(lambda: DOCUMENT, unmade)
    assert capfd.readouterr() == ('{"count":1.10}\n', "")


def test_people_get_the_view_and_no_document_is_made(capfd):
    session().emit(unmade, view)
    out, err = capfd.readouterr()
    assert out.startswith("one [bold]\n")
    assert "cell" in out
    assert out.endswith("two\n")
    assert err == "advice\nerror[input]: wrong\n  hint: right\n"


def test_quiet_leaves_out_notes_and_nothing_else(capfd):
    session(quiet=True).emit(unmade, view)
    out, err = capfd.readouterr()
    assert out.endswith("two\n")
    assert err == "error[input]: wrong\n  hint: right\n"


def test_results_that_come_together_are_a_document_a_line(capfd):
    session(OutputKind.JSON).emit_each(lambda: ({"row": n} for n in range(3)), unmade)
    assert [json.loads(text) for text in capfd.readouterr().out.splitlines()] == [
        {"row": 0}, {"row": 1}, {"row": 2},
    ]  # fmt: skip


def test_what_is_for_people_only_is_not_printed_for_programs(capfd):
    session(OutputKind.JSON).show(unmade)
    session(OutputKind.JSON).note("advice")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("package", [views, documents])
def test_a_package_that_loads_its_modules_when_they_are_used_has_all_of_them(package):
    for name in package.__all__:
        assert getattr(package, name).__name__ == f"{package.__name__}.{name}"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_instants_are_utc_and_those_of_a_time_zone_as_its_clock_shows_them():
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    assert cell(noon) == cell(noon.astimezone(ZoneInfo("UTC"))) == "2024-07-01T12:00:00Z"
    assert cell(noon.astimezone(ZoneInfo("Asia/Kathmandu"))) == "2024-07-01T17:45:00+05:45"
    winter = datetime(2024, 1, 1, tzinfo=UTC).astimezone(ZoneInfo("Europe/London"))
    assert cell([winter]) == "[2024-01-01T00:00:00+00:00]"
