"""Runs of observations: what is found in them of some objects, and the log that says which of them count."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.outputs.rollups.test_rollups_states import (
    LOCAL,
    RULES,
    START,
    Seen,
    counts_of,
    metric_of,
    observations_of,
)

from tidemill.model.time import MINUTE
from tidemill.outputs.rollups.observation_runs import (
    MadeFor,
    MergeObservations,
    ObservationLog,
    ObservationSet,
    histories_of,
    merge_observations,
    object_spans,
    write_observations,
)
from tidemill.outputs.rollups.observations import read_seen, write_seen
from tidemill.outputs.rollups.spec import Metric
from tidemill.outputs.rollups.transitions import signed_cells, union_of
from tidemill.storage import layout
from tidemill.storage.checksums import is_whole, read_arrow
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite import open_state

ALL = (0, 1 << 64)
THESE = MadeFor({"orders": "these"}, earlier="all of these")


def trails_of(metric: Metric, folder: Path, *many: list[Seen]) -> list[str]:
    paths = [folder / f"{number}.trail" for number in range(len(many))]
    for path, seen in zip(paths, many, strict=True):
        write_observations(path, observations_of(metric, seen))
    return [str(path) for path in paths]


def ids(metric: Metric, trails: list[str], new: list[Seen]) -> list[str]:
    found = histories_of(metric, trails, object_spans(observations_of(metric, new)), ALL)
    out: list[str] = found.column("event_id").to_pylist()
    return out


def day_of(object: str, *minutes: int) -> list[Seen]:
    return [Seen(object, "abc"[m % 3], START + m * MINUTE, f"{object}{m:02d}", "eu") for m in minutes]


def test_neighbours_are_enough_when_all_rules_are_local(tmp_path: Path) -> None:
    metric = metric_of(LOCAL)
    trails = trails_of(metric, tmp_path, day_of("o", 1, 3, 5, 9), day_of("o", 2, 7) + day_of("p", 1))
    new = [Seen("o", "a", START + 4 * MINUTE, "n1"), Seen("o", "b", START + 6 * MINUTE, "n2")]
    assert ids(metric, trails, new) == ["o02", "o03", "o05", "o07", "o09"]
    assert ids(metric, trails, [Seen("o", "a", START + 5 * MINUTE, "n")]) == [
        "o02",
        "o03",
        "o05",
        "o07",
        "o09",
    ]
    assert ids(metric, trails, [Seen("o", "a", START, "n")]) == ["o01", "o02"]
    assert ids(metric, trails, [Seen("q", "a", START, "n")]) == []


def test_other_rules_look_at_whole_histories(tmp_path: Path) -> None:
    metric = metric_of(RULES)
    trails = trails_of(metric, tmp_path, day_of("o", 1, 3, 5, 9), day_of("o", 2, 7) + day_of("p", 1))
    assert ids(metric, trails, [Seen("o", "a", START, "n")]) == ["o01", "o02", "o03", "o05", "o07", "o09"]


@pytest.mark.parametrize("seed", range(5))
def test_a_contribution_from_neighbours_is_that_from_whole_histories(tmp_path: Path, seed: int) -> None:
    dice, metric = random.Random(seed), metric_of(LOCAL)
    seen = [
        Seen(
            dice.choice("opq"),
            dice.choice("abc"),
            START + dice.randrange(40) * MINUTE,
            f"{i:03d}",
            dice.choice(["eu", "us"]),
        )
        for i in range(120)
    ]
    old, new = seen[:100], observations_of(metric, seen[100:])
    trails = trails_of(metric, tmp_path, old[:30], old[30:80], old[80:])
    near = histories_of(metric, trails, object_spans(new), ALL)
    assert near.num_rows < len(old)
    assert counts_of(signed_cells(metric, *union_of(near, new))) == counts_of(
        signed_cells(metric, *union_of(observations_of(metric, old), new))
    )


def test_merged_trails_hold_what_those_before_held_by_range_and_place(tmp_path: Path) -> None:
    metric = metric_of(LOCAL)
    first = [each._replace(seq=1) for each in day_of("o", 1, 5) + day_of("p", 2)]
    second = [each._replace(seq=2) for each in day_of("o", 3) + day_of("q", 4)]
    trails = trails_of(metric, tmp_path, first, second)
    whole = observations_of(metric, [*first, *second])
    middle = int(whole.column("high").to_numpy()[2])
    found = []
    for number, (low, high) in enumerate([(0, middle), (middle, 1 << 64)]):
        (path,) = merge_observations(
            MergeObservations(metric, trails, low, high, str(tmp_path / f"m{number}.trail"))
        )
        found += read_arrow(path).to_pylist()
    assert found == whole.to_pylist()
    (path,) = merge_observations(
        MergeObservations(metric, trails, 0, 1 << 64, str(tmp_path / "c.trail"), before=2)
    )
    assert read_arrow(path).to_pylist() == observations_of(metric, first).to_pylist()


def test_what_was_seen_is_read_by_ranges_of_keys(tmp_path: Path) -> None:
    metric = metric_of(LOCAL)
    seen = [day_of("o", 5, 1), day_of("p", 3, 2), day_of("q", 9), day_of("r", 7), day_of("s", 1)]
    whole = observations_of(metric, [each for many in seen for each in many])
    files = []
    for number, many in enumerate(seen):
        table = observations_of(metric, many).rename_columns(
            {"seq": "slice"}  # as left by a tap: a name, not yet a place
        )
        table = table.set_column(
            table.schema.get_field_index("slice"),
            "slice",
            table.column("slice").cast("string").dictionary_encode(),
        )
        files.append(str(tmp_path / f"{number}.seen"))
        write_seen(Path(files[-1]), table)
    highs = sorted(set(whole.column("high").to_pylist()))
    cuts = [0, highs[1], highs[4], 1 << 64]
    found = [
        row
        for low, high in itertools.pairwise(cuts)
        for row in read_seen(metric, files, {"1": 1}, (low, high)).to_pylist()
    ]
    assert found == whole.to_pylist()
    assert read_seen(metric, files, {"1": 1}, (0, 1)).num_rows == 0


def test_a_damaged_trail_is_not_whole(tmp_path: Path) -> None:
    (path,) = map(Path, trails_of(metric_of(LOCAL), tmp_path, day_of("o", 1)))
    assert is_whole(path)
    path.write_bytes(path.read_bytes()[:100])
    assert not is_whole(path)
    assert not is_whole(tmp_path / "nothing.trail")


# -- the log


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with closing(open_state(tmp_path / "state.db")) as opened:
        yield opened


def set_of(name: str) -> ObservationSet:
    return ObservationSet(
        name,
        {f"b{name}": (1, 2)},
        {"orders": [f"{name}.trail"]},
        {0: frozenset({"x", "y"}), 900: frozenset({"y"})},
    )


def test_the_log_says_which_sets_stand(tmp_path: Path, state: State) -> None:
    folder = tmp_path / "trails" / "s"
    log = ObservationLog(folder, THESE, state)
    assert log.sets == {}
    for name in "abc":
        log.enter(set_of(name))
    log.enter(set_of("m"), ["a", "b"])
    log.enter(None, ["c"])
    again = ObservationLog(folder, THESE, state)
    assert again.sets == {"m": set_of("m")}
    assert ObservationLog(folder, MadeFor({"orders": "others"}), state).sets == {}


def test_a_log_of_an_earlier_version_is_kept(tmp_path: Path, state: State) -> None:
    folder = tmp_path / "trails" / "s"
    ObservationLog(folder, THESE, state).enter(set_of("a"))
    path = layout.state_history_log(folder)
    lines = path.read_bytes().replace(b'{"orders":"these"}', b'"all of these"')
    assert b'"all of these"' in lines
    plain = [{k: v for k, v in json.loads(line).items() if k != "chain"} for line in lines.splitlines()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in plain))
    state.forget_log(layout.relative_name(path))
    assert ObservationLog(folder, THESE, state).sets == {"a": set_of("a")}
    assert b'"made_for":{"orders":"these"}' in path.read_bytes()


def test_a_log_keeps_what_is_declared_as_before_until_the_rest_is_complete(
    tmp_path: Path, state: State
) -> None:
    folder = tmp_path / "trails" / "s"
    both = MadeFor({"orders": "these", "stock": "new"})
    ObservationLog(folder, THESE, state).enter(set_of("a"))
    for _ in range(2):  # the second time as after a crash
        log = ObservationLog(folder, both, state, keep=True)
        assert (log.sets["a"], log.lacking) == (set_of("a"), {"stock"})
        assert [name for each in log.sets.values() for name in each.names] == ["a.trail"]
        log.enter(ObservationSet("n", {"ba": (1, 2)}, {"stock": ["n.trail"]}))
    log.complete()
    last = ObservationLog(folder, both, state)
    assert last.lacking == frozenset()
    assert [name for each in last.sets.values() for name in each.names] == ["a.trail", "n.trail"]


def test_a_line_that_was_not_written_to_its_end_does_not_count(tmp_path: Path, state: State) -> None:
    folder = tmp_path / "trails" / "s"
    log = ObservationLog(folder, THESE, state)
    log.enter(set_of("a"))
    path = layout.state_history_log(folder)
    path.write_bytes(path.read_bytes() + b'{"gone":[],"se')
    torn = ObservationLog(folder, THESE, state)
    assert torn.sets.keys() == {"a"}
    torn.enter(set_of("c"))
    assert ObservationLog(folder, THESE, state).sets.keys() == {"a", "c"}


def test_the_log_stays_short(tmp_path: Path, state: State) -> None:
    folder = tmp_path / "trails" / "s"
    log = ObservationLog(folder, THESE, state)
    for number in range(700):
        log.enter(set_of(str(number)), [str(number - 1)])
    assert len(layout.state_history_log(folder).read_bytes().splitlines()) < 300
    assert ObservationLog(folder, THESE, state).sets == {"699": set_of("699")}


def test_trails_that_do_not_stand_are_swept_away(tmp_path: Path, state: State) -> None:
    folder = tmp_path / "trails" / "s"
    log = ObservationLog(folder, THESE, state)
    log.enter(set_of("a"))
    for name in ("a.trail", "b.trail", ".c.trail.tmp", "orders.roster"):
        (folder / name).write_bytes(b"")
    log.sweep()
    assert {path.name for path in folder.iterdir()} == {"a.trail", "orders.roster", "trails.log"}
