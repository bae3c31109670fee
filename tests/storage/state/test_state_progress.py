"""How far a stream has come in event time, in every store: clocks, progress, marks of streaming windows."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from tests.storage.state.conftest import NewStore, Open, accept, assign, batch_of, event_of, name_of, slice_of
from tests.support.patience import PATIENCE

from tidemill.model.errors import StorageError
from tidemill.model.time import HOUR, MAX_INSTANT, MIN_INSTANT
from tidemill.model.windows import OutboxEvent
from tidemill.storage.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, Retraction, State

SPAWN = multiprocessing.get_context("spawn")
ARRIVAL = 1_704_067_200_000_000


def moved(batch: str, progress: Progress, *clocks: ClockState, stream: str = "requests") -> BatchRecord:
    return BatchRecord(stream, batch, 1, 1, [], clocks, {}, progress=progress)


def taken_back(state: State, clocks: Sequence[ClockState], progress: Progress | None = None) -> None:
    """One more slice comes and is retracted."""
    n = state.retractions() + 1
    state.enter(slice_of(100 + n))
    act = Retraction(n, "requests", name_of(100 + n), "wrong", 99, {})
    if progress is None:
        assert state.apply_retraction(act, clocks, 1, 1)
    else:
        assert state.apply_retraction(act, clocks, 1, 1, progress)


# -- clocks


def test_a_clock_has_the_arrival_of_the_last_slice_of_its_source(state: State) -> None:
    state.apply_batch(
        moved("b1", NO_PROGRESS, ClockState("file", 10, 5, ARRIVAL), ClockState("api", 7, 2, ARRIVAL + 1))
    )
    state.apply_batch(moved("b2", NO_PROGRESS, ClockState("file", 10, 5, ARRIVAL + 9)))
    assert state.clocks("requests") == [
        ClockState("api", 7, 2, ARRIVAL + 1),
        ClockState("file", 10, 5, ARRIVAL + 9),
    ]
    assert state.clocks("other") == []


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (ClockState("file", 20, 15, 110), ClockState("file", 20, 15, 110)),
        (ClockState("file", 20, 15, 90), ClockState("file", 20, 15, 100)),
        (ClockState("file", 9, 4, 110), ClockState("file", 10, 5, 110)),
        (ClockState("file", 9, 15, 90), ClockState("file", 10, 15, 100)),
    ],
)
def test_nothing_of_a_clock_goes_back_by_a_batch(state: State, said: ClockState, kept: ClockState) -> None:
    state.apply_batch(moved("b1", NO_PROGRESS, ClockState("file", 10, 5, 100)))
    state.apply_batch(moved("b2", NO_PROGRESS, said))
    assert state.clocks("requests") == [kept]


def test_an_arrival_is_kept_to_the_microsecond_anywhere_in_time(state: State) -> None:
    instants = [MIN_INSTANT, MIN_INSTANT + 1, -1, 0, 1, MAX_INSTANT - 1, MAX_INSTANT]
    for n, arrival in enumerate(instants):
        record = moved(f"b{n}", Progress(watermark=arrival), ClockState("file", arrival, arrival, arrival))
        state.apply_batch(record)
        assert state.clocks("requests") == [ClockState("file", arrival, arrival, arrival)]
        assert state.progress("requests").watermark == arrival


# -- progress


def test_a_stream_has_no_progress_before_its_first_batch(state: State) -> None:
    state.enter(slice_of(1))
    assert state.progress("requests") == Progress(None, 0, 0, 0, 0)
    assert state.dump()["progress"] == []


def test_progress_becomes_what_the_batch_says(state: State) -> None:
    state.apply_batch(moved("b1", Progress(5, 1, 20, 2000, 0)))
    state.apply_batch(moved("b2", Progress(-7, 3, 1, 1, 1), stream="other"))
    assert state.progress("requests") == Progress(5, 1, 20, 2000, 0)
    state.apply_batch(moved("b2", Progress(8, 2, 30, 1 << 60, 4)))
    assert state.progress("requests") == Progress(8, 2, 30, 1 << 60, 4)
    assert state.progress("other") == Progress(-7, 3, 1, 1, 1)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (Progress(4, 9, 1, 2, 9), Progress(5, 9, 1, 2, 9)),
        (Progress(6, 2, 1, 2, 9), Progress(6, 3, 1, 2, 9)),
        (Progress(6, 9, 1, 2, 3), Progress(6, 9, 1, 2, 4)),
        (Progress(None, 0, 0, 0, 0), Progress(5, 3, 0, 0, 4)),
        (Progress(5, 3, 10, 9, 4), Progress(5, 3, 10, 9, 4)),
    ],
)
def test_watermark_and_counts_never_go_back_by_a_batch_what_is_buffered_does(
    state: State, said: Progress, kept: Progress
) -> None:
    state.apply_batch(moved("b1", Progress(5, 3, 10, 1000, 4)))
    state.apply_batch(moved("b2", said))
    assert state.progress("requests") == kept


def test_a_watermark_comes_after_batches_that_had_none(state: State) -> None:
    state.apply_batch(moved("b1", Progress(None, 0, 3, 300)))
    assert state.progress("requests") == Progress(None, 0, 3, 300)
    state.apply_batch(moved("b2", Progress(-5, 1)))
    assert state.progress("requests") == Progress(-5, 1)


def test_a_batch_that_was_applied_before_or_cannot_be_moves_nothing(state: State) -> None:
    state.apply_batch(moved("b1", Progress(5, 3), ClockState("file", 9, 5, 7)))
    assert not state.apply_batch(moved("b1", Progress(50, 30), ClockState("file", 90, 50, 70)))
    unknown = replace(batch_of("b2", [1]), progress=Progress(50, 30))
    with pytest.raises(StorageError, match=name_of(1)):
        state.apply_batch(unknown)
    assert (state.progress("requests"), state.clocks("requests")) == (
        Progress(5, 3),
        [ClockState("file", 9, 5, 7)],
    )


def test_a_retraction_sets_clocks_and_progress_even_back(state: State) -> None:
    state.apply_batch(
        moved("b1", Progress(500, 9, 8, 800, 7), ClockState("file", 600, 500, 90), ClockState("x", 1, 0, 99))
    )
    state.apply_batch(moved("b1", Progress(3, 2), stream="other"))
    taken_back(state, [ClockState("file", 10, 9, 30)], Progress(9, 1, 2, 200, 3))
    assert state.clocks("requests") == [ClockState("file", 10, 9, 30)]
    assert state.progress("requests") == Progress(9, 1, 2, 200, 3)
    assert state.progress("other") == Progress(3, 2)
    taken_back(state, [], Progress(None, 1))
    assert state.progress("requests") == Progress(None, 1)
    state.apply_batch(moved("b2", Progress(4, 2, 1, 1)))
    assert state.progress("requests") == Progress(4, 2, 1, 1)


def test_a_stream_that_nothing_is_left_of_is_as_it_was_in_the_beginning(state: State) -> None:
    state.apply_batch(moved("b1", Progress(500, 9, 8, 800, 7)))
    taken_back(state, [])
    assert state.progress("requests") == NO_PROGRESS
    assert state.dump()["progress"] == []


def test_clocks_and_progress_are_dumped_and_restored(state: State, new_store: NewStore) -> None:
    records = [
        moved("b1", Progress(5, 3, 10, 1000, 4), ClockState("file", 9, 5, 70), ClockState("api", 6, 5, 71)),
        moved("b2", Progress(8, 4, 2, 200, 4), ClockState("file", 12, 8, 75)),
        moved("b3", Progress(7, 5, 3, 300, 6), ClockState("file", 11, 7, 74)),
        moved("b1", Progress(None, 0, 1, 100), ClockState("file", MIN_INSTANT, MIN_INSTANT), stream="other"),
    ]
    for record in records:
        state.apply_batch(record)
    dumped = state.dump()
    assert dumped["clocks"] == [
        {
            "stream": "other",
            "source": "file",
            "max_seen": MIN_INSTANT,
            "watermark": MIN_INSTANT,
            "arrival": 0,
        },
        {"stream": "requests", "source": "api", "max_seen": 6, "watermark": 5, "arrival": 71},
        {"stream": "requests", "source": "file", "max_seen": 12, "watermark": 8, "arrival": 75},
    ]
    empty = {"emitted": 0, "buffered_rows": 1, "buffered_bytes": 100, "released_early": 0}
    moving = {"emitted": 5, "buffered_rows": 3, "buffered_bytes": 300, "released_early": 6}
    assert dumped["progress"] == [
        {"stream": "other", "watermark": None, **empty},
        {"stream": "requests", "watermark": 8, **moving},
    ]
    other = new_store()()
    other.restore([], records)
    assert other.dump() == dumped
    assert other.progress("requests") == Progress(8, 5, 3, 300, 6)
    other.close()


# -- marks


def test_a_mark_is_what_its_keeper_wrote_last(state: State, opener: Open) -> None:
    assert state.checkpoints("requests") == {}
    state.set_checkpoint("requests", "minutes", '{"raw": 3, "é": "\\u0000"}')
    state.set_checkpoint("requests", "sessions", "{}")
    state.set_checkpoint("other", "minutes", "")
    state.set_checkpoint("requests", "minutes", '{"raw": 4}')
    again = opener()
    assert again.checkpoints("requests") == {"minutes": '{"raw": 4}', "sessions": "{}"}
    assert again.checkpoints("other") == {"minutes": ""}
    again.close()


def test_a_mark_that_is_forgotten_is_gone(state: State) -> None:
    state.set_checkpoint("requests", "minutes", "a")
    state.set_checkpoint("other", "minutes", "b")
    state.set_checkpoint("requests", "minutes", None)
    state.set_checkpoint("requests", "never", None)
    assert (state.checkpoints("requests"), state.checkpoints("other")) == ({}, {"minutes": "b"})


def test_a_mark_and_its_events_go_in_together_each_event_once(state: State) -> None:
    state.set_checkpoint("requests", "minutes", "1", [event_of("a"), event_of("b")])
    state.set_checkpoint("requests", "minutes", "2", [event_of("b", time=99), event_of("c"), event_of("c")])
    state.set_checkpoint("requests", "minutes", None, [event_of("d", stream="other")])
    assert [(event.id, event.time) for event in state.outbox()] == [("a", 5), ("b", 5), ("c", 5), ("d", 5)]
    assert [event.id for event in state.outbox(stream="other")] == ["d"]
    assert state.checkpoints("requests") == {}


def test_a_mark_whose_events_cannot_be_entered_is_not_set(state: State) -> None:
    state.set_checkpoint("requests", "minutes", "1", [event_of("a")])
    unreadable = replace(event_of("c"), data={"what": object()})
    with pytest.raises(TypeError):
        state.set_checkpoint("requests", "minutes", "2", [event_of("b"), unreadable])
    with pytest.raises(TypeError):
        state.set_checkpoint("requests", "minutes", None, [unreadable])
    assert state.checkpoints("requests") == {"minutes": "1"}
    assert [event.id for event in state.outbox()] == ["a"]


class _Dying(Sequence[OutboxEvent]):
    """Events of a process that dies while it hands them over."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[OutboxEvent]:
        yield event_of("b")
        os._exit(86)

    def __getitem__(self, index: int) -> OutboxEvent:  # type: ignore[override]
        return list(self)[index]


def _die_marking(opener: Open) -> None:
    opener().set_checkpoint("requests", "minutes", "2", _Dying())


def test_a_process_that_dies_while_it_sets_a_mark_leaves_nothing_of_it(opener: Open, state: State) -> None:
    state.set_checkpoint("requests", "minutes", "1", [event_of("a")])
    process = SPAWN.Process(target=_die_marking, args=(opener,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 86
    assert state.checkpoints("requests") == {"minutes": "1"}
    assert [event.id for event in state.outbox()] == ["a"]


def test_marks_are_no_part_of_what_recover_reproduces(state: State) -> None:
    before = state.dump()
    state.set_checkpoint("requests", "minutes", "1")
    assert state.dump() == before


def test_marks_outlive_batches_retractions_and_another_layout(state: State) -> None:
    state.set_checkpoint("requests", "minutes", "1")
    accept(state, 1)
    assign(state, {1: [0]})
    state.declare_layout("requests", 2 * HOUR)
    taken_back(state, [])
    assert state.checkpoints("requests") == {"minutes": "1"}


def test_marks_of_an_empty_state_are_there_after_it_was_restored(state: State) -> None:
    state.set_checkpoint("requests", "minutes", "1")
    state.restore([], [moved("b1", Progress(5, 3))])
    assert state.checkpoints("requests") == {"minutes": "1"}
    assert state.progress("requests") == Progress(5, 3)
