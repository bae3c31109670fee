"""The log while it lives: groups, their order, closes, segments that go, and the end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.support.wal_driver import (
    NOON,
    SMALLEST,
    Played,
    contents,
    line,
    played,
    submission,
    taken_up,
    window,
)

from tidemill.ingest.gateway.log_replay import orphans
from tidemill.ingest.gateway.segments import SegmentUsage
from tidemill.ingest.gateway.wal import MOST_ENTRIES, Wal
from tidemill.model.errors import OverloadedError
from tidemill.model.gateway import Entry, Submission
from tidemill.model.slices import Format

BIG = 40 << 10  # one of them to a segment


def test_an_entry_is_told_with_its_place_and_arrival(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        wanted = Submission("orders", "till", b"PAR1", 3, Format.PARQUET, "acme", (0, 2))
        assert log.append(wanted) == Entry(log.wal.name, 1, NOON, wanted)
        assert log.append(line(2)).id == f"{log.wal.name}-2"
        assert (tmp_path / "wal" / log.wal.name).is_dir()
        assert len(log.wal.name) == 12
        assert taken_up(log.corpse(tmp_path / "corpse"))[1][0] == Entry(log.wal.name, 1, NOON, wanted)


def test_what_waits_is_one_group_in_the_order_it_came(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        with log.as_one_group():
            waiting = [log.later(submission(line(n))) for n in range(1, 6)]
        assert [future.result().lsn for future in waiting] == [2, 3, 4, 5, 6]
        assert [[entry.lsn for entry in group] for group in log.groups] == [[1], [2, 3, 4, 5, 6]]
        assert len({entry.arrival for entry in log.groups[1]}) == 1


def test_a_group_is_bounded(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        with log.as_one_group():
            waiting = [log.later(submission(line(1))) for _ in range(MOST_ENTRIES + 10)]
        assert [future.result().lsn for future in waiting] == list(range(2, MOST_ENTRIES + 12))
        assert [len(group) for group in log.groups] == [1, MOST_ENTRIES, 10]


def test_bytes_of_a_group_are_bounded(tmp_path: Path) -> None:
    big = submission(b"x" * (3 << 20))
    with played(tmp_path) as log:
        with log.as_one_group():
            waiting = [log.later(big) for _ in range(4)]
        assert [future.result().lsn for future in waiting] == [2, 3, 4, 5]
        assert [len(group) for group in log.groups] == [1, 3, 1]
        assert taken_up(log.corpse(tmp_path / "corpse"))[1][1:] == [f.result() for f in waiting]


def test_arrivals_never_go_back(tmp_path: Path) -> None:
    reported = iter([NOON, NOON - 50, NOON + 1, NOON])
    log = Played(tmp_path, lambda: next(reported))
    assert [log.append(line(n)).arrival for n in range(4)] == [NOON, NOON + 1, NOON + 1, NOON + 2]
    log.wal.close()


def test_many_threads_are_each_told_once_in_the_order_of_the_log(tmp_path: Path) -> None:
    reported: list[tuple[bytes, int]] = []

    def send(log_of: Wal, thread: int) -> None:
        for number in range(100):
            content = line(thread * 1000 + number, thread * 7)
            heard = threading.Event()

            def done(
                outcome: Entry | BaseException, content: bytes = content, heard: threading.Event = heard
            ) -> None:
                assert isinstance(outcome, Entry)
                assert outcome.submission.content == content
                assert not heard.is_set()
                reported.append((content, outcome.lsn))  # by the committer alone
                heard.set()

            log_of.append(submission(content, stream=f"s{thread % 3}"), done)
            if number % 10 == 0:
                heard.wait()

    with played(tmp_path) as log:
        threads = [threading.Thread(target=send, args=(log.wal, n)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.wal.drain()
        assert [lsn for _, lsn in reported] == list(range(1, 1601))
        assert [entry.lsn for group in log.groups for entry in group] == list(range(1, 1601))
        for thread_number in range(16):
            mine = [
                c
                for c, _ in reported
                if c in {line(thread_number * 1000 + n, thread_number * 7) for n in range(100)}
            ]
            assert mine == [line(thread_number * 1000 + n, thread_number * 7) for n in range(100)]
        windows, rest = taken_up(log.corpse(tmp_path / "corpse"))
        assert windows == []
        assert contents(rest) == {lsn: content for content, lsn in reported}
        assert [e.submission.stream for e in rest] == sorted(e.submission.stream for e in rest)
        assert log.wal.segments > 2


def test_closes_are_read_in_their_order_with_just_their_entries(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        entries = [log.append(submission(line(n), stream="ab"[n % 2])) for n in range(7)]
        log.wal.close_window(window(2, 4, 6, stream="b"), [2, 4, 6])
        log.wal.close_window(window(1, 3, stream="a"), [1, 3])
        windows, rest = taken_up(log.corpse(tmp_path / "corpse"))
        assert windows == [
            (window(2, 4, 6, stream="b"), (entries[1], entries[3], entries[5])),
            (window(1, 3, stream="a"), (entries[0], entries[2])),
        ]
        assert rest == [entries[4], entries[6]]


def test_the_rest_comes_feed_by_feed(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        feeds = [("b", "http"), ("a", "till"), ("a", "http"), ("b", "http"), ("a", "till")]
        for stream, source in feeds:
            log.append(submission(line(1, BIG), stream, source))
        _, rest = taken_up(log.corpse(tmp_path / "corpse"))
        assert [(e.submission.stream, e.submission.source, e.lsn) for e in rest] == [
            ("a", "http", 3), ("a", "till", 2), ("a", "till", 5), ("b", "http", 1), ("b", "http", 4),
        ]  # fmt: skip


def test_a_close_may_share_the_sync_with_appends(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        with log.as_one_group():
            closing = threading.Thread(target=log.wal.close_window, args=(window(1), [1]))
            closing.start()
            after = log.later(submission(line(2)))
        closing.join()
        assert after.result().lsn == 2
        assert [out for out, _ in taken_up(log.corpse(tmp_path / "corpse"))[0]] == [window(1)]


def test_full_segments_go_when_all_they_hold_has_landed(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        for number in range(4):
            log.append(line(number, BIG))
        assert [path.name for path in log.files] == [f"0000000{n}.wal" for n in (1, 2, 3, 4)]
        assert log.wal.size == sum(path.stat().st_size for path in log.files)
        log.wal.close_window(window(2, 3), [2, 3])  # in the fourth
        log.wal.landed([2, 3])
        assert [path.name for path in log.files] == ["00000001.wal", "00000004.wal"]
        assert (log.wal.segments, log.wal.size) == (2, sum(path.stat().st_size for path in log.files))
        windows, rest = taken_up(log.corpse(tmp_path / "corpse"))
        assert (windows, [entry.lsn for entry in rest]) == ([], [1, 4])
        log.wal.close_window(window(1, 4), [1, 4])
        log.wal.landed([1, 4])
        assert [path.name for path in log.files] == ["00000004.wal"]  # it is still written to


def test_a_segment_shared_by_windows_stays_until_the_last_of_them_landed(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        for number in range(3):
            log.append(submission(line(number), stream=f"s{number}"))
        log.append(line(3, 60 << 10))
        log.append(line(4, 60 << 10))
        for lsn in (1, 2, 3, 4):
            log.wal.close_window(window(lsn), [lsn])
        there = []
        for lsn in (3, 1, 4, 2):
            log.wal.landed([lsn])
            there.append(len(log.files))
        assert there == [2, 2, 2, 1]  # the fifth is in the other


def test_the_close_of_a_window_stays_as_long_as_an_entry_of_it(tmp_path: Path) -> None:
    """1 and 2 share a segment; the close of 1 is in the next one, where all has landed."""
    with played(tmp_path) as log:
        log.append(line(1))
        log.append(submission(line(2, BIG), stream="slow"))
        log.append(line(3, BIG))
        log.wal.close_window(window(1), [1])
        log.append(line(4, BIG))
        log.wal.close_window(window(3), [3])
        log.wal.landed([1])
        log.wal.landed([3])
        assert len(log.files) == 3
        windows, rest = taken_up(log.corpse(tmp_path / "corpse"))
        assert [output for output, _ in windows] == [window(1), window(3)]
        assert [entry.lsn for entry in rest] == [4, 2]  # requests, slow
        log.wal.close_window(window(2, stream="slow"), [2])
        log.wal.landed([2])
        assert [path.name for path in log.files] == ["00000003.wal"]


def test_what_segments_hold() -> None:
    held = SegmentUsage()
    for number, first in ((1, 1), (2, 4), (3, 4), (4, 9)):
        held.begun(number, first, 52)
        held.grown(100 * number, {1: 3, 2: 0, 3: 5, 4: 1}[number])
    assert (len(held), held.bytes, held.unlanded) == (4, 1000, 9)
    assert held.removable() == 2
    held.removed(2)
    assert held.removable() is None
    held.landed([8, 2, 4, 5])
    held.landed([6, 7])
    assert held.removable() == 3
    held.closed([1, 2])  # in the fourth
    held.landed([9, 1])
    assert held.unlanded == 1
    assert held.removable() == 3
    held.removed(3)
    held.begun(5, 10, 52)
    assert held.removable() is None  # the first one's close is in the fourth
    held.landed([3])
    assert held.removable() == 1
    held.removed(1)
    assert held.removable() == 4


def test_a_log_whose_every_entry_landed_leaves_nothing(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        log.append(line(1, BIG))
        log.append(line(2, BIG))
        log.wal.close_window(window(1, 2), [1, 2])
        log.wal.landed([1, 2])
    assert list((tmp_path / "wal").iterdir()) == []
    log.wal.close()  # again is nothing


def test_a_log_that_nothing_was_written_to_leaves_nothing(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        assert (log.wal.size, log.wal.segments, log.files) == (0, 0, [])
    assert list((tmp_path / "wal").iterdir()) == []


def test_a_closed_log_with_something_unlanded_is_there_for_the_next(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        entry = log.append(line(1))
        assert list(orphans(tmp_path)) == []  # it lives
    assert taken_up(tmp_path) == ([], [entry])


def test_after_drain_nothing_is_taken_and_windows_can_still_be_closed(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        waiting = [log.later(submission(line(n))) for n in range(50)]
        log.wal.drain()
        assert [future.done() for future in waiting] == [True] * 50
        with pytest.raises(OverloadedError) as caught:
            log.append(line(51))
        assert caught.value.refused
        log.wal.close_window(window(1), [1])
        assert [out for out, _ in taken_up(log.corpse(tmp_path / "corpse"))[0]] == [window(1)]


def test_close_drains(tmp_path: Path) -> None:
    with played(tmp_path) as log:
        waiting = [log.later(submission(line(n))) for n in range(50)]
    assert [future.result().lsn for future in waiting] == list(range(1, 51))
    assert len(taken_up(tmp_path)[1]) == 50


def test_the_log_goes_on_when_those_it_tells_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def durable(group: object) -> None:
        raise RuntimeError("the loop is closed")

    wal = Wal.create(tmp_path, SMALLEST, lambda: NOON, durable)
    for number in range(3):
        wal.append(submission(line(number)), lambda _: None)
        wal.close_window(window(1), [number + 1])
    wal.close()
    assert "were not taken over" in caplog.text
    assert len(taken_up(tmp_path)[0]) == 3


def test_the_committer_does_not_wait_for_itself(tmp_path: Path) -> None:
    seen: Future[BaseException] = Future()

    def durable(group: object) -> None:
        try:
            wal.close_window(window(1), [1])
        except AssertionError as error:
            seen.set_result(error)

    wal = Wal.create(tmp_path, SMALLEST, lambda: NOON, durable)
    wal.append(submission(line(1)), lambda _: None)
    assert "cannot wait for itself" in str(seen.result())
    wal.close()
