"""Logs of the dead: torn, damaged, empty, wanted by two; and exactly what was acknowledged comes back."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import pytest
from tests.support.wal_driver import contents, line, played, submission, taken_up, window

from tidemill.config.gateway import WalSettings as Settings
from tidemill.ingest.gateway.frames import (
    FRAME_BYTES,
    HEAD_BYTES,
    carried_entry,
    framed,
    head_of,
    opening_of,
)
from tidemill.ingest.gateway.log_replay import LogReplay, orphans
from tidemill.model.gateway import Entry, WindowOutput
from tidemill.storage import layout

BIG = 40 << 10


@dataclass
class Written:
    """A log of two full segments and a short last one, and after how many bytes of it each thing was told."""

    folder: Path
    last: Path
    entries: list[tuple[int, Entry]]  # with the end of each in its own segment
    closes: list[tuple[int, WindowOutput]]

    def until(self, size: int) -> tuple[list[WindowOutput], list[int]]:
        """Windows, and lsns in all, when the last segment has only `size` bytes."""
        windows = [output for end, output in self.closes if end <= size]
        return windows, [entry.lsn for end, entry in self.entries if entry.lsn <= 2 or end <= size]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    place = tmp_path_factory.mktemp("written")
    entries: list[tuple[int, Entry]] = []
    closes: list[tuple[int, WindowOutput]] = []
    tiny = Settings.model_construct(segment=3000)  # below what can be configured
    with played(place / "live", tiny) as log:
        sizes = [2000, 2000, 1000, 0, 10, 20, 30, 40, 50]
        for content in (line(n, size) for n, size in enumerate(sizes, 1)):
            entry = log.append(content)
            entries.append((log.files[-1].stat().st_size, entry))
            if entry.lsn in (5, 7):
                output = window(entry.lsn - 1, entry.lsn)
                log.wal.close_window(output, [entry.lsn - 1, entry.lsn])
                closes.append((log.files[-1].stat().st_size, output))
        warehouse = log.corpse(place / "dead")
    (folder,) = (warehouse / "wal").iterdir()
    return Written(folder, sorted(folder.glob("*.wal"))[-1], entries, closes)


def read(folder: Path) -> tuple[list[WindowOutput], dict[int, bytes]]:
    replay = LogReplay(folder.name, folder)
    windows = [*replay.windows, *replay.damaged_windows]
    entries = [entry for _, found in windows for entry in found] + list(replay.rest)
    assert len(contents(entries)) == len(entries)
    return [output for output, _ in windows], contents(entries)


def test_a_log_cut_at_any_byte_of_its_last_segment_has_the_whole_frames_before(
    written: Written, tmp_path: Path
) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    last = folder / written.last.name
    text = last.read_bytes()
    wanted = {entry.lsn: entry.submission.content for _, entry in written.entries}
    for size in range(len(text) + 1):
        last.write_bytes(text[:size])
        windows, lsns = written.until(size)
        assert read(folder) == (windows, {lsn: wanted[lsn] for lsn in lsns}), size
        reported = LogReplay(folder.name, folder).bad  # each byte was durable
        assert [bad.path for bad in reported] == ([last] if size < len(text) else []), size


def test_a_torn_tail_may_be_zeros_or_any_bytes(written: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    last = folder / written.last.name
    text = last.read_bytes()
    whole = read(folder)
    assert len(whole[1]) == len(written.entries)
    for tail in (bytes(1), bytes(5000), b"\xff" * 41, text[-77:], text[:HEAD_BYTES], os.urandom(5000)):
        last.write_bytes(text + tail)
        assert read(folder) == whole


def test_any_changed_byte_costs_the_frame_that_it_is_in_and_no_other(
    written: Written, tmp_path: Path
) -> None:
    """Each was acknowledged before the next was written, the last one too."""
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    last = folder / written.last.name
    text = last.read_bytes()
    wanted = {entry.lsn: entry.submission.content for _, entry in written.entries}
    ends = sorted(
        [HEAD_BYTES, *(end for end, one in written.entries if one.lsn > 2)] + [e for e, _ in written.closes]
    )
    whole = read(folder)[0]
    for at in range(len(text)):
        last.write_bytes(text[:at] + bytes([text[at] ^ 0x40]) + text[at + 1 :])
        replay = LogReplay(folder.name, folder)
        frame = bisect_right(ends, at)
        start, end = (ends[frame - 1], ends[frame]) if frame else (0, HEAD_BYTES)
        assert [(bad.path, bad.start, bad.end) for bad in replay.bad] == [(last, start, end)], at
        lost = [one.lsn for finish, one in written.entries if frame and one.lsn > 2 and finish == end]
        closed = [entry for _, found in (*replay.windows, *replay.damaged_windows) for entry in found]
        found = contents([*closed, *replay.rest])
        assert found == {lsn: content for lsn, content in wanted.items() if lsn not in lost}, at
        if not frame:
            assert [output for output, _ in replay.windows] == whole


def test_damage_in_a_group_leaves_the_rest_of_the_group(tmp_path: Path) -> None:
    """A power cut may also lose the beginning of a group that nobody was told of; that cannot be told apart,
    and is reported rather than passed over."""
    with played(tmp_path / "live") as log:
        with log.as_one_group():
            waiting = [log.later(submission(line(n, 50))) for n in range(2, 6)]
        assert [future.result().lsn for future in waiting] == [2, 3, 4, 5]
        warehouse = log.corpse(tmp_path / "dead")
        (folder,) = (warehouse / "wal").iterdir()
        (path,) = folder.glob("*.wal")
        text = path.read_bytes()
        torn = text.index(line(3, 50))
        path.write_bytes(text[:torn] + bytes(10) + text[torn + 10 :])
        assert [entry.lsn for entry in taken_up(warehouse)[1]] == [1, 2, 4, 5]
        (bad,) = LogReplay(folder.name, folder).bad
        assert (bad.path, bad.reason) == (path, "the checksum of entry 3 does not match")


def test_a_damaged_length_does_not_hide_what_follows(written: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    last = folder / written.last.name
    text = bytearray(last.read_bytes())
    size_at = HEAD_BYTES + 17  # behind mark, both checksums and the kind
    text[size_at : size_at + 4] = b"\xff\xff\xff\x7f"
    last.write_bytes(text)
    assert sorted(read(folder)[1]) == [1, 2, 4, 5, 6, 7, 8, 9]


def test_content_cannot_pass_for_a_frame(tmp_path: Path) -> None:
    """A sender that knows the format, and even a mark of another segment, is still only content."""
    forged = carried_entry(submission(line(99)))
    with played(tmp_path / "live") as log:
        log.append(line(1))
        head = head_of(log.files[0].read_bytes()[:HEAD_BYTES])
        assert head is not None
        other = bytes(reversed(head.mark))
        log.append(framed(forged, other, 1 << 40, 3, 0) + b"".join(forged.parts) + b"\n")
        warehouse = log.corpse(tmp_path / "dead")
    (folder,) = (warehouse / "wal").iterdir()
    (path,) = folder.glob("*.wal")
    path.write_bytes(path.read_bytes()[:-1])
    assert [entry.lsn for entry in taken_up(warehouse)[1]] == [1]


@pytest.mark.parametrize("how", ["flip", "cut", "cut to a frame", "empty", "swap", "grown", "no head"])
def test_damage_in_an_earlier_segment_leaves_all_other_frames(
    written: Written, tmp_path: Path, how: str
) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    first, second, _ = sorted(folder.glob("*.wal"))
    text = first.read_bytes()
    changed = {
        "flip": text[:1000] + b"\0" + text[1001:],
        "cut": text[:-1],
        "cut to a frame": text[:HEAD_BYTES],
        "empty": b"",
        "swap": second.read_bytes(),
        "grown": text + bytes(100),
        "no head": bytes(HEAD_BYTES) + text[HEAD_BYTES:],
    }[how]
    first.write_bytes(changed)
    lost = {1} if how not in ("grown", "no head") else set()
    assert sorted(read(folder)[1]) == [lsn for lsn in range(1, 10) if lsn not in lost]
    replay = LogReplay(folder.name, folder)
    assert {bad.path for bad in replay.bad} == {first}
    assert len(replay.bad) == 1


def as_version_1(folder: Path) -> None:
    """Write the segments of a log as the version before did: one checksum for header and content."""
    before = 0
    for path in sorted(folder.glob("*.wal")):
        text = path.read_bytes()
        head = head_of(text[:HEAD_BYTES])
        assert head is not None
        older, at = [replace(head, version=1, before=before).packed()], HEAD_BYTES
        while at < len(text):
            opening = opening_of(text[at : at + FRAME_BYTES], head.mark)
            assert opening is not None
            facts, carried = text[at + 16 : at + FRAME_BYTES], text[at + FRAME_BYTES :][: opening.size]
            crc = crc32(facts, crc32(carried))
            older.append(struct.pack("<8sI", head.mark, crc) + facts + carried)
            at += FRAME_BYTES + opening.size
        before = path.write_bytes(b"".join(older))


def test_a_log_of_the_version_before_is_read_damaged_or_not(written: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    newer = read(folder)
    layout.gateway_segments(folder).unlink()  # which that version did not write
    as_version_1(folder)
    replay = LogReplay(folder.name, folder)
    assert (replay.version, replay.bad) == (1, [])
    assert read(folder) == newer
    last = folder / written.last.name
    text = last.read_bytes()
    at = text.index(line(6, 20))
    last.write_bytes(text[:at] + b"X" + text[at + 1 :])
    assert sorted(read(folder)[1]) == [1, 2, 3, 4, 5, 7, 8, 9]
    assert LogReplay(folder.name, folder).bad[-1].reason == "the checksum of a frame does not match"


def test_a_window_with_an_entry_that_is_gone_had_landed(tmp_path: Path) -> None:
    with played(tmp_path / "live") as log:
        for number in range(1, 4):
            log.append(line(number, BIG))
        log.wal.close_window(window(1, 2, 3), [1, 2, 3])
        log.append(line(4))
        warehouse = log.corpse(tmp_path / "dead")
    gone = next((warehouse / "wal").glob("*/00000001.wal"))
    gone.unlink()
    layout.gateway_segments(gone.parent).unlink()  # as of a version that kept no list
    windows, rest = taken_up(warehouse)
    assert windows == []
    assert [entry.lsn for entry in rest] == [4]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_segment_that_vanished_is_named_with_what_it_held(
    written: Written, tmp_path: Path, number: int
) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    (folder / f"{number:08}.wal").unlink()
    replay = LogReplay(folder.name, folder)
    (bad,) = replay.bad
    lsns = {1: [1], 2: [2], 3: list(range(3, 10))}[number]
    assert bad.path.name == f"{number:08}.wal"
    assert f"it held {len(lsns)} entries from number {lsns[0]} on" in bad.reason
    assert sorted(read(folder)[1]) == [lsn for lsn in range(1, 10) if lsn not in lsns]


def test_a_segment_that_was_removed_because_it_had_landed_is_not_missed(tmp_path: Path) -> None:
    with played(tmp_path / "live") as log:
        for number in range(1, 4):
            log.append(line(number, BIG))
        log.wal.close_window(window(1), [1])
        log.wal.landed([1])
        warehouse = log.corpse(tmp_path / "dead")
    (folder,) = (warehouse / "wal").iterdir()
    assert [path.name for path in sorted(folder.glob("*.wal"))] == ["00000002.wal", "00000003.wal"]
    replay = LogReplay(folder.name, folder, listed=True)
    assert (replay.bad, [entry.lsn for entry in replay.rest]) == ([], [2, 3])


def test_a_list_of_segments_that_is_lost_or_changed_is_named(written: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    path = layout.gateway_segments(folder)
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"first":2', b'"first":3'))
    (bad,) = LogReplay(folder.name, folder).bad
    assert (bad.path, "line 2 of the list" in bad.reason) == (path, True)
    path.unlink()
    (bad,) = LogReplay(folder.name, folder, listed=True).bad
    assert (bad.path, "is missing" in bad.reason) == (path, True)
    assert LogReplay(folder.name, folder).bad == []  # of a version that kept none


@pytest.mark.parametrize("files", [{}, {1: b""}, {1: b"TMWAL"}, {1: bytes(HEAD_BYTES)}])
def test_a_process_that_died_before_its_first_frame_left_nothing(
    tmp_path: Path, files: dict[int, bytes]
) -> None:
    folder = tmp_path / "wal" / "0123456789ab"
    folder.mkdir(parents=True)
    for number, text in files.items():
        (folder / f"{number:08}.wal").write_bytes(text)
    for orphan in orphans(tmp_path):
        assert orphan.name == "0123456789ab"
        assert (list(orphan.read().windows), list(orphan.read().rest)) == ([], [])
        orphan.remove()
    assert list((tmp_path / "wal").iterdir()) == []


def test_a_segment_that_was_only_begun_ends_the_log(written: Written, tmp_path: Path) -> None:
    folder = shutil.copytree(written.folder, tmp_path / written.folder.name)
    whole = read(folder)
    for text in (b"", b"TMW"):
        (folder / "00000004.wal").write_bytes(text)
        assert read(folder) == whole


def test_a_warehouse_without_a_gateway_has_no_orphans(tmp_path: Path) -> None:
    assert list(orphans(tmp_path)) == []
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "notes").mkdir()
    (tmp_path / "wal" / "0123456789ac").write_text("a file")
    assert list(orphans(tmp_path)) == []


def test_a_removed_log_is_gone_and_others_stay(written: Written, tmp_path: Path) -> None:
    for name in ("0123456789ab", "0123456789ac"):
        shutil.copytree(written.folder, tmp_path / "wal" / name)
    for orphan in orphans(tmp_path):
        with orphan:
            if orphan.name.endswith("b"):
                orphan.remove()
    assert [path.name for path in (tmp_path / "wal").iterdir()] == ["0123456789ac"]
    assert [orphan.name for orphan in orphans(tmp_path)] == ["0123456789ac"]


def test_what_is_left_of_a_removal_is_cleared_away_and_not_read(written: Written, tmp_path: Path) -> None:
    shutil.copytree(written.folder, tmp_path / "wal" / "0123456789ab.gone")
    assert list(orphans(tmp_path)) == []
    assert list((tmp_path / "wal").iterdir()) == []


TAKER = """
import sys
from pathlib import Path
from tidemill.ingest.gateway.log_replay import orphans
for orphan in orphans(Path(sys.argv[1])):
    print(orphan.name, flush=True)
    sys.stdin.readline()
print("end", flush=True)
"""


def taker(warehouse: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TAKER, str(warehouse)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_two_processes_one_gets_a_dead_log_and_none_a_live_one(written: Written, tmp_path: Path) -> None:
    shutil.copytree(written.folder, tmp_path / "wal" / "0123456789ab")
    with played(tmp_path) as log:
        log.append(line(1))
        first = taker(tmp_path)
        assert first.stdout is not None
        assert first.stdout.readline() == "0123456789ab\n"
        assert list(orphans(tmp_path)) == []  # one has it, the other lives
        assert taker(tmp_path).communicate()[0] == "end\n"
        first.kill()  # while it had it
        first.communicate()
        assert [orphan.name for orphan in orphans(tmp_path)] == ["0123456789ab"]
        assert taker(tmp_path).communicate("\n")[0] == "0123456789ab\nend\n"


def test_reading_keeps_no_more_than_a_window_and_a_frame(tmp_path: Path) -> None:
    """24 MiB in windows of 128 KiB, read while less than 4 MiB are in use."""
    with played(tmp_path, Settings(segment=1 << 20)) as log:
        lsn = 0
        for _ in range(48):
            with log.as_one_group():
                waiting = [log.later(submission(line(n, 128 << 10), stream="ab"[n % 2])) for n in range(4)]
            lsns = [future.result().lsn for future in waiting]
            log.groups.clear()
            if lsn < 100:
                log.wal.close_window(window(lsns[0]), [lsns[0]])
            lsn = lsns[-1]
        del waiting
    (folder,) = (tmp_path / "wal").iterdir()
    tracemalloc.start()
    try:
        replay = LogReplay(folder.name, folder)
        count = sum(len(entries) for _, entries in replay.windows) + sum(1 for _ in replay.rest)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 48 * 5
    assert peak < 4 << 20
