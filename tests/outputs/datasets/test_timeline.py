"""Windows over time at any zoom, and what changed between revisions, held against loops over what came."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from tests.support.shop_story import HOUR, START, ShopStory, event, shop_at

from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.time import Interval, align
from tidemill.outputs.datasets import changes as comparing
from tidemill.outputs.datasets.changes import _compared, _stretches
from tidemill.outputs.datasets.timeline import gaps, stretch_for

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    found = shop_at(tmp_path_factory.mktemp("shop"))
    yield found
    found.mill.close()


def hours(shop):
    """The hours that have an event."""
    return sorted({align(one.time, HOUR) for one in shop.accepted()})


def test_every_window_is_listed_with_the_state_that_windows_say(shop):
    found = shop.mill.timeline("shop")
    assert [one.start for one, _ in found.windows] == hours(shop)
    expected = {view.window.key.start: view.status for view in shop.mill.windows.windows("shop")}
    assert {one.start: status for one, status in found.windows} == expected
    assert found.extent == Interval(hours(shop)[0], hours(shop)[-1] + HOUR)
    assert found.total == len(hours(shop))


def test_a_span_shows_the_windows_that_overlap_it(shop):
    found = shop.mill.timeline("shop", start=START + HOUR // 2, end=START + HOUR)
    assert [one.start for one, _ in found.windows] == [START]


def test_too_many_windows_are_counted_by_state(tmp_path):
    shop = ShopStory(tmp_path)
    for day in range(3):
        shop.land([event(n, day * 1440 + n * 60) for n in range(day * 24, day * 24 + 24)])
    one_by_one, counted = shop.mill.timeline("shop"), shop.mill.timeline("shop", limit=10)
    assert counted.windows is None
    assert counted.stretch > HOUR
    assert len(counted.stretches) <= 11
    expected = Counter((align(one.start, counted.stretch), status) for one, status in one_by_one.windows)
    assert expected == Counter(
        {(each.start, status): count for each in counted.stretches for status, count in each.counts.items()}
    )
    shop.mill.close()


def test_slices_are_those_that_cover_some_of_the_span(shop):
    """By the first and last event that was accepted from each; the newest first."""
    found = shop.mill.timeline("shop", start=START + HOUR, end=START + 2 * HOUR)
    expected = []
    for number in reversed(range(len(shop.ids))):
        times = [one.time for one in shop.accepted() if one.slice == number]
        if times and min(times) < START + 2 * HOUR and max(times) + 1 > START + HOUR:
            expected.append((shop.ids[number], min(times), max(times) + 1, len(times)))
    assert [(one.id, one.start, one.end, one.accepted) for one in found.slices] == expected
    assert found.slices_total == len(expected)


def test_gaps_are_what_no_interval_covers():
    covered = [(0, 10), (5, 8), (20, 30), (40, 60)]
    missing = [at for at in range(55) if not any(start <= at < end for start, end in covered)]
    found = list(gaps(covered, Interval(0, 55)))
    assert [at for gap in found for at in range(gap.start, gap.end)] == missing
    assert list(gaps([], Interval(3, 5))) == [Interval(3, 5)]
    assert list(gaps([(0, 100)], Interval(3, 5))) == []


def test_stretches_double_until_they_are_few():
    assert stretch_for(Interval(0, 10 * HOUR), HOUR, 10) == HOUR
    assert stretch_for(Interval(0, 11 * HOUR), HOUR, 10) == 2 * HOUR
    assert stretch_for(Interval(0, 100_000 * HOUR), HOUR, 1000) == 128 * HOUR


def test_a_limit_has_its_bounds(shop):
    with pytest.raises(InputError, match="a limit of 0 is not possible"):
        shop.mill.timeline("shop", limit=0)


# -- what changed between revisions


def rows_of(shop, slices):
    """Ids of the events of the first hour that a set of slices makes."""
    numbers = {shop.ids.index(name) for name in slices}
    return sorted(
        one.event["id"]
        for one in shop.accepted()
        if one.slice in numbers and START <= one.time < START + HOUR
    )


def test_changes_are_the_events_of_the_slices_that_came(shop):
    revisions = shop.mill.windows.window("shop", START).revisions
    assert len(revisions) >= 3
    for old, new in pairwise(revisions):
        found = shop.mill.window_changes("shop", START, old=old.revision, new=new.revision, limit=1000)
        before, after = rows_of(shop, old.slices), rows_of(shop, new.slices)
        assert sorted(row["event_id"] for _, row in found.rows) == sorted(set(after) - set(before))
        assert {change for change, _ in found.rows} <= {"added"}
        assert (found.added, found.removed, found.unchanged) == (len(after) - len(before), 0, len(before))
        assert found.slices_added == sorted(set(new.slices) - set(old.slices))


# -- what a dataset was at an arrival


def test_as_of_each_arrival_a_dataset_is_the_revision_of_the_slices_that_had_come(shop):
    revisions = shop.mill.windows.window("shop", START).revisions
    for number in range(len(shop.ids)):
        arrival = next(one.arrival for one in shop.sent if one.slice == number)
        came = [one for one in shop.accepted(by=arrival) if START <= one.time < START + HOUR]
        found = shop.mill.windows.as_of("shop", START, arrival)
        assert found.revision.dataset.rows == len(came)
        assert found.changed == (found.revision.dataset != revisions[-1])
        later = {one.slice for one in shop.accepted() if START <= one.time < START + HOUR} - {
            one.slice for one in came
        }
        assert set(found.slices_after) == {shop.ids[one] for one in later}
        assert found.reaches_back_to is None
    first = shop.mill.windows.as_of("shop", START, shop.sent[0].arrival - 1)
    assert (first.revision, first.changed) == (None, True)


def test_a_retraction_and_lost_revisions_are_said(tmp_path):
    shop = shop_at(tmp_path)
    before = shop.mill.windows.window("shop", START).revisions
    shop.mill.retract(shop.mill.plan_retraction(shop.ids[2], "wrong"))
    retracted = shop.clock()
    shop.clock.advance(HOUR)
    shop.mill.run_until_idle()
    after = shop.mill.windows.window("shop", START).revisions
    assert len(after) == len(before) + 1
    assert shop.mill.windows.as_of("shop", START, retracted - 1).revision.dataset == before[-1]
    assert shop.mill.windows.as_of("shop", START, retracted).revision.dataset == after[-1]
    (shop.mill.project.warehouse / after[0].file).unlink()
    found = shop.mill.windows.as_of("shop", START, shop.sent[0].arrival)
    assert found.revision is None
    second = next(one.arrival for one in shop.sent if one.slice == 1)
    assert found.reaches_back_to == second
    shop.mill.close()


def test_where_a_revision_is_gone_none_is_named_in_its_place(tmp_path):
    shop = shop_at(tmp_path)
    revisions = shop.mill.windows.window("shop", START).revisions
    assert len(revisions) >= 3
    (shop.mill.project.warehouse / revisions[1].file).unlink()
    for arrival in sorted({one.arrival for one in shop.sent}):
        came = {one.slice for one in shop.accepted(by=arrival) if START <= one.time < START + HOUR}
        slices = {shop.ids[number] for number in came}
        kept = [one for one in revisions if one.revision != 2 and set(one.slices) == slices]
        found = shop.mill.windows.as_of("shop", START, arrival).revision
        assert (found.dataset if found is not None else None) == (kept[-1] if kept else None)
    shop.mill.close()


def test_a_retraction_removes_rows(tmp_path):
    shop = shop_at(tmp_path)
    before = shop.mill.windows.window("shop", START).revisions[-1]
    shop.mill.retract(shop.mill.plan_retraction(shop.ids[2], "wrong"))
    shop.mill.run_until_idle()
    found = shop.mill.window_changes("shop", START, old=before.revision, limit=1000)
    gone = sorted(
        one.event["id"] for one in shop.accepted() if one.slice == 2 and START <= one.time < START + HOUR
    )
    gone.remove("e91")  # another slice repeats it
    assert sorted(row["event_id"] for change, row in found.rows if change == "removed") == gone
    assert found.removed == len(gone)
    shop.mill.close()


def test_pages_of_changes_add_up(shop):
    whole = shop.mill.window_changes("shop", START, old=0, limit=1000)
    pages = []
    while True:
        page = shop.mill.window_changes("shop", START, old=0, offset=len(pages), limit=7)
        assert (page.added, page.removed) == (whole.added, whole.removed)
        pages += page.rows
        if not page.more:
            break
    assert pages == whole.rows
    assert len(pages) == whole.added > 14


def test_a_tenant_sees_changes_of_its_own(shop):
    found = shop.mill.window_changes("shop", START, old=0, tenant="globex", limit=1000)
    expected = [one for one in shop.accepted(tenant="globex") if START <= one.time < START + HOUR]
    assert found.added == len(expected)


def test_a_revision_that_is_not_there_is_named(shop):
    with pytest.raises(NotFoundError, match="no revision 99"):
        shop.mill.window_changes("shop", START, new=99)


def test_rows_are_compared_as_often_as_they_are_there(monkeypatch):
    monkeypatch.setattr(comparing, "_AT_ONCE", 4)
    stamps = pa.timestamp("us", "UTC")

    def table(rows):
        return pa.table({"event_time": pa.array([at for at, _ in rows], stamps), "x": [x for _, x in rows]})

    old = [(1, "a"), (1, "a"), (1, "b"), (2, "c"), (2, None), (7, "g"), (8, "h"), (9, "i")]
    new = [(1, "a"), (1, "b"), (1, "b"), (2, "d"), (2, None), (3, "e"), (7, "g"), (9, "i"), (9, "i")]
    batches = [iter([table(rows[at : at + 3]) for at in range(0, len(rows), 3)]) for rows in (old, new)]
    found = Counter()
    for before, after in _stretches(*batches):
        for row in _compared(before, after).to_pylist():
            found[row["~change"], row["x"]] += 1
    gone, came = Counter(old) - Counter(new), Counter(new) - Counter(old)
    expected = Counter({("removed", x): n for (_, x), n in gone.items()})
    assert found == expected + Counter({("added", x): n for (_, x), n in came.items()})
