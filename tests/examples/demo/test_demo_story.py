"""A small demo on Spark: what it tells is the feed's truth, and what it leaves behind works."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from examples.demo import DemoResult
from tidemill.mill import Mill
from tidemill.model.levels import BASE, LEVELS, TileKey
from tidemill.model.time import DAY, HOUR, MILLISECOND, SECOND, align, format_instant
from tidemill.testing.feed import Manifest


@pytest.fixture
def truth(demo: DemoResult) -> Manifest:
    return Manifest.from_json((demo.folder / "feed" / "manifest.json").read_text())


def test_outcomes_of_every_slice_equal_the_truth(demo: DemoResult, truth: Manifest) -> None:
    assert [one.counts for one in demo.facts.judged] == [known.counts for known in truth.slices]
    assert [one.entry.watermark for one in demo.facts.judged] == [known.watermark for known in truth.slices]
    assert demo.facts.total == truth.total
    assert demo.facts.total.records == 6_200
    assert min(truth.total.duplicate, truth.total.conflict, truth.total.rejected, truth.total.late) > 0
    assert demo.ok


def test_slices_land_out_of_order(demo: DemoResult) -> None:
    starts = [one.entry.observed.start for one in demo.facts.judged if one.entry.observed]
    assert len(starts) == 25
    assert starts != sorted(starts)
    assert [one.entry.seq for one in demo.facts.judged] == list(range(1, 26))
    assert demo.facts.judged[0].entry.landings == 2  # sent once more, and still one slice


def test_the_late_slice_rebuilt_only_the_tiles_it_touches(demo: DemoResult) -> None:
    late = demo.folder / "feed" / demo.facts.late.truth.file
    times = [json.loads(line)["ts"] * MILLISECOND for line in late.read_text().splitlines()]
    touched = {TileKey(level.name, level.tile_of(at)) for level in LEVELS for at in times}
    assert {change.key for change in demo.facts.changes} == touched
    assert demo.facts.left_alone == len(demo.facts.after.tiles) - len(touched)
    assert len(touched) == 13
    assert demo.facts.left_alone == 110
    for change in demo.facts.changes:
        assert change.hash_before != change.hash_after
        assert change.revision == demo.facts.before.tiles[change.key].revision + 1
        assert change.reason.startswith(
            "late: 1 slice" if change.key.level == BASE.name else ("1 ", "2 ", "4 ")
        )


def test_rollups_change_in_the_late_hours_and_nowhere_else(demo: DemoResult, truth: Manifest) -> None:
    before, after = demo.facts.before.hours, demo.facts.after.hours
    late = set(demo.facts.late_span.windows(HOUR))
    assert {hour for hour in after if after[hour] != before[hour]} == late
    assert sum(after[hour].count - before[hour].count for hour in late) == 200
    assert {hour: (cell.count, int(cell.latency_ms * 1000)) for hour, cell in after.items()} == {
        int(hour): sums for hour, sums in truth.hours.items()
    }


def events_by_hour(path: Path) -> Counter[int]:
    """Of a file of the feed in which every line is well-formed."""
    times = [json.loads(line)["ts"] * MILLISECOND for line in path.read_text().splitlines()]
    return Counter(align(at, HOUR) for at in times)


def opened(demo: DemoResult, hour: int, revision: int) -> pa.Table:
    """A dataset as somebody without Tidemill opens it."""
    name = datetime.fromtimestamp(hour / SECOND, UTC).strftime("%Y%m%dT%H%M%SZ_1h")
    folder = demo.warehouse / "datasets" / "requests" / "aggregation" / name
    assert sorted(path.name for path in folder.glob("*.arrow"))[-1] == f"r{revision}.arrow"
    return pa.ipc.open_file(folder / f"r{revision}.arrow").read_all()


def test_every_hour_is_a_dataset_of_its_accepted_records(demo: DemoResult, truth: Manifest) -> None:
    late = events_by_hour(demo.folder / "feed" / demo.facts.late.truth.file)
    total = 0
    for hour, (count, latency) in truth.hours.items():
        table = opened(demo, int(hour), 2 if int(hour) in late else 1)
        times = table.column("event_time").cast(pa.int64()).to_pylist()
        assert {align(at, HOUR) for at in times} == {int(hour)}
        assert times == sorted(times)
        assert table.num_rows == count
        assert sum(table.column("latency_ms").to_pylist()) == Decimal(latency).scaleb(-3)
        total += table.num_rows
    assert total == demo.facts.datasets.after.rows == truth.total.accepted
    assert demo.facts.all_in_datasets


def test_the_late_slice_made_its_hours_come_out_again_and_no_others(demo: DemoResult) -> None:
    found, late = demo.facts.datasets, demo.facts.late
    events = events_by_hour(demo.folder / "feed" / late.truth.file)
    assert found.late_hours == set(events)
    assert [one.after.hour for one in found.again] == sorted(events)
    for one in found.again:
        assert one.before is not None
        assert (one.before.revision, one.after.revision) == (1, 2)
        assert one.added == {late.entry.id}
        assert one.after.rows - one.before.rows == events[one.after.hour]
        cutoff = one.after.hour + HOUR + DAY
        assert late.entry.slice.arrival > cutoff  # it was late for the window, not only for the watermark
    assert {e.revision for at, e in found.after.newest.items() if at not in events} == {1}


def test_no_dataset_file_changes(demo: DemoResult) -> None:
    found = demo.facts.datasets
    now = {
        str(path.relative_to(demo.warehouse)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (demo.warehouse / "datasets").rglob("*")
        if path.is_file()
    }
    assert now == found.after.files
    assert found.before.files.items() <= now.items()
    assert now.keys() - found.before.files.keys() == {one.after.file for one in found.again}
    assert found.untouched == len(found.before.files) == len(found.before.newest)


def test_every_slice_declares_the_hours_it_is_about(demo: DemoResult) -> None:
    *feed, late = demo.facts.judged
    declared = sorted(one.entry.slice.declared.start for one in feed if one.entry.slice.declared)
    assert declared == list(demo.facts.span.windows(HOUR))
    assert late.entry.slice.declared == demo.facts.late_span


def test_lateness_and_5s_buckets_count_every_accepted_event_once(demo: DemoResult, truth: Manifest) -> None:
    lateness = demo.facts.lateness
    assert sum(feed + late for feed, late in lateness.values()) == truth.total.accepted
    assert sum(feed + late for behind, (feed, late) in lateness.items() if behind >= 0) == truth.total.late
    assert sum(late for _, late in lateness.values()) == 200
    assert sum(demo.facts.every_5s.values()) == truth.total.accepted
    assert len(demo.facts.every_5s) == 17_280


def test_the_proof_covers_everything_and_holds(demo: DemoResult, truth: Manifest) -> None:
    proof = demo.facts.proof
    assert proof.findings == []
    assert (proof.slices, proof.raw_rows, proof.tiles) == (25, truth.total.accepted, 123)
    assert proof.datasets == len(truth.hours)


def test_the_warehouse_answers_afterwards(demo: DemoResult, truth: Manifest) -> None:
    with Mill.open(demo.folder) as mill:
        text = "SELECT count, sum(latency_ms) FROM requests GROUP BY tenant"
        rows = mill.query(text, all_tenants=True).to_pylist()
    assert {row["tenant"]: (row["count"], row["sum(latency_ms)"]) for row in rows} == {
        tenant: (count, Decimal(total).scaleb(-3)) for tenant, (count, total) in truth.tenants.items()
    }


def test_the_report_holds_the_numbers(demo: DemoResult) -> None:
    html = demo.report.read_text(encoding="utf-8")
    facts = demo.facts
    total = facts.total
    for value in (total.records, total.accepted, total.late, total.duplicate, total.conflict, total.rejected):
        assert f"<b>{value:,}</b>" in html
    assert "<b>13 of 123</b>" in html
    for one in facts.judged:
        assert one.name in html
    for change in facts.changes:
        assert format_instant(change.key.start) in html
        assert str(change.hash_after)[:12] in html
    for hour in facts.late_span.windows(HOUR):
        assert f"{facts.before.hours[hour].latency_ms:,}" in html
        assert f"{facts.after.hours[hour].latency_ms:,}" in html
    handed = facts.datasets
    assert f"<b>{len(handed.again)} of {len(handed.after.newest)}</b>" in html
    for edition in handed.after.newest.values():
        assert handed.after.files[edition.file][:12] in html
        assert f"{edition.rows:,}" in html
    assert f"All {len(handed.before.files)} files that stood before it have the same sha256 as then." in html
    assert "Everything equals its recomputation." in html


def test_the_story_is_told_in_plain_lines(demo: DemoResult, printed: str, truth: Manifest) -> None:
    assert "\x1b" not in printed
    hours, late_hours = len(truth.hours), len(demo.facts.datasets.late_hours)
    first = truth.total.accepted - truth.slices[-1].counts.accepted
    for words in (
        "all outcomes of all 24 slices equal the feed's truth",
        "13 of 123 tiles rebuilt, 110 left alone",
        "count and sum of all 24 hours equal the feed's truth, to the last digit",
        f"{hours} datasets, {first:,} rows: every accepted record, in the dataset of its hour",
        f"{late_hours} of {hours} datasets came out again: the hours of the late slice, because of it",
        f"all {hours} files that stood before are untouched, byte for byte",
        f"{truth.total.accepted:,} rows: every accepted record, in the dataset of its hour",
        f"25 slices, {demo.facts.total.accepted:,} raw rows, 123 tiles, {hours} datasets: all equal",
        "Everything is as it must be.",
        str(demo.report),
        str(demo.warehouse),
        *demo.commands,
    ):
        assert words in printed
    assert "differs" not in printed


def test_the_commands_to_try_next_work(demo: DemoResult) -> None:
    assert len(demo.commands) == 5
    for command in demo.commands:
        _, *arguments = shlex.split(command)
        tidemill = str(Path(sys.executable).parent / "tidemill")
        done = subprocess.run([tidemill, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
