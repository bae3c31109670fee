"""The pages of the console in a real Chromium, on a small warehouse: what they show, for whom, and how."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

import pytest
from pyarrow import ipc
from tests.server.console.conftest import Watched
from tests.support import console_story as story
from tests.support.console_story import hour_of

pytestmark = [pytest.mark.browser, pytest.mark.process]
HOURS = (7, 8, 9, 10, 12)
ROUTES = {
    "overview": "overview",
    "explore": "explore",
    "stream": "stream/requests?at=2026-01-05T12:00:00Z",
    "heatmap": "explore?q=SELECT+bins+FROM+requests.latency+INTERVAL+1h",
    "cell": "cell?q=SELECT+count+FROM+requests+GROUP+BY+region&group=%7B%22region%22:%22eu%22%7D",
    "search": "search/requests",
    "trace": "trace?id=r-10-001",
    "ledger": "ledger/requests",
    "quarantine": "ledger/requests?view=quarantine",
    "vectors": "vectors/embeddings/doc-1",
}
DRAWN = """[...document.querySelectorAll('tm-chart')].flatMap(one => one.drawn.map(
    d => ({x: [...d.x], y: [...(d.y ?? d.to0)]})))"""


def drawn(console: Watched) -> list[dict[str, list]]:
    """The columns that the chart library has drawn."""
    console.page.wait_for_selector("tm-chart[data-drawn]")
    return console.page.evaluate(DRAWN)


def asked(console: Watched, text: str) -> None:
    """Write a query and run it by the keyboard."""
    area = console.page.get_by_label("Query text")
    area.fill(text)
    area.press("Escape")
    area.press("Control+Enter")


def test_the_numbers_that_are_drawn_are_those_of_the_events(console):
    page = console.go("explore?q=SELECT+count+FROM+requests+INTERVAL+1h+GROUP+BY+region")
    page.wait_for_selector("tm-chart[data-drawn]")
    truth = Counter((one.region, hour) for hour in HOURS for one in hour_of(hour))
    shown = [[name.inner_text() for name in page.locator(".legend .key").all()], drawn(console)]
    assert shown[0] == [region for region, _ in Counter(r for r, _ in truth.elements()).most_common()]
    for region, series in zip(*shown, strict=True):
        values = {
            (x // 3_600_000) % 24: y for x, y in zip(series["x"], series["y"], strict=True) if y is not None
        }
        assert {hour: value for hour, value in values.items() if value == value} == {
            hour: truth[region, hour] for hour in HOURS
        }
        assert 11 in values  # the hour that never arrived is a gap: no line crosses it
    total = sum(len(hour_of(hour)) for hour in HOURS)
    cells = page.locator("section[aria-label=Numbers] td.num").all_inner_texts()
    assert sum(int(cell) for cell in cells) == total


def test_the_overview_says_of_each_stream_what_arrived_and_how_far_it_is(console):
    page = console.go("overview")
    card = page.locator("article[aria-label=requests]")
    card.wait_for()
    text = card.inner_text()
    assert f"{sum(len(hour_of(hour)) for hour in HOURS)} accepted" in text
    for words in ("1 duplicate", "1 conflict", "2 rejected", "0 late", "2026-01-05 12:59:07", "healthy"):
        assert words in text
    card.locator("tm-chart[data-drawn]").first.wait_for()
    drawn_at = "document.querySelector('article[aria-label=requests] tm-chart').drawn[0]"
    accepted = page.evaluate(f"{drawn_at}.to0.filter(one => one > 0)")
    assert accepted == [len(hour_of(hour)) for hour in HOURS]
    assert page.locator("[aria-label=Problems]").inner_text() == "No problems."


def test_a_window_says_why_it_waits_and_what_would_end_it(console):
    page = console.go(ROUTES["stream"])
    detail = page.locator("section[aria-label=Window]")
    detail.wait_for()
    assert "2026-01-05 12:00 – 13:00" in detail.inner_text()
    assert "Cutoff at 2026-01-05 13:30." in detail.inner_text()  # half an hour after its end
    assert "subject_to_change_window" in detail.inner_text()
    assert "5 windows, 5 slices, 1 gap" in page.locator("section[aria-label=Windows]").inner_text()


def test_the_timeline_is_walked_by_keys(console):
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    page.locator("tm-timeline canvas").focus()
    said = page.locator("tm-timeline [role=status]")
    assert said.inner_text().startswith("2026-01-05 12:00 – 13:00: waiting (cutoff)")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert said.inner_text() == "2026-01-05 08:00 – 09:00: built, revision 1"
    page.keyboard.press("+")
    page.keyboard.press("Enter")
    detail = page.locator("section[aria-label=Window]")
    detail.wait_for()
    assert "2026-01-05 08:00 – 09:00" in detail.inner_text()
    assert f"{len(hour_of(8))}" in detail.locator("dd").first.inner_text()


def test_where_windows_are_many_their_shares_are_drawn_and_opening_one_looks_closer(console):
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    page.evaluate("""(() => {
        const it = document.querySelector('tm-timeline');
        it.ask = (from, to) => fetch('/v1/streams/requests/timeline?' + new URLSearchParams(
            {limit: 2, ...(from ? {from, to} : {})})).then(answer => answer.json());
        return it.load(true);
    })()""")
    page.wait_for_selector("tm-timeline[data-loaded=buckets]")
    page.locator("tm-timeline canvas").focus()
    said = page.locator("tm-timeline [role=status]")
    assert re.search(r"1 waiting|\d built", said.inner_text())
    for _ in range(4):
        page.keyboard.press("+")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    page.keyboard.press("Home")
    page.wait_for_selector("tm-timeline[data-loaded=buckets]")


def test_a_window_is_opened_by_a_click_where_it_is_drawn(console):
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    place = page.evaluate("""(() => {
        const it = document.querySelector('tm-timeline'), box = it.canvas.getBoundingClientRect();
        const at = (Date.parse('2026-01-05T10:30:00Z') * 1000 - it.view[0]) / (it.view[1] - it.view[0]);
        return [box.left + at * box.width, box.top + 60];
    })()""")
    page.mouse.click(*place)
    page.locator("section[aria-label=Window] h2").wait_for()
    assert page.locator("section[aria-label=Window] h2").inner_text() == "2026-01-05 10:00 – 11:00"


def test_a_number_leads_to_the_events_it_is_made_of(console):
    page = console.go("explore?q=SELECT+count,sum(latency_ms)+FROM+requests+INTERVAL+1h+GROUP+BY+region")
    row = page.locator("section[aria-label=Numbers] tbody tr", has_text="2026-01-05 08:00").filter(
        has_text="eu"
    )
    row.locator("a").first.click()
    page.locator("section[aria-label=Events]").wait_for()
    mine = [one for one in hour_of(8) if one.region == "eu"]
    number = page.locator("section[aria-label='The number']").inner_text()
    assert f"{len(mine)}" in number
    assert str(sum(one.latency_ms for one in mine)) in number.replace(",", "")
    ids = page.locator("section[aria-label=Events] tbody tr td:nth-child(2)").all_inner_texts()
    assert sorted(ids) == sorted(one.event_id for one in mine)
    assert "hour-08.ndjson" in page.locator("section[aria-label=Slices]").inner_text()
    page.get_by_role("link", name=mine[0].event_id).click()
    page.locator("section[aria-label=Event]").wait_for()


def test_a_bar_that_is_clicked_leads_to_its_events(console):
    page = console.go("explore?q=SELECT+count+FROM+requests+GROUP+BY+region")
    page.wait_for_selector("tm-chart[data-drawn]")
    box = page.locator("tm-chart").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.8)
    page.wait_for_url("**/#/cell?**")
    assert "region" in page.url


def test_an_error_is_shown_at_its_character_and_goes_when_it_is_corrected(console):
    page = console.go("explore")
    asked(console, "SELECT count FROM requests GROUP BY regon")
    page.wait_for_selector("mark")
    assert page.locator("mark").inner_text() == "regon"
    assert page.locator("mark").get_attribute("data-position") == str(
        len("SELECT count FROM requests GROUP BY ")
    )
    assert "region" in page.locator("tm-editor [role=alert]").inner_text()
    asked(console, "SELECT count FROM requests GROUP BY region")
    page.wait_for_selector("section[aria-label=Numbers]")
    assert page.locator("mark").count() == 0


def test_a_query_is_completed_from_the_catalog(console):
    page = console.go("explore")
    page.wait_for_selector("section[aria-label=Numbers]")
    area = page.get_by_label("Query text")
    area.fill("")
    area.press_sequentially("SELECT av")
    options = page.locator(".choices li")
    assert [one.inner_text().split("\n")[0] for one in options.all()] == ["avg(latency_ms)", "avg"]
    area.press("Enter")
    area.press_sequentially("FROM requests GROUP BY re")
    assert options.all_inner_texts()[0].startswith("region")
    area.press("Tab")
    assert area.input_value() == "SELECT avg(latency_ms) FROM requests GROUP BY region "
    area.press_sequentially("WHERE api = ")
    assert sorted(one.split("\n")[0] for one in options.all_inner_texts()) == [
        f'"{api}"' for api in story.APIS
    ]


def test_what_is_picked_is_written_as_text_and_asked(console):
    page = console.go("explore")
    page.wait_for_selector("section[aria-label=Numbers]")
    page.get_by_label("Metric").select_option("orders.progress")
    page.get_by_role("button", name="State flow").click()
    assert (
        page.locator("textarea").input_value()
        == "SELECT states FROM orders.progress INTERVAL 1h GROUP BY state"
    )
    page.get_by_label("Each").select_option("")
    page.wait_for_selector("section[aria-label=Numbers] tbody:not(:has(tr:nth-child(4)))")
    rows = page.locator("section[aria-label=Numbers] tbody tr").all_inner_texts()
    # 12 orders, of which each third got one step further
    assert sorted(row.split() for row in rows) == [["PAID", "4"], ["PLACED", "4"], ["SENT", "4"]]


def test_an_answer_is_saved_as_csv_and_copied_as_a_command(console, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = console.go("explore?q=SELECT+sum(latency_ms)+FROM+requests+GROUP+BY+api")
    page.wait_for_selector("section[aria-label=Numbers]")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text(encoding="utf-8"))))
    truth = {
        api: str(sum(o.latency_ms for h in HOURS for o in hour_of(h) if o.api == api)) for api in story.APIS
    }
    assert {row["api"]: row["sum(latency_ms)"] for row in rows} == truth  # every digit
    with page.expect_download() as saved:
        page.get_by_role("button", name="Arrow").click()
    table = ipc.open_file(saved.value.path()).read_all()
    assert {row["api"]: str(row["sum(latency_ms)"]) for row in table.to_pylist()} == truth
    page.get_by_role("button", name="curl").click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"curl -sG '{console.url}/v1/query'")
    assert "q=SELECT sum(latency_ms) FROM requests GROUP BY api" in copied


def test_a_heatmap_has_every_sample_once(console):
    console.go(ROUTES["heatmap"])
    console.page.wait_for_selector("tm-chart[data-drawn]")
    counted = console.page.evaluate(
        "document.querySelector('tm-chart').drawn[0].value.reduce((sum, one) => sum + one, 0)"
    )
    assert counted == sum(len(hour_of(hour)) for hour in HOURS)


def test_a_vector_shows_its_chain_and_how_far_it_has_drifted(console):
    console.go(ROUTES["vectors"])
    away, length = drawn(console)
    # (3, 4, 0), then (3, 4, 12), then half of that: lengths and distances by Pythagoras
    assert length["y"] == pytest.approx([5, 13, 6.5])
    assert away["y"] == pytest.approx([6.5, 6.5, 0])
    assert console.page.locator("section[aria-label=Chain] tbody tr").count() == 3


def test_what_comes_from_outside_stays_text(console):
    page = console.go("search/shared")
    page.wait_for_selector("section[aria-label='Events found']")
    text = page.locator("main").inner_text()
    assert story.HOSTILE in text
    for one in page.locator("tbody tr:not(.detail) button").all():
        one.click()
    assert story.SCRIPT in page.locator("main").inner_text()
    page = console.go("explore?q=SELECT+count+FROM+shared+GROUP+BY+api,+tenant")
    page.wait_for_selector("tm-chart[data-drawn]")
    assert story.HOSTILE in page.locator("main").inner_text()
    box = page.locator("tm-chart").bounding_box()
    for share in (0.2, 0.4, 0.6, 0.8, 0.95):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * 0.8)
        page.wait_for_timeout(60)
    page = console.go("ledger/shared")
    page.get_by_text(story.HOSTILE).first.wait_for()
    page = console.go("explore?q=SELECT+%3Cimg+src%3Dx+onerror%3D%22window.broken%3D1%22%3E")
    page.locator("tm-editor [role=alert]").wait_for()
    page = console.go("stream/%3Cimg%20src=x%20onerror=%22window.broken=1%22%3E")
    page.locator("[role=alert]").wait_for()
    assert page.evaluate("window.broken") is None
    assert page.locator("main img").count() == 0


def test_everything_can_be_reached_by_the_keyboard(console):
    page = console.go("overview")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    seen = []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent"))
    assert seen == [
        "Tidemill",
        "Overview",
        "Streams",
        "Explore",
        "Search",
        "Trace",
        "Ledger",
        "Vectors",
        "Dark theme",
    ]
    page.get_by_role("link", name="Explore").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("section[aria-label=Numbers]")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    for _ in range(5):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.parentElement.textContent.startsWith('Span')")


def test_the_theme_follows_the_system_and_can_be_turned(console, context):
    page = console.go("overview")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(ground) == light
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate(ground) == light  # it is kept


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_breaks_a_rule_of_accessibility(console, context, theme):
    axe = pytest.importorskip("axe_playwright_python")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = console.page
    page.emulate_media(color_scheme=theme)
    for name, route in ROUTES.items():
        console.go(route)
        page.wait_for_selector("main section, main form, main article")
        page.wait_for_selector(".loading", state="detached")
        page.evaluate(source)
        found = page.evaluate("axe.run()")["violations"]
        said = [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found]
        assert said == [], (name, theme)


def test_nothing_is_wider_than_a_phone(console):
    console.page.set_viewport_size({"width": 390, "height": 844})
    for name, route in ROUTES.items():
        page = console.go(route)
        page.wait_for_selector(".loading", state="detached")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


def test_a_token_is_asked_for_kept_in_memory_and_shows_one_tenant_alone(browser, serving):
    served = serving(text=story.PROJECT)
    story.tell(served.mill)
    shown = served.token("read", tenant="globex")["Authorization"].removeprefix("Bearer ")
    context = browser.new_context()
    watched = Watched(context.new_page(), served.url)
    page = watched.page
    page.goto(f"{served.url}/#/search/shared")
    page.locator("input[name=token]").fill("wrong")
    page.keyboard.press("Enter")
    page.locator("dialog [role=alert]").wait_for()
    page.locator("input[name=token]").fill(shown)
    page.keyboard.press("Enter")
    page.wait_for_selector("section[aria-label='Events found']")
    text = page.locator("main").inner_text()
    assert "globex" in text
    assert not re.search("acme|onerror", text.replace(f"s2{story.HOSTILE}", ""))
    page.evaluate("location.hash = '#/explore?q=SELECT+count+FROM+shared+GROUP+BY+api'")
    page.wait_for_selector("section[aria-label=Numbers]")
    assert page.locator("section[aria-label=Numbers] tbody tr").all_inner_texts() == ["/login\t1"]
    page.evaluate("location.hash = '#/ledger/shared'")  # is about all its tenants
    page.locator(".bad-box").wait_for()
    assert "operator" in page.locator(".bad-box").inner_text()
    page.evaluate("location.hash = '#/overview'")
    page.wait_for_selector("article")
    assert [one.get_attribute("aria-label") for one in page.locator("article").all()] == ["shared"]
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert shown not in kept
    page.reload()
    page.locator("input[name=token]").wait_for()
    watched.check()
    context.close()
