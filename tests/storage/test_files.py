"""Files that are removed in a thread."""

from __future__ import annotations

from pathlib import Path

from tidemill.storage.files import Removal


def test_files_are_removed_and_one_that_is_gone_is_no_error(tmp_path: Path) -> None:
    kept, first, second = (tmp_path / name for name in ("kept", "first", "second"))
    for file in (kept, first, second):
        file.write_text("content")
    removal = Removal()
    removal.start([first, tmp_path / "never written", tmp_path])  # a folder is left as it is
    removal.start([second])
    removal.wait()
    assert list(tmp_path.iterdir()) == [kept]
    removal.wait()  # nothing is left to wait for
