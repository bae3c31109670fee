"""Names, globs, folders and `-`, and what is said about those that lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.ingest.file_patterns import STDIN, expand


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    for name in ("b.ndjson", "a.ndjson", "c.csv", ".hidden", "deep/d.ndjson", "empty/.keep"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"{}")
    return tmp_path


def test_files_globs_folders_and_stdin_in_the_order_given(feed: Path) -> None:
    found, errors = expand([f"{feed}/c.csv", "-", f"{feed}/*.ndjson", f"{feed}", f"{feed}/**/d*"])
    assert found == [feed / "c.csv", STDIN, feed / "a.ndjson", feed / "b.ndjson", feed / "deep" / "d.ndjson"]
    assert errors == []


def test_what_leads_nowhere_is_told_and_the_rest_is_found(feed: Path) -> None:
    found, errors = expand([f"{feed}/nope", f"{feed}/a.ndjson", f"{feed}/*.parquet", f"{feed}/empty"])
    assert found == [feed / "a.ndjson"]
    assert [(Path(error.where).name, error.message) for error in errors] == [
        ("nope", "there is no such file"),
        ("*.parquet", "no file matches"),
        ("empty", "folder has no files in it"),
    ]
    assert all(error.hint for error in errors)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_told(feed: Path) -> None:
    (feed / "a.ndjson").chmod(0)
    (feed / "deep").chmod(0)
    found, errors = expand([f"{feed}/a.ndjson", f"{feed}/deep"])
    (feed / "deep").chmod(0o755)
    assert found == []
    assert [error.message for error in errors] == ["file cannot be read", "folder cannot be read"]


def test_a_name_with_brackets_is_a_name_when_it_exists(feed: Path) -> None:
    (feed / "x[1].json").write_bytes(b"[]")
    assert expand([f"{feed}/x[1].json"]) == ([feed / "x[1].json"], [])
