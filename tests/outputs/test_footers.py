"""What the parts of outputs say of themselves comes back as it was said; older footers are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import StorageError
from tidemill.model.slices import set_hash
from tidemill.model.time import DAY, HOUR
from tidemill.model.windows import DeltaStats, WindowKey
from tidemill.outputs.datasets.dataset import DatasetFooter
from tidemill.outputs.index.table import IndexFooter
from tidemill.outputs.rollups.tile_parts import Tile, TilesFooter
from tidemill.outputs.vectors.table import ChainFooter, Made
from tidemill.outputs.windows.results import ResultsFooter

TEXTS = st.text(max_size=5)
COUNTS = st.integers(0, 2**62)
NAMES = st.frozensets(st.text("abc", min_size=1, max_size=2), max_size=3)
BASE_TILES = st.builds(
    lambda start, revision, declared, slices, rows: Tile(
        start, set_hash(slices), revision, declared, slices, rows
    ),
    COUNTS, COUNTS, TEXTS, NAMES, COUNTS,
)  # fmt: skip
HIGHER_TILES = st.builds(Tile, COUNTS, TEXTS, COUNTS, TEXTS, st.just(frozenset()), COUNTS)
FOOTERS = st.one_of(
    st.builds(
        DatasetFooter,
        st.builds(WindowKey, TEXTS, st.integers(0, 10**15), st.sampled_from([HOUR, DAY])),
        COUNTS,
        TEXTS,
        st.lists(TEXTS, max_size=2).map(tuple),
        st.booleans(),
        COUNTS,
        st.dictionaries(TEXTS, COUNTS, max_size=2),
        st.dictionaries(TEXTS, TEXTS, max_size=2),
        st.sampled_from([1, 2]),
        st.none() | st.builds(DeltaStats, COUNTS, COUNTS, st.none(), st.none()),
    ),
    st.builds(IndexFooter, TEXTS, TEXTS, st.lists(TEXTS, max_size=3).map(tuple), COUNTS, COUNTS),
    st.builds(
        ChainFooter, TEXTS, st.builds(Made, COUNTS, TEXTS), COUNTS, COUNTS, st.none() | COUNTS, COUNTS, TEXTS
    ),
    st.builds(ResultsFooter, TEXTS, TEXTS, TEXTS, st.tuples(COUNTS)),
    st.builds(ResultsFooter, TEXTS, TEXTS, TEXTS, st.lists(COUNTS).map(tuple), st.just(True)),
    st.builds(TilesFooter, TEXTS, st.just("5s"), st.lists(BASE_TILES, min_size=1, max_size=3)),
    st.builds(TilesFooter, TEXTS, st.just("1m"), st.lists(HIGHER_TILES, min_size=1, max_size=3)),
)


def on_disk(footer: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(footer))
    return found


@given(footer=FOOTERS)
def test_a_footer_comes_back_from_disk_as_it_was(footer: Any) -> None:
    written = on_disk(footer.to_footer())
    assert type(footer).from_footer(written) == footer
    assert on_disk(type(footer).from_footer(written).to_footer()) == written


def test_what_is_on_disk_is_what_former_versions_wrote() -> None:
    assert IndexFooter("s", "a.parquet", ("k",), 3).to_footer() == {
        "kind": "index", "format": 1, "stream": "s", "raw": "a.parquet", "paths": ["k"], "rows": 3,
    }  # fmt: skip
    assert ChainFooter("07", Made(4, "h"), 1, 2, None, 0, "d").to_footer() == {
        "kind": "chain", "format": 2, "bucket": "07", "through": 4, "hash": "h", "checkpoints": 1,
        "pending": 2, "checkpoints_until": None, "overflowed": 0, "declared": "d",
    }  # fmt: skip
    one = ResultsFooter("s", "w", "f", (7,))
    assert one.to_footer() == {
        "kind": "results", "stream": "s", "window": "w", "fingerprint": "f", "batch": 7,
    }  # fmt: skip
    assert ResultsFooter("s", "w", "f", (7,), merged=True).to_footer() == {
        "kind": "results", "stream": "s", "window": "w", "fingerprint": "f", "batches": [7],
    }  # fmt: skip
    tile = Tile(5, set_hash(["a"]), 2, "d", frozenset({"a"}), 9)
    assert TilesFooter("s", "5s", [tile]).to_footer() == {
        "kind": "tiles", "stream": "s", "level": "5s", "declared": ["d"], "slices": ["a"],
        "tiles": {"start": [5], "revision": [2], "rows": [9], "slices": [[0]]},
    }  # fmt: skip


def test_footers_without_newer_keys_are_read() -> None:
    reported = {
        "stream": "s",
        "start": 0,
        "span": HOUR,
        "revision": 1,
        "hash": "h",
        "slices": ["a"],
        "rows": 3,
    }
    dataset = DatasetFooter.from_footer({"kind": "dataset", "sealed": False, **reported})
    assert dataset == DatasetFooter(WindowKey("s", 0, HOUR), 1, "h", ("a",), False, 3, {}, {}, 1)
    chain = ChainFooter.from_footer({"kind": "chain", "bucket": "07", "through": 4, "hash": "h"})
    assert chain == ChainFooter("07", Made(4, "h"), 0, 0, None, 0, "", format=1)
    results = ResultsFooter.from_footer({"kind": "results", "batch": 7})
    assert results == ResultsFooter("", "", "", (7,))
    named = {"start": 5, "revision": 2, "hash": "h", "rows": 3, "slices": ["b", "a"]}
    tiles = TilesFooter.from_footer({"kind": "tiles", "level": "5s", "tiles": [named]})
    assert tiles == TilesFooter("", "5s", [Tile(5, "h", 2, "", frozenset({"a", "b"}), 3)])


@pytest.mark.parametrize(
    ("read", "footer"),
    [
        (IndexFooter.from_footer, {"kind": "index"}),
        (DatasetFooter.from_footer, {"kind": "dataset", "stream": "s", "rows": 0, "schema": {}}),
        (ChainFooter.from_footer, {"kind": "chain", "through": "4", "hash": "h"}),
        (ChainFooter.from_footer, {"kind": "chain", "through": True, "hash": "h"}),
        (ResultsFooter.from_footer, {"kind": "results"}),
        (TilesFooter.from_footer, {"kind": "tiles", "level": "5s"}),
        (TilesFooter.from_footer, {"kind": "tiles", "level": "5s", "tiles": ["x"]}),
    ],
)
def test_what_is_no_footer_is_refused(read: Any, footer: dict[str, object]) -> None:
    with pytest.raises(StorageError, match="the footer of a part has no valid"):
        read(footer)


@pytest.mark.parametrize(
    "tiles",
    [
        {"start": [0], "hash": ["a"], "rows": [1]},
        {"start": [0], "hash": ["a"], "revision": ["1"], "rows": [1]},
        {"start": [0, 1], "hash": ["a"], "revision": [1], "rows": [1]},
        {"start": [0], "slices": [[5]], "revision": [1], "rows": [1]},
    ],
)
def test_a_footer_of_tiles_that_was_changed_is_refused(tiles: dict[str, list[object]]) -> None:
    with pytest.raises(StorageError, match="no valid"):
        TilesFooter.from_footer({"stream": "s", "level": "5s", "declared": ["d"], "tiles": tiles})
