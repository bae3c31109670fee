"""What `status` knows of the Spark sessions of other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.storage import layout
from tidemill.storage.sessions import OpenSession, SessionFile, open_sessions

UI = "http://127.0.0.1:4040"


def test_a_session_is_known_while_it_is_open(tmp_path: Path) -> None:
    assert open_sessions(tmp_path) == []
    mine, other = SessionFile(tmp_path), SessionFile(tmp_path)
    mine.open(OpenSession(7, "local[2]", UI))
    other.open(OpenSession(8, "yarn", None))
    assert open_sessions(tmp_path) == [OpenSession(7, "local[2]", UI), OpenSession(8, "yarn", None)]
    mine.close()
    assert open_sessions(tmp_path) == [OpenSession(8, "yarn", None)]
    other.close()
    assert list(layout.sessions(tmp_path).iterdir()) == []


def test_a_session_that_is_opened_again_replaces_the_first(tmp_path: Path) -> None:
    file = SessionFile(tmp_path)
    file.open(OpenSession(7, "local[2]", None))
    file.open(OpenSession(7, "local[2]", UI))
    assert open_sessions(tmp_path) == [OpenSession(7, "local[2]", UI)]
    file.close()


KILLED = """
import os, pathlib, signal, sys
from tidemill.storage.sessions import OpenSession, SessionFile
SessionFile(pathlib.Path(sys.argv[1])).open(OpenSession(os.getpid(), "local[2]", "http://127.0.0.1:4040"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_session_of_a_process_that_was_killed_is_not_shown_and_its_file_goes(tmp_path: Path) -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=paths, check=False)
    assert len(list(layout.sessions(tmp_path).iterdir())) == 1
    assert open_sessions(tmp_path) == []
    mine = SessionFile(tmp_path)
    mine.open(OpenSession(7, "local[2]", UI))
    (left,) = layout.sessions(tmp_path).iterdir()
    assert json.loads(left.read_text())["pid"] == 7
    mine.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}'])
def test_a_file_that_is_not_whole_is_passed_over(tmp_path: Path, content: bytes) -> None:
    file = SessionFile(tmp_path)
    file.open(OpenSession(7, "local[2]", UI))
    (path,) = layout.sessions(tmp_path).iterdir()
    path.write_bytes(content)
    assert open_sessions(tmp_path) == []
    file.close()
