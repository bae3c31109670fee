"""The feed's manifest is the truth: the oracle, which knows nothing of it, finds the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.oracles.oracle import Oracle
from tests.support.oracles.stream import REQUESTS

from tidemill.model.errors import InputError
from tidemill.model.slices import Reject
from tidemill.model.time import HOUR
from tidemill.testing.feed import Manifest, RequestFeed

SMALL = RequestFeed(seed=11, events=3000, slices=7, replays=0.1, conflicts=0.05, bad=0.08, span=5 * HOUR)


def oracle_of(manifest: Manifest, folder: Path) -> Oracle:
    oracle = Oracle(REQUESTS)
    for truth, path in zip(manifest.slices, manifest.paths(folder), strict=True):
        oracle.land(truth.file, path.read_bytes().split(b"\n")[:-1], truth.arrival)
    return oracle


@pytest.mark.parametrize(
    "feed", [SMALL, replace(SMALL, shuffled=True), replace(SMALL, tenants=100, slices=150, disorder=0)]
)
def test_the_truth_of_a_feed_is_what_the_oracle_finds(feed: RequestFeed, tmp_path: Path) -> None:
    manifest = feed.late_slice(tmp_path, 200, feed.hours()[:2], after=feed.write(tmp_path))
    oracle = oracle_of(manifest, tmp_path)
    assert oracle.counts == {truth.file: truth.counts for truth in manifest.slices}
    assert oracle.total() == manifest.total
    assert oracle.clocks["default"].max_seen == manifest.max_seen

    tenants: dict[str, tuple[int, int]] = {}
    hours: dict[str, tuple[int, int]] = {}
    for key, cell in oracle.rollup("1h").items():
        for sums, name in ((tenants, key.tenant), (hours, str(key.bucket))):
            events, latency = sums.get(name, (0, 0))
            sums[name] = (events + cell.events, latency + cell.measures["latency_ms"].sum)
    assert (tenants, hours) == (manifest.tenants, manifest.hours)


def test_a_feed_has_everything_in_it(tmp_path: Path) -> None:
    manifest = SMALL.write(tmp_path)
    total = manifest.total
    assert total.records == 3000 == total.accepted + total.duplicate + total.conflict + total.rejected
    assert 230 < total.duplicate < 370
    assert 100 < total.conflict < 200
    absent = {Reject.TOO_LARGE, Reject.MISSING_FIELD, Reject.SEALED, Reject.TOO_OLD}
    assert set(total.rejects) == set(Reject) - absent
    assert set(manifest.tenants) == {"acme", "globex", "initech"}


def test_replays_come_verbatim_and_respelled_and_conflicts_with_another_time(tmp_path: Path) -> None:
    oracle = oracle_of(SMALL.write(tmp_path), tmp_path)
    accepted = {row.payload: row for row in oracle.raw}
    by_id = {row.event_id: row for row in oracle.raw}
    again = [(tmp_path / file).read_bytes().split(b"\n")[line - 1] for file, line in oracle.duplicates]
    verbatim = sum(line in accepted for line in again)
    assert 0 < verbatim < len(again)
    assert any(b'"status": 200.0' in line for line in again)

    rivals = [json.loads(entry.payload) for entry in oracle.quarantine if entry.hash]
    moved = [rival for rival in rivals if rival["ts"] * 1000 != by_id[rival["event_id"]].ts]
    assert 0 < len(moved) < len(rivals)
    where = [entry.slice for entry in oracle.quarantine if entry.hash]
    first = [by_id[rival["event_id"]].slice for rival in rivals]
    assert 0 < sum(a == b for a, b in zip(where, first, strict=True)) < len(rivals)


def test_a_seed_gives_the_same_bytes_and_another_seed_other_ids(tmp_path: Path) -> None:
    same = [replace(SMALL, shuffled=True).write(tmp_path / name) for name in ("a", "b")]
    assert same[0] == same[1]
    for a, b in zip(same[0].paths(tmp_path / "a"), same[1].paths(tmp_path / "b"), strict=True):
        assert a.read_bytes() == b.read_bytes()
    other = oracle_of(replace(SMALL, seed=12).write(tmp_path / "c"), tmp_path / "c")
    ids = {row.event_id for row in oracle_of(same[0], tmp_path / "a").raw}
    assert ids.isdisjoint(row.event_id for row in other.raw)


def test_in_order_nothing_is_late_and_out_of_order_much_is(tmp_path: Path) -> None:
    assert SMALL.write(tmp_path / "a").total.late == 0
    assert replace(SMALL, shuffled=True).write(tmp_path / "b").total.late > 500


def test_a_late_slice_touches_only_its_hours(tmp_path: Path) -> None:
    before = SMALL.write(tmp_path)
    old = [SMALL.hours()[0], SMALL.hours()[2]]
    after = SMALL.late_slice(tmp_path, 300, old, after=before)
    changed = {hour for hour, sums in after.hours.items() if before.hours[hour] != sums}
    assert changed == {str(hour) for hour in old}
    assert after.slices[-1].counts.accepted == after.slices[-1].counts.late == 300
    again = SMALL.late_slice(tmp_path, 300, old, after=after)
    assert again.total.accepted == after.total.accepted + 300
    assert again.slices[-1].file != after.slices[-1].file


def test_the_manifest_survives_being_json(tmp_path: Path) -> None:
    manifest = SMALL.write(tmp_path)
    assert Manifest.from_json((tmp_path / "manifest.json").read_text()) == manifest


def test_progress_hears_of_every_slice_in_landing_order(tmp_path: Path) -> None:
    heard: list[str] = []
    manifest = SMALL.write(tmp_path, progress=lambda truth: heard.append(truth.file))
    assert heard == [truth.file for truth in manifest.slices]


@pytest.mark.parametrize(
    "wrong", [{"slices": 0}, {"slices": 4000}, {"bad": -0.1}, {"replays": 1.0}, {"tenants": 0}]
)
def test_a_feed_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError) as error:
        replace(SMALL, **wrong)  # type: ignore[arg-type]
    assert error.value.hint
