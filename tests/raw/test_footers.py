"""What parts of raw say of themselves comes back as it was said; footers of former versions are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE
from tidemill.model.slices import Repeat
from tidemill.model.time import Interval
from tidemill.raw.footers import (
    EXPIRED,
    QUARANTINE_PART,
    RAW_PART,
    TOMBSTONE,
    BatchFooter,
    GonePart,
    LargeRows,
    PackedFooter,
    ProgressAt,
    SliceSummary,
    StandInFooter,
    from_footer,
)
from tidemill.raw.recovered_batches import steps_of
from tidemill.storage.state.protocol import ClockState, Progress

TEXTS = st.text(max_size=4)
COUNTS = st.integers(0, 2**53)
INSTANTS = st.integers(-(2**62), 2**62)
BY_NAME = st.dictionaries(TEXTS, COUNTS, max_size=2)
NAMES = st.lists(TEXTS, max_size=2).map(tuple)
REPEATS = st.builds(
    Repeat, TEXTS, st.just(Interval(3, 9)), st.lists(st.tuples(COUNTS, COUNTS), max_size=2).map(tuple)
)
READ = st.builds(
    SliceSummary, TEXTS, COUNTS, COUNTS, COUNTS, BY_NAME, st.none() | INSTANTS, st.none(), COUNTS,
    retried=COUNTS, repeats=st.lists(REPEATS, max_size=2).map(tuple),
)  # fmt: skip
FAILED = st.builds(
    SliceSummary, TEXTS, COUNTS, COUNTS, COUNTS, BY_NAME, st.none(), st.text(min_size=1, max_size=3), COUNTS,
    st.booleans(), st.none() | TEXTS,
)  # fmt: skip
PROGRESS = st.builds(
    ProgressAt, COUNTS, st.builds(Progress, st.none() | INSTANTS, COUNTS, COUNTS, COUNTS, COUNTS)
)
BATCHES = st.builds(
    BatchFooter, TEXTS, TEXTS, st.lists(READ | FAILED, max_size=2).map(tuple), NAMES,
    st.lists(st.builds(ClockState, TEXTS, INSTANTS, INSTANTS, INSTANTS), max_size=2).map(tuple),
    st.none() | PROGRESS, st.none() | st.builds(LargeRows, BY_NAME, INSTANTS, INSTANTS, INSTANTS),
    st.sampled_from([RAW_PART, QUARANTINE_PART]),
)  # fmt: skip
PACKS = st.builds(
    PackedFooter, TEXTS, NAMES, NAMES, st.dictionaries(TEXTS, NAMES, max_size=2),
    INSTANTS, COUNTS, INSTANTS, INSTANTS,
)  # fmt: skip
GONE = st.builds(
    GonePart, st.one_of(BATCHES, PACKS).map(lambda footer: on_disk(footer.to_footer())), BY_NAME, BY_NAME,
    st.dictionaries(TEXTS, st.tuples(INSTANTS, INSTANTS), max_size=2),
    st.dictionaries(TEXTS, st.lists(COUNTS, min_size=1, max_size=3), max_size=2), path=TEXTS,
)  # fmt: skip
MANY = st.lists(GONE, max_size=2).map(tuple)
FOOTERS = st.one_of(
    BATCHES,
    PACKS,
    st.builds(StandInFooter, TEXTS, st.just(TOMBSTONE), st.none() | PROGRESS, MANY),
    st.builds(StandInFooter, TEXTS, st.just(EXPIRED), PROGRESS, MANY, MANY, NAMES.map(sorted).map(tuple)),
)


def on_disk(footer: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(footer))
    return found


@given(footer=FOOTERS)
def test_a_footer_comes_back_from_disk_as_it_was(footer: Any) -> None:
    written = on_disk(footer.to_footer())
    assert from_footer(written) == footer
    assert on_disk(from_footer(written).to_footer()) == written


@given(numbers=st.sets(st.integers(-1000, 1000), min_size=1))
def test_tiles_of_a_part_that_is_gone_come_back(numbers: set[int]) -> None:
    steps = steps_of(np.array(sorted(numbers), np.int64))
    gone = GonePart({}, {}, {}, {}, {"a": steps})
    assert list(gone.tiles_of_slices()) == [("a", [number * BASE.tile for number in sorted(numbers)])]


def test_what_is_on_disk_is_what_former_versions_wrote() -> None:
    plain = SliceSummary("a", 4, 1, 0, {"bad_time": 1}, 7, None, 2)
    summary: dict[str, object] = {
        "id": "a", "records": 4, "duplicate": 1, "conflict": 0, "rejects": {"bad_time": 1}, "watermark": 7,
        "error": None, "judgement": 2,
    }  # fmt: skip
    assert plain.to_footer() == summary
    progress = ProgressAt(3, Progress(5, 1, 2, 40, 0))
    said: dict[str, object] = {
        "watermark": 5, "emitted": 1, "buffered_rows": 2, "buffered_bytes": 40, "released_early": 0,
        "version": 3,
    }  # fmt: skip
    footer = BatchFooter("s", "b", (plain,), ("b-0",), (ClockState("src", 9, 5, 8),), progress)
    clock = {"source": "src", "max_seen": 9, "watermark": 5, "arrival": 8}
    assert footer.to_footer() == {
        "kind": "raw", "stream": "s", "batch": "b", "slices": [summary], "runs": ["b-0"],
        "clocks": [clock], "progress": said,
    }  # fmt: skip
    nothing: dict[str, object] = {"stream": "s", "batch": "", "slices": [], "runs": [], "clocks": []}
    packed = PackedFooter.of("s", {"x": "b1", "y": "b2", "w": "b1"}, 11, packed=True)
    assert packed.to_footer() == {
        **nothing, "kind": "packed", "progress": None, "holds": ["w", "x", "y"], "rest": [],
        "batches": {"b1": ["w", "x"], "b2": ["y"]}, "created_at": 11, "rows": 0, "min_time": 0, "max_time": 0,
    }  # fmt: skip
    gone = GonePart({"kind": "raw"}, {"a": 2}, {"a": 0}, {"a": (1, 6)}, {"a": [0, 1, 1]}, path="p.parquet")
    reported: dict[str, object] = {
        "path": "p.parquet", "footer": {"kind": "raw"}, "accepted": {"a": 2}, "late": {"a": 0},
        "bounds": {"a": [1, 6]}, "steps": {"a": [0, 1, 1]},
    }  # fmt: skip
    word = {**nothing, "kind": "word", "progress": said, "packed": [reported]}
    assert StandInFooter("s", TOMBSTONE, progress, (gone,)).to_footer() == word
    expired = {**nothing, "kind": "expired", "progress": said, "keys": ["k"], "expired": [reported]}
    assert StandInFooter("s", EXPIRED, progress, (), (gone,), ("k",)).to_footer() == expired


def test_footers_without_newer_keys_are_read() -> None:
    summary = {
        "id": "a", "records": 4, "duplicate": 1, "conflict": 0, "rejects": {}, "watermark": None,
        "error": "x",
    }  # fmt: skip
    clock = {"source": "src", "max_seen": 9, "watermark": 5}
    old = {"kind": "raw", "stream": "s", "batch": "b", "slices": [summary], "runs": [], "clocks": [clock]}
    assert from_footer(old) == BatchFooter(
        "s", "b", (SliceSummary("a", 4, 1, 0, {}, None, "x"),), (), (ClockState("src", 9, 5, 0),)
    )
    reported = {"path": "p", "footer": old, "accepted": {"a": 2}, "late": {"a": 0}, "bounds": {"a": [1, 6]}}
    by_name = {**reported, "tiles": {"a": [0, BASE.tile]}}
    found = from_footer({"kind": "expired", "stream": "s", "batch": "", "keys": [], "expired": [by_name]})
    assert isinstance(found, StandInFooter)
    (gone,) = found.recorded()
    assert list(gone.tiles_of_slices()) == [("a", [0, BASE.tile])]
    assert gone.former_footer() == from_footer(old)
    assert gone.to_footer() == by_name
    assert found.progress is None


def test_a_packed_part_that_loses_batches_holds_the_others() -> None:
    left = PackedFooter.of("s", {"x": "b1", "y": "b2", "w": "b1"}, 11, packed=False).without({"b1"})
    assert (left.holds, left.rest, dict(left.batches)) == ((), ("y",), {"b2": ["y"]})


@pytest.mark.parametrize(
    "footer", [{"kind": "raw"}, {"kind": "packed", "holds": 1}, {"kind": "word", "packed": ["x"]}]
)
def test_what_is_no_footer_is_refused(footer: dict[str, object]) -> None:
    with pytest.raises(StorageError, match="the footer of a part has no valid"):
        from_footer(footer)
