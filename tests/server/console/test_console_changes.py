"""What changes while one looks: a late slice on its way to revision 2, corrected records, a rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.server.conftest import Served
from tests.server.console.conftest import Watched, telling
from tests.support import console_story as story
from tests.support.console_story import hour_of

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on the story, which tests add to."""
    with telling(tmp_path_factory.mktemp("changing")) as served:
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
    page = console.go(f"stream/requests?at={story.LATE}")
    detail.get_by_text("revision 2").wait_for()
    assert str(len(hour_of(9)) + len(late)) in detail.inner_text()
    revisions.get_by_role("button", name="What changed since r1").click()
    revisions.get_by_text(f"{len(late)} added").wait_for()
    assert f"0 removed, {len(hour_of(9))} unchanged" in revisions.inner_text()
    added = revisions.locator("table").nth(1).locator("tbody tr")
    assert added.count() == len(late)
    assert all(one.event_id in "".join(added.all_inner_texts()) for one in late)


def test_what_arrives_and_what_goes_wrong_is_on_the_overview_without_a_reload(console, changing):
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
    slider.press("ArrowLeft")
    travel.get_by_text("1 slice has arrived since and changed this answer").wait_for()
    page.get_by_text("as it is now (dashed)").wait_for()
    page.wait_for_selector("tm-chart[data-drawn]")
    then, now = page.evaluate("document.querySelector('tm-chart').drawn.map(one => [...one.y])")
    assert (then, now) == ([before], [before + len(late)])
    cells = page.locator("section[aria-label=Numbers] td.num").all_inner_texts()
    assert cells == [str(before)]
    page.get_by_role("button", name="Back to now").click()
    page.locator("section[aria-label=Numbers]").get_by_text(str(before + len(late))).wait_for()


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
