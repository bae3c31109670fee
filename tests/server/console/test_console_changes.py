"""What changes while one looks: a late slice on its way to revision 2, corrected records, a rebuild."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.server.conftest import Served
from tests.server.console.conftest import Watched, telling
from tests.server.console.painting import LANE, SLICES, colours, painted
from tests.support import console_story as story
from tests.support.console_story import hour_of

from tidemill.model.time import HOUR, format_instant, parse_instant

pytestmark = [pytest.mark.browser, pytest.mark.process]
NINE = parse_instant("2026-01-05T09:30:00Z")
TEN = parse_instant("2026-01-05T10:00:00Z")
# By slice what its bar is stacked of, the newest last.
STACKED = """(() => {
    const it = document.querySelector('article[aria-label=requests] tm-chart'), [data] = it.drawn;
    return data.x.map((_, place) => Object.fromEntries(it.given.series.map(
        (one, i) => [one.name, data[`to${i}`][place] - data[`from${i}`][place]])));
})()"""


@pytest.fixture(scope="module")
def changing(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on the story, which tests add to."""
    with telling(written, tmp_path_factory.mktemp("changing")) as served:
        yield served


@pytest.fixture
def console(context, changing) -> Iterator[Watched]:
    watched = Watched(context.new_page(), changing.url)
    yield watched
    watched.check()


def test_a_late_slice_is_followed_from_its_arrival_to_revision_2(console, changing):
    page = console.go(f"stream/requests?at={story.LATE}")
    detail, revisions = (
        page.locator("section[aria-label=Window]"),
        page.locator("section[aria-label=Revisions]"),
    )
    detail.get_by_text("revision 1").wait_for()
    late = hour_of(9, start=100, count=5)
    story.land_hour(changing.mill, 9, late, name="late-09.ndjson")
    page = console.go("ledger/requests")  # it has arrived, and nothing was decided yet
    row = page.locator("tbody tr").first
    row.locator(".dot-pending").wait_for()
    assert "late-09.ndjson" in row.inner_text()
    changing.tick()
    page = console.go("ledger/requests?outcome=late")
    row = page.locator("tbody tr", has_text="late-09.ndjson")
    row.wait_for()
    cells = row.locator("td").all_inner_texts()
    assert (cells[5], cells[-1]) == (str(len(late)), str(len(late)))  # accepted, and all of them late
    page = console.go("overview")
    page.locator("article[aria-label=requests] tm-chart[data-drawn]").first.wait_for()
    *_, stacked = page.evaluate(STACKED)  # the newest slice
    assert stacked == {
        "accepted in time": 0,
        "accepted late": len(late),
        "duplicate": 0,
        "conflict": 0,
        "rejected": 0,
    }
    page = console.go(f"stream/requests?at={story.LATE}")
    detail.get_by_text("revision 2").wait_for()
    bars = painted(page, [(NINE, SLICES + lane * LANE) for lane in range(3)])
    assert all(one in bars for one in colours(page, "accepted", "late"))
    assert str(len(hour_of(9)) + len(late)) in detail.inner_text()
    revisions.get_by_role("button", name="What changed since r1").click()
    revisions.get_by_text(f"{len(late)} added").wait_for()
    assert f"0 removed, {len(hour_of(9))} unchanged" in revisions.inner_text()
    added = revisions.locator("table").nth(1).locator("tbody tr")
    assert added.count() == len(late)
    assert all(one.event_id in "".join(added.all_inner_texts()) for one in late)
    travel = revisions.get_by_role("group", name="Time travel")
    travel.get_by_text("All revisions are kept.").wait_for()
    travel.get_by_role("slider").press("ArrowLeft")
    travel.get_by_text(f"{len(hour_of(9))} rows. 1 slice has come since.").wait_for()
    assert "As of 2026-01-05" in travel.inner_text()


def test_what_arrives_and_what_goes_wrong_is_on_the_overview_without_a_reload(console, changing):
    console.page.clock.install()  # the page's own timers stand still: whatever changes on it was sent to it
    page = console.go("overview")
    card = page.locator("article[aria-label=orders]")
    card.get_by_text("24 accepted").wait_for()
    orders = '{"id": "new", "at": "2026-01-05T13:00:00Z", "order": "o1", "status": "SENT"}'
    changing.mill.land("orders", orders.encode(), name="more.ndjson")
    changing.tick()
    card.get_by_text("25 accepted").wait_for()
    lost = changing.mill.land("orders", orders.replace("new", "lost").encode(), name="lost.ndjson")
    (changing.mill.project.warehouse / lost.entry.slice.path).unlink()
    changing.tick()
    card.get_by_text("needs attention").wait_for()
    problem = page.locator("[aria-label=Problems] .bad-box")
    assert "orders" in problem.inner_text()
    assert "tidemill" in problem.locator(".remedy").inner_text()


def test_the_slider_shows_what_a_chart_said_before_a_slice_and_names_the_slice(console, changing):
    query = "SELECT count FROM requests BETWEEN 2026-01-05T08:00:00Z AND 2026-01-05T09:00:00Z INTERVAL 1h"
    before = changing.http.get("/v1/query", params={"q": query}).json()["rows"][0]["count"]
    late = hour_of(8, start=200, count=3)
    story.land_hour(changing.mill, 8, late, name="late-08.ndjson")
    changing.tick()
    page = console.go(f"explore?q={quote(query)}")
    page.locator("section[aria-label='Time travel']").get_by_text("Now", exact=True).wait_for()
    slider = page.get_by_label("As of which arrival")
    slider.press("ArrowLeft")  # the newest arrival: the late slice
    travel = page.locator("section[aria-label='Time travel']")
    travel.get_by_role("link", name="late-08.ndjson").wait_for()
    travel.get_by_text("Nothing has arrived since.").wait_for()  # the answer of then is on the page
    assert slider.evaluate("slider => slider === document.activeElement"), "a new answer takes no focus away"
    page.keyboard.press("ArrowLeft")
    travel.get_by_text("1 slice has arrived since and changed this answer").wait_for()
    page.get_by_text("as it is now (dashed)").wait_for()
    page.wait_for_selector("tm-chart[data-drawn]")
    then, now = page.evaluate("document.querySelector('tm-chart').drawn.map(one => [...one.y])")
    assert (then, now) == ([before], [before + len(late)])
    cells = page.locator("section[aria-label=Numbers] td.num").all_inner_texts()
    assert cells == [str(before)]
    page.get_by_role("button", name="Back to now").click()
    page.locator("section[aria-label=Numbers]").get_by_text(str(before + len(late))).wait_for()


def test_an_ignored_slice_is_named_and_a_rebuild_that_was_confirmed_takes_it_in(console, changing):
    for name, when in (("all.ndjson", "10:30"), ("after.ndjson", "10:40")):  # the first completes the window
        event = {"event_id": name, "ts": f"2026-01-05T{when}:00Z", "tenant": "acme", "api": "/cart"}
        changing.mill.land("shared", json.dumps(event).encode(), name=name, start=TEN, end=TEN + HOUR)
        changing.tick()
    page = console.go("stream/shared?at=2026-01-05T10:00:00Z")
    detail = page.locator("section[aria-label=Window]")
    detail.get_by_text("revision 1").wait_for()
    ignored = changing.http.get("/v1/streams/shared/ledger").json()["slices"][0]
    assert ignored["name"] == "after.ndjson"
    row = detail.locator("tbody tr", has_text="ignored: late")
    assert row.locator("a").get_attribute("title") == ignored["id"]
    page.get_by_role("button", name="Rebuild …").click()
    dialog = page.get_by_role("dialog")
    dialog.locator("tbody tr").wait_for()
    plan = dialog.locator("tbody td").all_inner_texts()
    assert plan == ["2026-01-05 10:00 – 11:00", "build", "r1 → r2", "3", "1", "rebuild"]
    dialog.get_by_role("button", name="Rebuild").click()
    page.get_by_text("1 queued; the next round builds it.").wait_for()
    changing.tick()
    page = console.go("stream/shared?at=2026-01-05T10:00:00Z")
    detail.get_by_text("revision 2").wait_for()
    assert detail.get_by_text("in the dataset").count() == 3


def test_what_may_still_change_and_what_is_missing_is_drawn_into_the_chart(console, changing):
    query = "SELECT count FROM requests INTERVAL 1h"
    drawn = """document.querySelector('tm-chart').figure.center.filter(one => one.name).map(
        one => [one.name, one.left * 1000, one.right * 1000])"""
    end = TEN + 3 * HOUR
    story.land_hour(changing.mill, 10, hour_of(10, start=300, count=2), name="more-10.ndjson")
    page = console.go(f"explore?q={quote(query)}")
    page.wait_for_selector("tm-chart[data-drawn]")
    assert page.evaluate(drawn) == [["open", TEN, end]]  # a slice that begins at 10:00 is not decided yet
    assert "1 slice has landed" in page.locator("section[aria-label=Answer]").inner_text()
    changing.tick()
    then = changing.mill.clock()
    newest = changing.http.get("/v1/streams/requests/ledger").json()["slices"][0]
    assert newest["name"] == "more-10.ndjson"
    changing.mill.retract(changing.mill.plan_retraction(newest["id"], "sent by mistake"))
    changing.tick()
    page = console.go(f"explore?q={quote(query)}&as_of={format_instant(then)}")
    page.wait_for_selector("tm-chart[data-drawn]")
    missing = [one for one in page.evaluate(drawn) if one[0] == "missing"]
    held = [parse_instant(f"2026-01-05T10:{one.minute:02}:07Z") for one in hour_of(10, start=300, count=2)]
    assert missing == [["missing", min(held), max(held)]]  # to the millisecond


def test_a_dataset_is_downloaded_and_a_rebuild_shows_its_plan_first(console):
    page = console.go("stream/requests?at=2026-01-05T08:00:00Z")
    page.locator("section[aria-label=Window]").wait_for()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Parquet").click()
    assert saved.value.suggested_filename.endswith(".parquet")
    page.get_by_role("button", name="Rebuild …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("This is what will be done").wait_for()
    assert "2026-01-05 08:00 – 09:00" in dialog.inner_text() or "nothing to do" in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_quarantine_shows_the_line_and_a_corrected_record_is_accepted(console, changing):
    page = console.go("ledger/requests?view=quarantine&reason=bad_time")
    page.get_by_role("button", name="Show").click()
    assert page.locator("pre.payload").inner_text() == '{"event_id": "r-bad", "ts": "soon", "api": "/cart"}'
    page.get_by_text("Correct it").click()
    page.get_by_label("The record, corrected").fill(
        '{"event_id": "r-bad", "ts": "2026-01-05T06:30:00Z", "api": "/x"}'
    )
    with changing.ticking():
        page.get_by_role("button", name="Send corrected").click()
        page.locator(".detail [role=status] .dot-accepted").wait_for()
    page.locator(".detail [role=status] a").click()
    page.wait_for_selector("section[aria-label=Event]")
    assert "2026-01-05 06:30" in page.locator("section[aria-label=Event]").inner_text()


def test_the_quarantine_is_replayed_once_it_is_confirmed(console, changing):
    page = console.go("ledger/requests?view=quarantine")
    page.locator("tbody tr").first.wait_for()
    before = len(changing.mill.state.slices("requests"))
    page.get_by_role("button", name="Replay …").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_text("landed; the next round decides").wait_for()
    assert len(changing.mill.state.slices("requests")) > before
