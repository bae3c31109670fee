"""Memory of the gateway: levels, what is admitted and refused, and that nothing refused is counted."""

from __future__ import annotations

import random
import threading
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.gateway import Memory
from tidemill.ingest.gateway.memory import ENTRY_BYTES, Component, MemoryTracker, cost_of, level
from tidemill.model.errors import OverloadedError, Retry, TooLargeError
from tidemill.model.gateway import Pressure, Submission

MIB = 1 << 20
ORDER = list(Pressure)
COMPONENTS: tuple[Component, ...] = get_args(Component)


def small() -> MemoryTracker:
    """10 MiB in all, of which events may have 8."""
    settings = {"max": "10MiB", "buffer": "8MiB", "requests": "4MiB", "windows": "1MiB", "rates": "1MiB"}
    return MemoryTracker(Memory.model_validate(settings))


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (0, Pressure.LOW),
        (50 * MIB, Pressure.LOW),
        (50 * MIB + 1, Pressure.MEDIUM),
        (80 * MIB, Pressure.MEDIUM),
        (80 * MIB + 1, Pressure.HIGH),
        (95 * MIB, Pressure.HIGH),
        (95 * MIB + 1, Pressure.EMERGENCY),
        (200 * MIB, Pressure.EMERGENCY),
    ],
)
def test_d3_levels_of_100_mib(used: int, expected: Pressure) -> None:
    assert level(used, 100 * MIB, 0.8, 0.95) is expected


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 500), st.floats(0.1, 1), st.floats(0.1, 1))
def test_more_in_use_is_never_less_pressure(a: int, b: int, allowed: int, one: float, other: float) -> None:
    marks = sorted((one, other))
    less, more = (ORDER.index(level(used, allowed, *marks)) for used in sorted((a, b)))
    assert less <= more


def test_d3_above_emergency_it_is_refused_and_nothing_is_counted() -> None:
    tracker = MemoryTracker(Memory.model_validate({"buffer": "100MiB"}))
    assert tracker.allocate("buffer", 50 * MIB) is Pressure.LOW
    assert tracker.allocate("buffer", 30 * MIB) is Pressure.MEDIUM
    assert tracker.allocate("buffer", 15 * MIB) is Pressure.HIGH
    before = tracker.usage()
    assert before["buffer"] == before["total"] == (95 * MIB, 100 * MIB)
    with pytest.raises(OverloadedError) as caught:
        tracker.allocate("buffer", 1)
    assert caught.value.refused
    assert caught.value.retry is Retry.LATER
    assert caught.value.after == 1.0
    assert (caught.value.code, caught.value.where) == ("overloaded", "gateway.memory.buffer")
    assert caught.value.message == "no memory is left for 1 bytes in buffer"
    assert "gateway.memory.buffer sets what is allowed" in caught.value.hint
    assert tracker.usage() == before
    tracker.release("buffer", 15 * MIB)
    assert tracker.allocate("buffer", 1) is Pressure.HIGH


def test_high_water_admits() -> None:
    """The seed refuses what it goes on counting; here it is counted and admitted, up to emergency."""
    tracker = small()
    assert tracker.allocate("buffer", 7 * MIB) is Pressure.HIGH  # 7 of 8
    assert tracker.usage()["buffer"] == (7 * MIB, 8 * MIB)


def test_what_never_fits_the_budget_of_a_stream_is_too_large_and_not_a_matter_of_waiting() -> None:
    tracker = MemoryTracker(Memory(), {"big": MIB})
    tracker.allocate("buffer", MIB // 2, "big")
    with pytest.raises(OverloadedError) as full:
        tracker.allocate("buffer", MIB // 2, "big")
    assert full.value.retry is Retry.LATER
    with pytest.raises(TooLargeError, match="buffer of big: 996147") as never:
        tracker.allocate("buffer", MIB, "big")
    assert (never.value.retry, never.value.where) == (Retry.NEVER, "streams.big.gateway.memory.buffer")
    assert tracker.usage()["buffer of big"] == (MIB // 2, MIB)
    tracker.allocate("buffer", MIB, "other")


def test_the_total_refuses_what_a_component_would_take() -> None:
    tracker = small()
    tracker.allocate("buffer", 6 * MIB)
    tracker.allocate("requests", 3 * MIB)
    with pytest.raises(OverloadedError) as caught:
        tracker.allocate("windows", MIB // 2 + 1)
    assert caught.value.where == "gateway.memory.max"
    assert tracker.usage() == {
        "buffer": (6 * MIB, 8 * MIB),
        "requests": (3 * MIB, 4 * MIB),
        "windows": (0, MIB),
        "rates": (0, MIB),
        "total": (9 * MIB, 10 * MIB),
    }


def test_pressure_is_the_worst_of_the_total_and_of_what_requests_fill() -> None:
    tracker = small()
    assert tracker.pressure() is Pressure.LOW
    tracker.allocate("rates", MIB * 9 // 10)
    assert tracker.pressure() is Pressure.LOW  # nothing that a sender could wait for
    tracker.release("rates", MIB * 9 // 10)
    assert tracker.allocate("requests", MIB * 7 // 2) is tracker.pressure() is Pressure.HIGH
    tracker.release("requests", MIB * 3 // 2)
    assert tracker.pressure() is Pressure.LOW
    tracker.allocate("buffer", 4 * MIB)
    assert tracker.pressure() is Pressure.MEDIUM  # 6 of 10, though each part is at its half


def test_the_share_is_of_what_closing_windows_gives_back() -> None:
    tracker = small()
    assert tracker.share() == 0.0
    tracker.allocate("rates", MIB // 2)
    assert tracker.share() == 0.05  # of the total; that half of `rates` is in use is no reason
    tracker.allocate("buffer", 4 * MIB)
    assert tracker.share() == 0.5
    tracker.allocate("requests", 3 * MIB)
    assert tracker.share() == 0.75


def test_releasing_what_was_not_allocated_is_a_bug() -> None:
    tracker = small()
    tracker.allocate("buffer", 10)
    with pytest.raises(AssertionError):
        tracker.release("buffer", 11)
    with pytest.raises(AssertionError):
        tracker.release("requests", 1)
    assert tracker.usage()["total"] == (10, 10 * MIB)


def test_nothing_is_always_admitted() -> None:
    tracker = MemoryTracker(Memory.model_validate({"buffer": "100MiB"}))
    tracker.allocate("buffer", 95 * MIB)
    assert tracker.allocate("buffer", 0) is Pressure.HIGH


def test_a_submission_costs_its_content_and_what_is_known_of_it() -> None:
    assert cost_of(Submission("s", "http", b'{"id":1}\n', 1)) == 9 + ENTRY_BYTES


@given(st.lists(st.tuples(st.sampled_from(COMPONENTS), st.integers(0, 5 * MIB)), max_size=60))
def test_what_was_admitted_is_what_is_counted(steps: list[tuple[Component, int]]) -> None:
    tracker = small()
    admitted: list[tuple[Component, int]] = []
    for turn, (component, size) in enumerate(steps):
        if turn % 3 == 2 and admitted:
            tracker.release(*admitted.pop(0))
            continue
        try:
            pressure = tracker.allocate(component, size)
        except OverloadedError:
            continue
        admitted.append((component, size))
        assert pressure is tracker.pressure()
        assert pressure is not Pressure.EMERGENCY
    usage = tracker.usage()
    for component in COMPONENTS:
        assert usage[component][0] == sum(size for name, size in admitted if name == component)
    assert usage["total"][0] == sum(size for _, size in admitted)
    assert all(0 <= used <= 0.95 * allowed for used, allowed in usage.values())


def test_threads_never_count_below_zero_or_above_emergency() -> None:
    tracker = small()
    seen: list[dict[str, tuple[int, int]]] = []
    failures: list[BaseException] = []
    refused = [0] * 4
    start = threading.Barrier(4)

    def work(number: int) -> None:
        dice = random.Random(number)
        held: list[tuple[Component, int]] = []
        try:
            start.wait()
            for _ in range(3000):
                if held and dice.random() < 0.45:
                    tracker.release(*held.pop(dice.randrange(len(held))))
                else:
                    asked = (dice.choice(COMPONENTS), dice.randrange(MIB))
                    try:
                        tracker.allocate(*asked)
                    except OverloadedError:
                        refused[number] += 1
                    else:
                        held.append(asked)
                seen.append(tracker.usage())
            for one in held:
                tracker.release(*one)
        except BaseException as error:  # noqa: BLE001 - told to the test, which runs in another thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(refused) > 0, "the mark was never reached"
    for usage in seen:
        assert all(0 <= used <= 0.95 * allowed for used, allowed in usage.values())
        assert usage["total"][0] == sum(usage[name][0] for name in COMPONENTS)
    assert all(used == 0 for used, _ in tracker.usage().values())
