"""`verify --scrub` in words and as JSON, and what `status` says of it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_a_scrub_says_what_it_read_and_what_is_damaged(cli: Cli, landed: Path) -> None:
    whole = cli("verify", "--scrub", "requests")
    assert whole.code == 0
    assert whole.out.startswith("4 files, ")  # two slices, the log of landings and its copy
    assert whole.out.endswith(" read: whole\n")
    slice_file = next((landed / "warehouse" / "slices" / "requests").glob("*/*.ndjson"))
    slice_file.write_bytes(slice_file.read_bytes()[:-1])
    name = slice_file.relative_to(landed / "warehouse").as_posix()
    found = cli("verify", "--scrub", "--output", "json")
    assert found.code == 1
    assert (found.json["ok"], found.json["files"], found.json["unchecked"]) == (False, 4, 0)
    (damage,) = found.json["damages"]
    assert damage == {
        "file": name,
        "kind": "slice",
        "stream": "requests",
        "reason": "its bytes are not those that landed",
        "remedy": "tidemill repair requests",
    }
    assert "1 damaged file" in cli("verify", "--scrub").out
    status = cli("status", "--output", "json").json["scrub"]
    assert (status["last_full"], status["current"]) == (None, None)
    assert [{**one, "since": None} for one in status["damages"]] == [{**damage, "since": None}]
    assert "its bytes are not those that landed" in cli("status").out


def test_a_scrub_of_a_stream_that_is_not_there_is_an_error(cli: Cli, project: Path) -> None:
    assert cli("verify", "--scrub", "orders").code == 2
