"""The log and the death of its process, and a disk that is full: what was acknowledged is read back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.pipeline import start_child
from tests.support.wal_driver import HELD, line, played, submission, taken_up, window

from tidemill.ingest.gateway.segments import Segment
from tidemill.model.errors import StorageError
from tidemill.model.failpoints import EXIT_CODE, POINTS

ROUNDS = 3

SETUP = """
import sys, threading
from pathlib import Path
from tests.support.wal_driver import Played, SMALLEST, line, submission, window
log = Played(Path(sys.argv[1]), lambda: 1)
"""

# Four threads; an entry is printed once it is told, a window once its close is durable.
APPENDER = (
    SETUP
    + """
printing = threading.Lock()
def say(*words):
    with printing:
        print(*words, flush=True)
def send(thread):
    mine = []
    for number in range(10**9):
        size = (thread * 7919 + number * 31) % 20_000
        entry = log.append(submission(line(number, size), stream=f"s{thread}"))
        say("entry", entry.lsn, thread, number, size)
        mine.append(entry.lsn)
        if number % 7 == 6:
            log.wal.close_window(window(*mine, stream=f"s{thread}"), mine)
            say("window", *mine)
            mine = []
for thread in range(4):
    threading.Thread(target=send, args=(thread,)).start()
"""
)


@pytest.mark.parametrize("lines", [1, 150, 400][:ROUNDS])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, lines: int) -> None:
    child = start_child(APPENDER, tmp_path)
    assert child.stdout is not None
    output = [child.stdout.readline() for _ in range(lines)]
    child.kill()
    output += child.stdout.readlines()  # `communicate` would pass over what was read ahead
    child.communicate()
    output = [text for text in output if text.endswith("\n")]
    windows, rest = taken_up(tmp_path)
    found = {entry.lsn: entry for entry in [*rest, *(e for _, entries in windows for e in entries)]}
    assert sorted(found) == list(range(1, len(found) + 1))
    closed = {tuple(entry.lsn for entry in entries) for _, entries in windows}
    assert len(output) >= lines
    for text in output:
        kind, *numbers = text.split()
        if kind == "window":
            assert tuple(map(int, numbers)) in closed
        else:
            lsn, thread, number, size = map(int, numbers)
            assert found[lsn].submission == submission(line(number, size), stream=f"s{thread}")


WALKER = (
    SETUP
    + """
for number in (1, 2, 3):
    print(log.append(line(number, 40 << 10)).lsn, flush=True)
log.wal.close_window(window(1, 2), [1, 2])
print("closed", flush=True)
log.wal.landed([1, 2])
print("landed", flush=True)
"""
)

# What was told before it died, windows and rest that are read back, and files. A killed process leaves what
# it wrote to the system: the entry that was not synced is there as well.
LEFT: dict[str, tuple[list[str], list[list[int]], list[int], list[int]]] = {
    "wal.after_write:2": (["1"], [], [1, 2], [1, 2]),
    "wal.after_sync:2": (["1"], [], [1, 2], [1, 2]),
    "wal.after_close": (["1", "2", "3"], [[1, 2]], [3], [1, 2, 3]),
    "wal.after_unlist:1": (["1", "2", "3", "closed"], [[1, 2]], [3], [1, 2, 3]),
    "wal.after_remove:1": (["1", "2", "3", "closed"], [], [3], [2, 3]),
    "wal.after_remove:2": (["1", "2", "3", "closed"], [], [3], [3]),
}


def test_every_point_is_walked() -> None:
    assert {point.partition(":")[0] for point in LEFT} == {p for p in POINTS if p.startswith("wal.")}


@pytest.mark.parametrize("point", LEFT)
def test_death_at_a_point_loses_nothing_that_was_told(tmp_path: Path, point: str) -> None:
    child = start_child(WALKER, tmp_path, TIDEMILL_FAILPOINT=point)
    reported, trouble = child.communicate()
    assert child.returncode == EXIT_CODE, trouble
    files = [int(path.stem) for path in sorted((tmp_path / "wal").glob("*/*.wal"))]
    windows, rest = taken_up(tmp_path)
    lsns = [[entry.lsn for entry in entries] for _, entries in windows]
    assert (reported.split(), lsns, [entry.lsn for entry in rest], files) == LEFT[point]


# The system refuses to let a file grow beyond the limit: part of a group is written, then nothing.
FULL = (
    SETUP
    + """
import resource
from tidemill.model.errors import StorageError
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
print(log.append(line(1, 10_000)).lsn)
size = log.wal.size
limit(30_000)
with log.as_one_group():
    waiting = [log.later(submission(line(n, 9_000))) for n in range(3, 6)]
for future in waiting:
    error = future.exception()
    assert isinstance(error, StorageError), error
    print(error.code, error.retry.value, "file size limit" in error.hint)
print(log.files[0].stat().st_size == log.wal.size)
print(log.append(line(6, 1_000)).lsn)  # there is room for a small one
try:
    log.wal.close_window(window(*range(1, 4000, 2)), range(1, 4000, 2))
except StorageError as error:
    print("close", error.code)
limit(10)
log2_failed = log.later(submission(line(7, 60_000))).exception()  # no room even for the head of a segment
print(log2_failed.code, len(log.files))
limit(soft)
print(log.append(line(8, 60_000)).lsn)
log.wal.close_window(window(1, 3), [1, 3])
print("end", flush=True)
import os
os._exit(0)
"""
)


def test_a_full_disk_is_told_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    child = start_child(FULL, tmp_path)
    reported, trouble = child.communicate()
    assert child.returncode == 0, trouble
    assert reported.splitlines() == [
        "1",
        *["storage later True"] * 3,
        "True",
        "3",
        "close storage",
        "storage 1",
        "4",
        "end",
    ]
    windows, rest = taken_up(tmp_path)
    assert [[entry.lsn for entry in entries] for _, entries in windows] == [[1, 3]]
    assert {entry.lsn: entry.submission.content for entry in rest} == {2: HELD, 4: line(8, 60_000)}


def test_nothing_is_written_behind_what_could_not_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segment.begin(tmp_path, 1, 1, 0)
    segment.write([b"good"])
    end = segment.end

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", fails)
        broken.setattr("os.ftruncate", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                segment.write([b"bad", b"worse"])
            assert segment.end == end
        with pytest.raises(OSError, match="Input/output"):
            segment.seal()
    assert segment.path.read_bytes()[end:] == b"badworse"
    segment.write([b"new"])
    assert segment.path.read_bytes()[end - 4 :] == b"goodnew"
    segment.seal()


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        folder = tmp_path / "wal" / log.wal.name
        shutil.rmtree(folder)
        with pytest.raises(StorageError, match="cannot write the log: No such file") as caught:
            log.append(line(1))
        assert caught.value.where == str(folder)
        with pytest.raises(StorageError):
            log.wal.close_window(window(1), [1])
        folder.mkdir()
        assert log.append(line(2)).lsn == 1
        log.wal.landed([1])


def test_a_log_cannot_be_begun_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "wal").write_text("in the way")
    with pytest.raises(StorageError), played(tmp_path):
        pass


def test_a_failing_sender_does_not_keep_others_from_hearing(tmp_path: Path) -> None:
    code = SETUP + (
        "import shutil\n"
        "shutil.rmtree(log.warehouse / 'wal' / log.wal.name)\n"
        "def bad(_): raise RuntimeError('the loop is closed')\n"
        "for n in range(3): log.wal.append(submission(line(n)), bad)\n"
        "print(type(log.later(submission(line(4))).exception()).__name__, flush=True)\n"
        "import os; os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "StorageError\n"
    assert done.stderr.count("could not be notified") == 3
