"""A line of the landing log that is no landing, whatever JSON it is, does not count: a crash left it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.ingest.landing_log import LandingLog


@pytest.mark.parametrize("line", [b"2\n", b"[]\n", b'"text"\n', b"null\n", b"{}\n", b'{"n":1\n'])
def test_a_last_line_that_is_no_landing_does_not_count(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "slices").mkdir()
    (tmp_path / "slices" / "landings.ndjson").write_bytes(line)
    assert list(LandingLog(tmp_path).lines()) == []
