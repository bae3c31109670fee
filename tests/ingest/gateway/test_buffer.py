"""A buffer: entries go in, windows come out, each entry once and in order, with what is known of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config import Stream
from tidemill.config.gateway import GatewaySettings
from tidemill.ingest.gateway.buffer import Buffer
from tidemill.ingest.gateway.distinct_keys import keys_of
from tidemill.ingest.gateway.memory import ENTRY_BYTES
from tidemill.ingest.gateway.rates import RateMonitor
from tidemill.ingest.gateway.sliding_statistics import PANE_BYTES
from tidemill.ingest.gateway.window_landing import ClosedWindow
from tidemill.model.errors import ConfigError
from tidemill.model.gateway import Entry, Submission, WindowStats
from tidemill.model.slices import Format
from tidemill.model.time import MILLISECOND, SECOND

START = 1_700_000_000 * SECOND
GATEWAY = "a1b2c3d4e5f6"
STREAM = Stream.model_validate({"name": "clicks", "schema": {"id": "string"}, "identity": "id"})


def made(window: dict[str, object] | None = None, **triggers: object) -> Buffer:
    """A buffer whose windows only their own kind closes, unless told otherwise."""
    off: dict[str, object] = {"count": None, "bytes": None, "rate_change": None, "memory": None}
    written = {"window": window or {"kind": "adaptive"}, "triggers": off | triggers}
    return Buffer(STREAM, "http", GatewaySettings.model_validate(written))


def entry(lsn: int, arrival: int, content: bytes = b'{"id":"a"}\n', format: Format = Format.NDJSON) -> Entry:
    records = content.count(b"\n") if format is Format.NDJSON else 3
    return Entry(GATEWAY, lsn, arrival, Submission("clicks", "http", content, records, format))


def lines(*ids: object) -> bytes:
    return b"".join(b'{"id":"%s"}\n' % str(one).encode() for one in ids)


def lsns(windows: Sequence[ClosedWindow]) -> list[tuple[int, ...]]:
    return [window.lsns for window in windows]


def let_out(buffer: Buffer, now: int, share: float = 0.0, large_from: int = 1) -> list[ClosedWindow]:
    return [buffer.finish(taken) for taken in buffer.take_due(now, share, large_from)]


# -- one window


def test_a_window_tells_its_true_start_and_end_its_numbers_and_why_it_was_closed() -> None:
    buffer = made()
    buffer.add(entry(0x1F, START + 5, lines("a", "b")))
    buffer.add(entry(0x20, START + 9, lines("b")))
    (window,) = buffer.close("shutdown")
    output = window.output
    assert (output.id, output.stream, output.source) == (f"{GATEWAY}-clicks-1f", "clicks", "http")
    assert (output.start, output.end, output.trigger) == (START + 5, START + 9, "shutdown")
    assert output.stats == WindowStats(events=3, keys=2, bytes=33, duration=4)
    assert output.stats.average == 11.0
    assert window.lsns == (0x1F, 0x20)
    assert buffer.is_empty
    assert buffer.close("shutdown") == []


def test_an_empty_buffer_is_never_due() -> None:
    buffer = made(count=1, bytes=1, memory=0.1, rate_change=0.1)
    assert buffer.is_empty
    assert buffer.due(START, 1.0) is None
    assert buffer.next_look(START) is None
    assert buffer.take_due(START, 1.0) == []
    assert buffer.state(START).since is None


def test_the_state_of_an_open_window_is_told() -> None:
    buffer = made()
    for number in range(101):
        buffer.add(entry(number + 1, START + number * 10 * MILLISECOND, lines("a")))
    state = buffer.state(START + SECOND)
    assert (state.stream, state.source, state.kind) == ("clicks", "http", "adaptive")
    assert (state.events, state.bytes, state.since) == (101, 1111, START)
    assert state.rate == 101.0
    assert state.duration == 990_099
    assert buffer.held == 1111 + 101 * ENTRY_BYTES
    assert buffer.kept == 0


# -- time


def test_d1_an_adaptive_window_closes_when_its_target_came() -> None:
    buffer = made({"kind": "adaptive", "min": "10ms", "max": "5s", "target": 100})
    now = START
    for lsn in range(1, 3000):  # a thousand a second
        now += MILLISECOND
        buffer.add(entry(lsn, now))
        if buffer.due(now) is not None:
            break
    assert buffer.due(now) == "time"
    assert lsn == pytest.approx(100, abs=2)


def test_an_open_window_follows_the_rate() -> None:
    buffer = made()
    buffer.add(entry(1, START))
    assert buffer.next_look(START) == START + 5 * SECOND  # one a second
    for step in range(1, 20):
        buffer.add(entry(step + 1, START + step * MILLISECOND * 5, lines(*range(10))))
    now = START + 95 * MILLISECOND
    assert buffer.due(now) == "time"  # some 2000 a second: 50 ms
    assert buffer.next_look(now) == START + round(100 * 95 * MILLISECOND / 191)
    assert buffer.next_look(START + 900 * MILLISECOND) == START + round(100 * 900 * MILLISECOND / 191)
    assert buffer.due(START + 10 * SECOND) == "time"


@pytest.mark.parametrize("kind", ["fixed", "tumbling"])
def test_a_fixed_window_closes_at_a_multiple_of_its_size(kind: str) -> None:
    buffer = made({"kind": kind, "size": "10s"})
    buffer.add(entry(1, START + 3 * SECOND))
    assert buffer.next_look(START + 3 * SECOND) == START + 10 * SECOND
    assert buffer.due(START + 10 * SECOND - 1) is None
    assert buffer.due(START + 10 * SECOND) == "time"


def test_a_fixed_window_that_begins_at_a_boundary_lasts_a_whole_size() -> None:
    buffer = made({"kind": "fixed", "size": "10s"})
    buffer.add(entry(1, START))
    buffer.add(entry(2, START + 10 * SECOND - 1))
    assert buffer.due(START + 10 * SECOND - 1) is None
    assert lsns(let_out(buffer, START + 10 * SECOND)) == [(1, 2)]


def test_a_late_look_makes_no_window_longer() -> None:
    """What arrives at the boundary or after it is in the next window, whether somebody looked or not."""
    buffer = made({"kind": "fixed", "size": "10s"})
    buffer.add(entry(1, START + SECOND))
    buffer.add(entry(2, START + 10 * SECOND))
    buffer.add(entry(3, START + 35 * SECOND))
    now = START + 36 * SECOND
    assert buffer.due(now) == "time"
    assert buffer.next_look(now) == now
    windows = let_out(buffer, now)
    assert lsns(windows) == [(1,), (2,)]
    assert [window.output.trigger for window in windows] == ["time", "time"]
    assert buffer.due(now) is None
    assert not buffer.is_empty
    assert lsns(let_out(buffer, START + 40 * SECOND)) == [(3,)]


def test_all_that_there_is_comes_out_with_the_reason_of_each() -> None:
    buffer = made({"kind": "fixed", "size": "10s"})
    buffer.add(entry(1, START))
    buffer.add(entry(2, START + 11 * SECOND))
    windows = buffer.close("shutdown")
    assert [(window.lsns, window.output.trigger) for window in windows] == [
        ((1,), "time"),
        ((2,), "shutdown"),
    ]
    assert buffer.is_empty


def test_a_session_lasts_while_something_comes_and_five_seconds_at_most() -> None:
    buffer = made({"kind": "session", "gap": "500ms", "max": "5s"})
    buffer.add(entry(1, START))
    assert buffer.next_look(START) == START + 500 * MILLISECOND
    buffer.add(entry(2, START + 499 * MILLISECOND))
    assert buffer.due(START + 998 * MILLISECOND) is None
    assert buffer.due(START + 999 * MILLISECOND) == "time"
    buffer.add(entry(3, START + 999 * MILLISECOND))  # nobody looked: it is the next session all the same
    assert lsns(let_out(buffer, START + SECOND)) == [(1, 2)]
    for number in range(20):
        buffer.add(entry(4 + number, START + 1_400 * MILLISECOND + number * 400 * MILLISECOND))
    windows = let_out(buffer, START + 20 * SECOND)
    assert [window.output.start for window in windows] == [
        START + 999 * MILLISECOND,
        START + 6_200 * MILLISECOND,
    ]
    assert max(window.output.end - window.output.start for window in windows) < 5 * SECOND


def test_an_adaptive_window_is_over_at_its_longest_whoever_looks() -> None:
    buffer = made()
    buffer.add(entry(1, START))
    buffer.add(entry(2, START + 5 * SECOND - 1))
    buffer.add(entry(3, START + 5 * SECOND))
    assert lsns(let_out(buffer, START + 5 * SECOND)) == [(1, 2)]


# -- other triggers


def sizes(windows: list[ClosedWindow]) -> list[tuple[int, str]]:
    return [(window.output.stats.events, window.output.trigger) for window in windows]


def test_count_closes_at_exactly_its_number_whoever_looks() -> None:
    buffer = made(count=10)
    for number in range(1, 33):  # a look that comes late does not make a window larger
        buffer.add(entry(number, START, lines(number)))
    assert buffer.due(START) == "count"
    assert sizes(let_out(buffer, START)) == [(10, "count")] * 3
    assert sizes(buffer.close("shutdown")) == [(2, "shutdown")]


def test_a_request_is_never_cut_so_it_closes_the_window_that_it_does_not_fit_in() -> None:
    buffer = made(count=5)
    buffer.add(entry(1, START, lines(1, 2, 3, 4)))
    assert buffer.due(START) is None
    buffer.add(entry(2, START, lines(5, 6, 7)))
    buffer.add(entry(3, START, lines(8, 9)))
    buffer.add(entry(4, START, lines(*range(10, 22))))
    assert sizes(let_out(buffer, START)) == [(4, "count"), (5, "count"), (12, "count")]
    buffer = made(bytes=22)
    buffer.add(entry(1, START, lines(1)))
    assert buffer.due(START) is None
    buffer.add(entry(2, START, lines(2)))
    assert buffer.due(START) == "bytes"
    assert sizes(let_out(buffer, START)) == [(2, "bytes")]
    buffer = made(bytes=20)
    buffer.add(entry(1, START, lines(1)))
    buffer.add(entry(2, START, lines(2)))
    assert sizes(let_out(buffer, START)) == [(1, "bytes")]


def test_without_memory_a_window_that_is_large_enough_is_closed() -> None:
    buffer = made(memory=0.8)
    buffer.add(entry(1, START))
    assert buffer.due(START, 0.79) is None
    assert buffer.due(START, 0.8) == "memory_pressure"
    assert buffer.due(START, 0.8, large_from=buffer.held) == "memory_pressure"
    assert buffer.due(START, 0.9, large_from=buffer.held + 1) is None
    assert let_out(buffer, START, 0.8)[0].output.trigger == "memory_pressure"


def test_by_default_windows_go_early_at_high_water() -> None:
    buffer = Buffer(STREAM, "http", GatewaySettings())
    buffer.add(entry(1, START))
    assert buffer.due(START, 0.8) == "memory_pressure"


def run(buffer: Buffer, start: int, seconds: int, per_millisecond: int, first: int) -> list[tuple[int, str]]:
    """A request of so many events each millisecond; when windows were closed, and why."""
    closed: list[tuple[int, str]] = []
    for step in range(seconds * 1000):
        now = start + step * MILLISECOND
        buffer.add(entry(first + step, now, lines(*range(per_millisecond))))
        closed += [(now, window.output.trigger) for window in let_out(buffer, now)]
    return closed


def test_a_change_of_the_rate_closes_one_window_and_not_the_next_ones() -> None:
    buffer = made({"kind": "fixed", "size": "20s"}, rate_change=0.5)
    assert run(buffer, START, 4, 1, 1) == []
    ((when, why),) = run(buffer, START + 4 * SECOND, 8, 10, 10_000)
    assert why == "rate_change"
    assert when <= START + 4 * SECOND + 400 * MILLISECOND


def test_a_change_of_the_rate_closes_no_window_that_holds_nothing() -> None:
    buffer = made({"kind": "fixed", "size": "20s"}, rate_change=0.5)
    run(buffer, START, 4, 5, 1)
    buffer.close("time")
    for step in range(1, 30):
        assert buffer.due(START + 4 * SECOND + step * 100 * MILLISECOND) is None
    assert buffer.is_empty


def test_few_events_that_vary_do_not_close_an_adaptive_window() -> None:
    """Between no event and nineteen a second it lasts 5 s in any case."""
    buffer = made(rate_change=0.5)
    closed: list[tuple[int, str]] = []
    for step in range(1, 311):
        now = START + step * 100 * MILLISECOND
        if step % 20 == 0:
            buffer.add(entry(step, now, lines(1, 2, 3)))
        closed += [(now, window.output.trigger) for window in let_out(buffer, now)]
    assert {why for _, why in closed} == {"time"}
    assert len(closed) == 5


def test_who_waits_is_served_when_the_window_lasted_its_least() -> None:
    buffer = made()
    buffer.add(entry(1, START))
    buffer.hurry()
    assert buffer.next_look(START) == START + 10 * MILLISECOND
    assert buffer.due(START + 10 * MILLISECOND - 1) is None
    assert buffer.due(START + 10 * MILLISECOND) == "waiting"
    buffer.close("waiting")
    buffer.add(entry(2, START + SECOND))
    assert buffer.due(START + 2 * SECOND) is None, "nobody waits for that one"


@pytest.mark.parametrize("kind", ["fixed", "tumbling", "sliding", "session"])
def test_who_waits_is_served_at_once_by_the_other_kinds(kind: str) -> None:
    buffer = made({"kind": kind})
    buffer.hurry()  # nothing is in it: nobody can be waiting for that
    buffer.add(entry(1, START))
    assert buffer.due(START) is None
    buffer.hurry()
    assert buffer.due(START) == "waiting"


def test_a_custom_trigger_closes_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tidemill_evens.py").write_text("def even(window):\n    return window.events % 2 == 0\n")
    info = tmp_path / "tidemill_evens-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidemill-evens\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tidemill.triggers]\neven = tidemill_evens:even\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    buffer = made(custom=["even"])
    buffer.add(entry(1, START))
    assert buffer.due(START) is None
    buffer.add(entry(2, START))
    assert buffer.due(START) == "custom:even"
    (window,) = let_out(buffer, START)
    assert window.output.trigger == "custom:even"
    sys.modules.pop("tidemill_evens")
    with pytest.raises(ConfigError, match="there is no trigger 'odd'"):
        made(custom=["odd"])


# -- files


def test_a_file_is_a_window_of_its_own_and_closes_the_one_before_it() -> None:
    buffer = made()
    buffer.add(entry(1, START))
    buffer.add(entry(2, START + 1, b"PAR1...", Format.PARQUET))
    buffer.add(entry(3, START + 2, b"ARROW1.", Format.ARROW))
    buffer.add(entry(4, START + 3))
    assert buffer.due(START + 3) == "file"
    windows = let_out(buffer, START + 3)
    assert [(window.lsns, window.output.trigger) for window in windows] == [
        ((1,), "file"), ((2,), "file"), ((3,), "file"),
    ]  # fmt: skip
    assert windows[1].format is Format.PARQUET
    assert windows[1].output.stats == WindowStats(events=3, keys=0, bytes=7, duration=0)
    assert buffer.due(START + 3) is None
    assert buffer.state(START + 3).events == 1


# -- sliding


def test_a_sliding_window_comes_out_every_step_and_tells_of_its_whole_size() -> None:
    buffer = made({"kind": "sliding", "size": "3s", "step": "1s"})
    found: list[ClosedWindow] = []
    for number in range(6):
        buffer.add(entry(number + 1, START + number * SECOND + 100, lines("a", number)))
        assert buffer.due(START + (number + 1) * SECOND - 1) is None
        found += let_out(buffer, START + (number + 1) * SECOND)
    assert lsns(found) == [(1,), (2,), (3,), (4,), (5,), (6,)]
    assert [window.output.stats.events for window in found] == [2, 4, 6, 6, 6, 6]
    assert [window.output.stats.keys for window in found] == [2, 3, 4, 4, 4, 4]
    assert [window.output.stats.bytes for window in found] == [22, 44, 66, 66, 66, 66]
    assert [window.output.stats.duration // SECOND for window in found] == [0, 1, 2, 2, 2, 2]
    assert [window.output.start - START for window in found] == [n * SECOND + 100 for n in range(6)]
    assert buffer.kept == 3 * (PANE_BYTES + 2 * 8)


def test_a_buffer_is_idle_once_no_window_reaches_back_to_what_it_knows() -> None:
    buffer = made({"kind": "sliding", "size": "30s", "step": "10s"})
    buffer.add(entry(1, START))
    assert not buffer.is_idle(START + 5 * SECOND)
    buffer.close("time")
    assert not buffer.is_idle(START + 5 * SECOND)
    assert not buffer.is_idle(START + 30 * SECOND)
    assert buffer.is_idle(START + 30 * SECOND + 1)
    plain = made()
    plain.add(entry(1, START))
    plain.close("time")
    assert not plain.is_idle(START + SECOND)
    assert plain.is_idle(START + SECOND + 1)


def test_keys_of_sliding_windows_are_forgotten_before_memory_runs_out() -> None:
    least = {"windows": "64KiB"}  # an eighth of it: 1024 keys
    settings_ = GatewaySettings.model_validate(
        {"window": {"kind": "sliding", "size": "10s"}, "memory": least}
    )
    buffer = Buffer(STREAM, "http", settings_)
    for number in range(10):
        ids = range(number * 300, number * 300 + 300)
        buffer.add(entry(number + 1, START + number * SECOND, lines(*ids)))
        (window,) = buffer.close("time")
        assert buffer.kept <= 1024 * 8 + 10 * PANE_BYTES
    assert window.output.stats.events == 3000
    assert window.output.stats.keys == 900


# -- keys


def stream(**declared: object) -> Stream:
    return Stream.model_validate({"name": "s", "schema": {"id": "string"}, **declared})


@pytest.mark.parametrize(
    ("declared", "content", "keys"),
    [
        ({"identity": "id"}, b'{"id":"a"}\n{"id":"b"}\n{"id":"a","x":1}\n', 2),
        ({"identity": "id"}, b'{"id":1}\n{"id":"1"}\n{"id":1.0}\n{"id":2}\n', 2),
        ({"identity": "id"}, b'{"id":""}\n{"id":null}\n{"id":1.5}\n{"id":true}\n{"id":[1]}\n{}\n', 0),
        ({"identity": "id"}, b'{"id":"a"\n[1]\n"a"\n\xff\n{"id":"b"}\n', 1),
        ({"identity": "a.b"}, b'{"a":{"b":"x"}}\n{"a":{"b":"y"}}\n{"a.b":"z"}\n{"a":3}\n', 2),
        ({"identity": "a.b"}, b'{"a":{"b":1}}\n{"a":{"b":"1"}}\n', 1),
        ({"identity": ["id", "n"]}, b'{"id":"a","n":1}\n{"id":"a","n":"1"}\n{"id":"a","n":1}\n', 2),
        ({"identity": ["id", "n"]}, b'{"id":"a","n":1e300}\n{"id":"a","n":1e30}\n', 2),
        ({"identity": ["id", "n"]}, b'{"id":"a"}\n{"n":1}\n', 0),
        (
            {"identity": "id", "tenant": {"column": "t"}},
            b'{"id":"a","t":"x"}\n{"id":"a","t":"y"}\n{"id":"a"}\n{"id":"b","t":1}\n{"id":"a","t":"x"}\n',
            2,
        ),
        ({"identity": "id", "tenant": {"column": "r.t"}}, b'{"id":"a","r":{"t":"x"}}\n{"id":"a"}\n', 1),
        ({"gate": "none"}, b'{"id":"a"}\n', 0),
    ],
)
def test_keys_are_what_the_gate_tells_events_by(
    declared: dict[str, object], content: bytes, keys: int
) -> None:
    assert len(keys_of(content, stream(**declared))) == keys


# -- properties

KINDS = st.sampled_from(
    [
        {"kind": "adaptive", "min": "1ms", "max": "20ms", "target": 5},
        {"kind": "fixed", "size": "7ms"},
        {"kind": "tumbling", "size": "1us"},
        {"kind": "sliding", "size": "9ms", "step": "6ms"},
        {"kind": "session", "gap": "2ms", "max": "11ms"},
    ]
)
ACTS = st.lists(
    st.tuples(
        st.integers(0, 6000),  # microseconds since the one before
        st.lists(st.integers(0, 20), min_size=1, max_size=4),  # ids
        st.sampled_from([Format.NDJSON] * 9 + [Format.PARQUET]),
        st.sampled_from(["", "", "", "look", "look", "close", "hurry"]),
        st.sampled_from([0.0, 0.0, 0.85]),
    ),
    max_size=60,
)


@examples(200)
@given(KINDS, ACTS)
def test_every_entry_is_in_one_window_in_order_and_the_numbers_add_up(
    kind: dict[str, object], acts: list[tuple[int, list[int], Format, str, float]]
) -> None:
    buffer = made(kind, count=12, bytes=300, rate_change=0.5, memory=0.8)
    added: list[Entry] = []
    closed: list[ClosedWindow] = []
    now = START
    for step, ids, format_, act, share in acts:
        now += step
        added.append(entry(len(added) + 1, now, lines(*ids), format_))
        buffer.add(added[-1])
        assert not buffer.is_empty
        if act == "hurry":
            buffer.hurry()
        elif act == "close":
            closed += buffer.close("time")
            assert buffer.is_empty
        elif act == "look":
            reason = buffer.due(now, share)
            found = let_out(buffer, now, share)
            assert (reason is None) == (found == [])
            assert reason is None or reason == found[0].output.trigger or len(found) > 1
            assert buffer.due(now, share) is None
            closed += found
    closed += buffer.close("shutdown")
    assert [one for window in closed for one in window.entries] == added
    assert sum(len(window.entries) for window in closed) == len(added)
    assert len({window.output.id for window in closed}) == len(closed)
    for window in closed:
        assert (window.output.start, window.output.end) == (
            window.entries[0].arrival,
            window.entries[-1].arrival,
        )
        assert len(window.entries) == 1 or {one.submission.format for one in window.entries} == {
            Format.NDJSON
        }
    if kind["kind"] != "sliding":
        assert sum(w.output.stats.events for w in closed) == sum(e.submission.records for e in added)
        assert sum(w.output.stats.bytes for w in closed) == sum(len(e.submission.content) for e in added)
    if kind["kind"] == "fixed":
        assert all(w.output.start // 7000 == w.output.end // 7000 for w in closed)
    if kind["kind"] == "session":
        assert all(w.output.end - w.output.start < 11_000 for w in closed)
    if kind["kind"] == "adaptive":
        assert all(w.output.end - w.output.start < 20_000 for w in closed)


@examples(200)
@given(st.integers(1, 12), st.integers(1, 12), ACTS)
def test_sliding_numbers_are_those_of_a_model_that_keeps_every_event(
    one: int, other: int, acts: list[tuple[int, list[int], Format, str, float]]
) -> None:
    step, size = sorted((one * 500, other * 500))
    buffer = made({"kind": "sliding", "size": f"{size}us", "step": f"{step}us"}, count=12)
    seen: list[tuple[int, list[int]]] = []
    out: list[ClosedWindow] = []
    now = START
    for gap, ids, _, act, _ in acts:
        now += gap
        seen.append((now, ids))
        buffer.add(entry(len(seen), now, lines(*ids)))
        if act == "look":
            out += let_out(buffer, now)
    out += buffer.close("shutdown")
    for window in out:
        until = (window.output.start // step + 1) * step
        inside = [(at, ids) for at, ids in seen[: window.lsns[-1]] if at >= until - size]
        assert window.output.stats == WindowStats(
            events=sum(len(ids) for _, ids in inside),
            keys=len({id_ for _, ids in inside for id_ in ids}),
            bytes=sum(len(lines(*ids)) for _, ids in inside),
            duration=inside[-1][0] - inside[0][0],
        )


def test_a_monitor_of_ones_own_is_used() -> None:
    monitor = RateMonitor(span=10 * SECOND)
    buffer = Buffer(STREAM, "http", GatewaySettings(), monitor)
    buffer.add(entry(1, START, lines(*range(10))))
    assert buffer.monitor is monitor
    assert monitor.rate(START) == 1.0
