"""The timeline of 100,000 windows in a real Chromium: counted exactly, zoomed and panned."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.server.conftest import running, write
from tests.server.console.conftest import Watched
from tests.support.many_windows import enter_windows, settle

from tidemill.model.time import DAY, MINUTE, format_instant, parse_instant
from tidemill.model.windows import Phase
from tidemill.testing import FakeClock

pytestmark = [pytest.mark.browser, pytest.mark.process]
FIRST = parse_instant("2024-01-01T00:00:00Z")
WINDOWS = 100_000
FAILED = FIRST + 54_321 * MINUTE
PHASES = {
    **{FIRST + number * MINUTE: Phase.BUILT for number in range(600)},
    **{FIRST + number * MINUTE: Phase.QUEUED for number in range(50_000, 50_100)},
    FAILED: Phase.FAILED,
}
PROJECT = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  requests:
    schema: {id: {type: string, required: true}, ts: {type: string, required: true}}
    identity: id
    event_time: {column: ts, type: iso8601}
    tenant: {value: acme}
    aggregation_span: 1m
    subject_to_change_window: 100d
    max_slice_windows: 1000000
    metrics: {requests: {kind: counter}}
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    clock = FakeClock(FIRST + 70 * DAY)
    with running(write(tmp_path_factory.mktemp("many") / "project", text=PROJECT), clock=clock) as served:
        mill = served.mill
        line = f'{{"id": "one", "ts": "{format_instant(FIRST)}"}}'
        landed = mill.land("requests", line.encode(), name="one", source="test")
        mill.run_until_idle()
        starts = range(FIRST, FIRST + WINDOWS * MINUTE, MINUTE)
        enter_windows(mill.state, "requests", landed.entry.id, starts)
        settle(mill.state, "requests", PHASES, clock())
        yield served


def states(start, end):
    """By state how many windows start in a span, by a loop over what was entered."""
    entered = range(start, min(end, FIRST + WINDOWS * MINUTE), MINUTE)
    return Counter(PHASES.get(at, Phase.WAITING).value for at in entered)


def test_windows_are_counted_exactly_at_every_zoom(many):
    for minutes in (WINDOWS, 40_000, 5_000):
        found = many.mill.timeline("requests", start=FIRST, end=FIRST + minutes * MINUTE, limit=1000)
        assert found.windows is None
        assert len(found.stretches) <= 1001
        for each in found.stretches:
            end = min(each.start + found.stretch, FIRST + minutes * MINUTE)
            counted = {status.value: count for status, count in each.counts.items()}
            assert counted == states(max(each.start, FIRST), end)
        assert found.total == minutes


def test_a_hundred_thousand_windows_are_shown_zoomed_and_panned(many, context):
    console = Watched(context.new_page(), many.url)
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=buckets]")
    assert "100,000 windows" in page.locator("section[aria-label=Windows]").inner_text()
    drawn = page.evaluate("""(() => {
        const { buckets, states } = document.querySelector('tm-timeline').data;
        return Object.fromEntries(states.map(one => [one, buckets[one].reduce((sum, n) => sum + n, 0)]));
    })()""")
    assert {name: count for name, count in drawn.items() if count} == states(FIRST, FIRST + WINDOWS * MINUTE)
    found = page.evaluate("""(() => {
        const it = document.querySelector('tm-timeline');
        const asked = [];
        const ask = it.ask;
        it.ask = (from, to) => (asked.push(from), ask(from, to));
        for (let turn = 0; turn < 200; turn++) {
            it.zoomAt(it.view[0] + (it.view[1] - it.view[0]) * 0.5432, turn % 2 ? 0.8 : 1.2);
            it.pan((it.view[1] - it.view[0]) * (turn % 3 - 1) / 50);
            it.paint();
        }
        return asked.length;
    })()""")
    assert found == 0  # while it is moved nothing is asked, what is there is drawn
    page.evaluate("(at) => document.querySelector('tm-timeline').setView(at - 2e9, at + 2e9)", FAILED)
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    place = page.evaluate(
        """(at) => {
        const it = document.querySelector('tm-timeline'), box = it.canvas.getBoundingClientRect();
        const share = (at + 3e7 - it.view[0]) / (it.view[1] - it.view[0]);
        return [box.left + share * box.width, box.top + 60];
    }""",
        FAILED,
    )
    page.mouse.click(*place)
    page.locator("section[aria-label=Window] h2").wait_for()
    assert "failed" in page.locator("section[aria-label=Window]").inner_text()
    console.check()
