"""What every implementation of `State` must do, whatever it stores its rows in."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from tests.storage.state.conftest import (
    TILE,
    NewStore,
    Open,
    batch_of,
    build_of,
    name_of,
    result_of,
    slice_of,
)
from tests.support.patience import PATIENCE

from tidemill.model.errors import InputError, StorageError
from tidemill.model.levels import TileKey
from tidemill.model.slices import NewSlice, SliceEntry, SliceStatus, set_hash
from tidemill.model.time import Interval
from tidemill.storage.state.protocol import ClockState, SliceResult, State, TileBuild

SPAWN = multiprocessing.get_context("spawn")


def test_an_entered_slice_comes_back_as_it_was(state: State) -> None:
    first, second = state.enter(slice_of(1)), state.enter(slice_of(2))
    assert first == SliceEntry(seq=1, slice=slice_of(1))
    assert second.seq == 2
    assert state.slice(name_of(1)) == first
    assert state.slices() == [first, second]
    assert state.landings() == 2


def test_the_same_slice_again_is_recorded_and_changes_nothing_else(state: State) -> None:
    first = state.enter(slice_of(1))
    again = state.enter(replace(slice_of(1), arrival=9, path="elsewhere", name="other"))
    assert again == replace(first, landings=2)
    assert state.slices() == [again]
    assert state.totals("requests")["pending_slices"] == 1
    assert state.totals("requests")["landings"] == state.landings() == 2


def test_many_slices_enter_in_order_or_not_at_all(state: State) -> None:
    entries = state.enter_all([slice_of(3), slice_of(1), slice_of(3)])
    assert [(entry.seq, entry.landings) for entry in entries] == [(1, 1), (2, 1), (1, 2)]
    with pytest.raises(ZeroDivisionError):
        state.enter_all(_Dying([slice_of(7), slice_of(8)], lambda: 1 // 0))
    assert [entry.id for entry in state.slices()] == [name_of(3), name_of(1)]


def test_a_slice_is_found_by_a_prefix_that_only_it_has(state: State) -> None:
    for number in range(40):
        state.enter(slice_of(number))
    entry = state.slice(name_of(7)[:12].upper())
    assert entry is not None
    assert entry.id == name_of(7)
    assert state.slice("00000000") is None
    with pytest.raises(InputError, match="several slice ids start with") as caught:
        state.slice(next(c for c in "0123456789abcdef" if sum(name_of(n)[0] == c for n in range(40)) > 1))
    assert "give more" in caught.value.hint
    with pytest.raises(InputError):
        state.slice("")


def test_slices_are_listed_by_stream_status_and_age(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2, "other"), slice_of(3), slice_of(4)])
    state.apply_batch(batch_of("b1", [1]))
    listed = [entry.seq for entry in state.slices("requests", SliceStatus.PENDING)]
    assert listed == [3, 4]
    assert [entry.seq for entry in state.slices(newest=True, limit=2)] == [4, 3]
    assert [entry.seq for entry in state.slices(newest=True, limit=2, before=4)] == [3, 2]
    assert [entry.seq for entry in state.slices(before=3)] == [1, 2]
    assert state.slices(newest=True, before=1) == []
    assert [entry.seq for entry in state.slices("requests", SliceStatus.ACCEPTED)] == [1]
    assert state.slices("nobody") == []


def test_the_last_arrival_is_the_latest_of_the_newest_slices(state: State) -> None:
    assert state.last_arrival(2) is None
    state.enter_all([slice_of(9), slice_of(7, "other"), slice_of(3)])
    assert state.last_arrival(1) == slice_of(3).arrival
    assert state.last_arrival(2) == slice_of(7).arrival
    assert state.last_arrival(100) == slice_of(9).arrival


def test_pending_takes_the_oldest_that_fit_and_at_least_one(state: State) -> None:
    state.enter_all([slice_of(1, size=500), slice_of(2, size=10), slice_of(3, size=10), slice_of(4, "other")])
    assert [entry.seq for entry in state.pending("requests", 1)] == [1]
    assert [entry.seq for entry in state.pending("requests", 510)] == [1, 2]
    assert [entry.seq for entry in state.pending("requests", 10_000)] == [1, 2, 3]
    state.apply_batch(batch_of("b1", [1]))
    assert [entry.seq for entry in state.pending("requests", 15)] == [2]


def test_a_batch_decides_its_slices_and_the_totals_follow(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2), slice_of(3)])
    failed = replace(batch_of("b1", [1, 2]), results=[result_of(1), result_of(2, 0, "not readable")])
    assert state.apply_batch(failed)
    first, second, third = state.slices()
    assert (first.status, first.counts, first.batch) == (SliceStatus.ACCEPTED, result_of(1).counts, "b1")
    assert (first.observed, first.watermark) == (Interval(5, 50), 7)
    assert (second.status, second.error) == (SliceStatus.FAILED, "not readable")
    assert third.status is SliceStatus.PENDING
    assert dict(state.totals("requests")) == {
        "pending_slices": 1, "accepted_slices": 1, "failed_slices": 1, "retracted_slices": 0, "landings": 3,
        "retried": 0, "bytes": 300, "records": 12, "accepted": 8, "duplicate": 2, "conflict": 0,
        "rejected": 2, "late": 6, "reject_skew": 2,
    }  # fmt: skip
    assert state.has_batch("requests", "b1")
    assert not state.has_batch("requests", "b2")
    assert state.clocks("requests") == [ClockState("file", 1000, 900)]
    assert state.table_versions("requests") == {"raw": 1, "quarantine": 11}
    assert set(state.totals("nobody").values()) == {0}


def test_a_failed_slice_decided_again_is_counted_once(state: State) -> None:
    state.enter(slice_of(1))
    state.apply_batch(replace(batch_of("b1", []), results=[result_of(1, 0, "damaged")]))
    state.apply_batch(batch_of("b2", [1], version=2))
    totals = state.totals("requests")
    assert (totals["failed_slices"], totals["accepted_slices"], totals["records"]) == (0, 1, 10)
    (entry,) = state.slices()
    assert (entry.status, entry.error, entry.batch) == (SliceStatus.ACCEPTED, None, "b2")


def test_a_batch_is_applied_once(state: State) -> None:
    state.enter(slice_of(1))
    assert state.apply_batch(batch_of("b1", [1], {0: [1]}))
    before = state.dump()
    assert not state.apply_batch(batch_of("b1", [1], {0: [1]}))
    assert state.dump() == before
    assert state.has_batch("requests", "b1")
    assert not state.has_batch("requests", "b2")
    assert not state.has_batch("other", "b1")


def test_clocks_and_versions_never_go_back(state: State) -> None:
    state.apply_batch(batch_of("b2", [], version=2))
    state.apply_batch(batch_of("b1", [], version=1))
    assert state.clocks("requests") == [ClockState("file", 2000, 1800)]
    assert state.table_versions("requests") == {"raw": 2, "quarantine": 12}
    state.record_seen("requests", {"raw": 1, "quarantine": 14})
    state.record_seen("nobody", {"raw": 3})
    assert state.table_versions("requests") == {"raw": 2, "quarantine": 14}
    assert state.table_versions("nobody") == {"raw": 3}
    assert [row["version"] for row in state.dump()["versions"]] == [3, 14, 2]


def test_a_batch_of_an_unknown_slice_changes_nothing(state: State) -> None:
    state.enter(slice_of(1))
    before = state.dump()
    for record in (batch_of("b1", [1, 2]), batch_of("b1", [1], {0: [2]})):
        with pytest.raises(StorageError, match=name_of(2)):
            state.apply_batch(record)
    assert state.dump() == before


def test_a_tile_is_stale_until_it_is_built_from_what_is_desired(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1], {TILE: [1], 0: [1]}))
    stale = state.stale_tiles("requests")
    assert [tile.state.key.start for tile in stale] == [0, TILE]
    assert stale[0].desired == {name_of(1)}
    assert (stale[0].observed, stale[0].state.hash, stale[0].state.revision) == (frozenset(), None, 0)
    assert state.tiles("requests", "5s") == []

    state.apply_tiles("requests", 4, [build_of(0, [1]), build_of(TILE, [1])])
    assert state.stale_tiles("requests") == []
    assert [tile.key.start for tile in state.tiles("requests", "5s")] == [0, TILE]
    assert state.table_versions("requests")["rollups"] == 4

    state.apply_batch(batch_of("b2", [2], {TILE: [2]}))
    (late,) = state.stale_tiles("requests")
    assert (late.desired, late.observed) == ({name_of(1), name_of(2)}, {name_of(1)})
    assert late.state.hash == set_hash([name_of(1)])
    state.apply_tiles("requests", 5, [build_of(TILE, [1, 2], revision=2)])
    assert state.stale_tiles("requests") == []
    (rebuilt,) = state.base_tiles("requests", [TILE])
    assert (rebuilt.observed, rebuilt.state.revision) == ({name_of(1), name_of(2)}, 2)
    assert state.base_tiles("requests", [2 * TILE]) == []


def test_a_build_from_an_older_set_leaves_the_tile_stale(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1, 2], {0: [1, 2]}))
    state.apply_tiles("requests", 1, [build_of(0, [1])])
    (tile,) = state.stale_tiles("requests")
    assert (tile.observed, tile.state.hash) == ({name_of(1)}, set_hash([name_of(1)]))
    state.apply_tiles("requests", 2, [build_of(0, [2], revision=2)])
    (tile,) = state.stale_tiles("requests")
    assert tile.observed == {name_of(2)}


def test_slices_that_touch_a_tile_from_outside_are_desired_in_it(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2)])
    state.apply_batch(batch_of("b1", [1], {0: [1]}))
    state.apply_tiles("requests", 1, [build_of(0, [1])])
    state.apply_batch(batch_of("b2", [2], {TILE: [2]}, version=2))
    touched = {0: frozenset([name_of(2)]), TILE: frozenset([name_of(2)]), 2 * TILE: frozenset([name_of(1)])}
    state.touch_tiles("requests", touched)
    stale = state.stale_tiles("requests")
    assert [(tile.state.key.start, tile.desired) for tile in stale] == [
        (0, {name_of(1), name_of(2)}),
        (TILE, {name_of(2)}),
        (2 * TILE, {name_of(1)}),
    ]
    before = state.dump()
    state.touch_tiles("requests", touched)
    assert state.dump() == before
    state.apply_tiles("requests", 2, [build_of(0, [1, 2], revision=2)])
    state.touch_tiles("requests", {0: frozenset([name_of(1), name_of(2)])})
    assert [tile.state.key.start for tile in state.stale_tiles("requests")] == [TILE, 2 * TILE]


def test_a_tile_is_touched_by_slices_of_the_ledger_or_not_at_all(state: State) -> None:
    state.enter_all([slice_of(1), slice_of(2, "other")])
    state.apply_batch(batch_of("b1", [1], {0: [1]}))
    before = state.dump()
    for stranger in (2, 3):
        with pytest.raises(StorageError, match="is not in the ledger of stream requests"):
            state.touch_tiles("requests", {0: frozenset([name_of(1)]), TILE: frozenset([name_of(stranger)])})
    state.touch_tiles("requests", {})
    assert state.dump() == before


def test_tiles_of_higher_levels_are_kept_by_level_and_span(state: State) -> None:
    builds = [TileBuild(TileKey("1m", start), f"h{start}", 1, None, 0) for start in (0, 7200, 14400)]
    state.apply_tiles("requests", 1, builds)
    assert [tile.key.start for tile in state.tiles("requests", "1m", Interval(0, 14400))] == [0, 7200]
    assert [tile.hash for tile in state.tiles("requests", "1m")] == ["h0", "h7200", "h14400"]
    assert state.tiles("requests", "1h") == []
    assert state.stale_tiles("requests") == []


def test_merged_runs_take_the_place_of_the_old_ones(state: State) -> None:
    for number in range(4):
        state.apply_batch(batch_of(f"b{number}", [], version=number))
    assert state.runs("requests") == ["run-b0", "run-b1", "run-b2", "run-b3"]
    assert state.replace_runs("requests", ["run-b0", "run-b1", "run-b2"], ["merged"])
    assert state.runs("requests") == ["merged", "run-b3"]
    assert not state.replace_runs("requests", ["run-b0"], ["again"])
    state.apply_batch(batch_of("b4", [], version=4))
    assert state.runs("requests") == ["merged", "run-b3", "run-b4"]
    assert state.replace_runs("requests", ["run-b3"], [])
    assert state.runs("requests") == ["merged", "run-b4"]


def test_everything_is_there_after_it_is_opened_again(opener: Open, state: State) -> None:
    state.enter(slice_of(1))
    state.apply_batch(batch_of("b1", [1], {0: [1]}))
    state.close()
    again = opener()
    assert [tile.desired for tile in again.stale_tiles("requests")] == [{name_of(1)}]
    assert again.totals("requests")["accepted"] == 8
    again.close()
    with pytest.raises(StorageError, match="closed"):
        state.landings()


def test_a_restored_state_dumps_the_same(state: State, new_store: NewStore) -> None:
    state.enter_all([slice_of(1), slice_of(2), slice_of(2), slice_of(3, "other")])
    entered = state.slices()
    records = [batch_of("b1", [1], {0: [1]}), batch_of("b2", [2], {0: [2], TILE: [2]}, version=2)]
    for record in records:
        state.apply_batch(record)
    state.apply_tiles("requests", 3, [build_of(0, [1, 2])])

    other = new_store()()
    other.restore(entered, records)
    other.apply_tiles("requests", 3, [build_of(0, [1, 2])])
    assert other.dump() == state.dump()
    assert other.enter(slice_of(9)).seq == 4
    with pytest.raises(StorageError, match="empty"):
        other.restore(entered, records)
    other.close()


class _Dying(Sequence[NewSlice]):
    """A sequence that does something drastic once its items have been handed out."""

    def __init__(self, items: Sequence[NewSlice], act: Callable[[], object]) -> None:
        self._items, self._act = items, act

    def __len__(self) -> int:
        return len(self._items) + 1

    def __getitem__(self, index: int) -> NewSlice:  # type: ignore[override]
        if index >= len(self._items):
            self._act()
        return self._items[index]


def _die_in_tiles(opener: Open) -> None:
    def builds() -> Iterator[TileBuild]:
        yield build_of(0, [1])
        yield build_of(TILE, [1])
        os._exit(86)

    opener().apply_tiles("requests", 1, builds())


def _die_in_batch(opener: Open) -> None:
    def results() -> Iterator[SliceResult]:
        yield result_of(1)
        os._exit(86)

    class Results(Sequence[SliceResult]):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[SliceResult]:
            return results()

        def __getitem__(self, index: int) -> SliceResult:  # type: ignore[override]
            return list(results())[index]

    opener().apply_batch(replace(batch_of("b2", [1], {TILE: [1]}, version=2), results=Results()))


def _die_entering(opener: Open) -> None:
    opener().enter_all(_Dying([slice_of(5), slice_of(6)], lambda: os._exit(86)))


@pytest.mark.parametrize("death", [_die_in_tiles, _die_in_batch, _die_entering])
def test_a_process_that_dies_in_the_middle_leaves_nothing_of_it(
    opener: Open, state: State, death: Callable[[Open], None]
) -> None:
    state.enter(slice_of(1))
    state.apply_batch(batch_of("b1", [1], {0: [1]}))
    before = state.dump()
    process = SPAWN.Process(target=death, args=(opener,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 86
    assert state.dump() == before
    assert state.enter(slice_of(2)).seq == 2


def _enter_range(opener: Open, numbers: range) -> None:
    opened = opener()
    for number in numbers:
        opened.enter(slice_of(number))
    opened.close()


def test_two_processes_entering_the_same_slices_make_one_entry_each(opener: Open) -> None:
    workers = [SPAWN.Process(target=_enter_range, args=(opener, range(25))) for _ in range(2)]
    for worker in workers:  # the store does not exist yet: both also try to create it
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]
    opened = opener()
    entries = opened.slices()
    assert [entry.seq for entry in entries] == list(range(1, 26))
    assert {entry.id for entry in entries} == {name_of(number) for number in range(25)}
    assert {entry.landings for entry in entries} == {2}
    opened.close()


def test_threads_share_one_opened_state(state: State) -> None:
    looks: list[tuple[int, int]] = []

    def enter() -> None:
        for number in range(20):
            state.enter(slice_of(number))

    def look() -> None:
        for _ in range(20):
            slices = len(state.slices())
            looks.append((slices, state.totals("requests")["bytes"]))

    threads = [threading.Thread(target=target) for target in (enter, enter, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looks) == 20
    assert all(total >= 100 * slices for slices, total in looks)
    assert len(state.slices()) == 20
    assert state.totals("requests")["bytes"] == 2000
    assert state.landings() == 40
