"""The pages of the console in a real Chromium, on a small warehouse: what they show, for whom, and how."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from pyarrow import ipc
from tests.server.console.conftest import Watched, telling
from tests.server.console.painting import GAPS, LANE, SLICES, WINDOWS, colours, painted
from tests.support import console_story as story
from tests.support.console_story import hour_of

from tidemill.model.time import HOUR, parse_instant

pytestmark = [pytest.mark.browser, pytest.mark.process]
HOURS = (7, 8, 9, 10, 12)
ROUTES = {
    "overview": "overview",
    "explore": "explore",
    "stream": "stream/requests?at=2026-01-05T12:00:00Z",
    "heatmap": "explore?q=SELECT+bins+FROM+requests.latency+BETWEEN+2026-01-05T08:00:00Z+"
    "AND+2026-01-05T08:10:00Z+INTERVAL+5m",
    "cell": "cell?q=SELECT+count+FROM+requests+INTERVAL+5m&start=2026-01-05T08:05:00Z",
    "search": "search/requests?q=FILTER+latency_ms+%3E+400",
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


def test_the_timeline_paints_windows_slices_gaps_and_lines(console):
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    built, waiting, slice_, watermark, cutoff = colours(
        page, "built", "waiting", "accepted", "accent", "warn"
    )
    halves = {hour: parse_instant(f"{story.DAY}T{hour:02}:30:00Z") for hour in range(7, 13)}
    blocks = dict(zip(halves, painted(page, [(at, WINDOWS) for at in halves.values()]), strict=True))
    assert {hour: blocks[hour] for hour in HOURS} == {**dict.fromkeys((7, 8, 9, 10), built), 12: waiting}
    assert blocks[11] not in (built, waiting)  # there is no window
    for hour, at in halves.items():  # a bar for each slice, and none where none arrived
        assert (slice_ in painted(page, [(at, SLICES + lane * LANE) for lane in range(3)])) is (hour in HOURS)
    minutes = {
        hour: [parse_instant(f"{story.DAY}T{hour:02}:{m}:00Z") for m in range(20, 40)] for hour in (10, 11)
    }
    hatched = {hour: painted(page, [(at, GAPS) for at in every]) for hour, every in minutes.items()}
    assert (len(set(map(tuple, hatched[10]))), len(set(map(tuple, hatched[11]))) > 1) == (1, True)
    found = page.evaluate(
        "(({watermark, cutoff}) => ({watermark, cutoff}))(document.querySelector('tm-timeline').data)"
    )
    assert found["watermark"] == f"{story.DAY}T12:59:07Z"  # the newest event
    for name, colour in (("watermark", watermark), ("cutoff", cutoff)):  # dashed, from top to bottom
        assert colour in painted(page, [(parse_instant(found[name]), y) for y in range(150, 190)])
    arrived = parse_instant(f"{story.DAY}T13:20:00Z")
    base = page.evaluate("document.querySelector('tm-timeline').canvas.clientHeight") - 8
    assert painted(page, [(arrived, base)]) != painted(page, [(arrived - HOUR, base)])


def test_each_state_of_a_window_has_its_colour(console):
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    states = page.evaluate("document.querySelector('tm-timeline').data.states")
    assert sorted(states) == sorted(["waiting", "ready", "queued", "building", "built", "final", "failed"])
    at = parse_instant(f"{story.DAY}T07:30:00Z")
    seen = []
    for place in range(len(states)):
        page.evaluate("(n) => { document.querySelector('tm-timeline').data.windows.state[0] = n; }", place)
        seen += painted(page, [(at, WINDOWS)])
    assert seen == colours(page, *states)
    assert len(set(map(tuple, seen))) == len(states)


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


def test_the_timeline_is_zoomed_by_the_wheel_and_moved_by_dragging(console):
    page = console.go("stream/requests")
    page.wait_for_selector("tm-timeline[data-loaded=windows]")
    width, start = "it.view[1] - it.view[0]", "it.view[0]"
    seen = "(() => {{ const it = document.querySelector('tm-timeline'); return {}; }})()"
    box = page.locator("tm-timeline canvas").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    before = page.evaluate(seen.format(width))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function(seen.format(f"{width} < {before} * 0.9"))
    narrow, left = page.evaluate(seen.format(f"[{width}, {start}]"))
    page.mouse.down()
    page.mouse.move(middle[0] + 200, middle[1], steps=4)
    page.mouse.up()
    moved = (left - page.evaluate(seen.format(start))) / narrow * box["width"]
    assert moved == pytest.approx(200, abs=1)  # pixels: what was grasped stays under the mouse
    assert page.evaluate(seen.format(width)) == pytest.approx(narrow)
    page.get_by_role("button", name="Show all").click()
    assert page.evaluate(seen.format(width)) == pytest.approx(before)


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


def test_numbers_of_states_and_of_bins_lead_to_their_events(console):
    page = console.go("explore?q=SELECT+states+FROM+orders.progress+GROUP+BY+state")
    row = page.locator("section[aria-label=Numbers] tbody tr", has_text="PAID")
    row.locator("a").click()
    page.locator("section[aria-label=Events]").wait_for()
    assert "4 in all" in page.locator("section[aria-label=Events]").inner_text()
    said = page.locator("section[aria-label=Events] tbody tr td:nth-child(6)").all_inner_texts()
    assert said == ["in PAID since"] * 4
    page = console.go("explore?q=SELECT+bins+FROM+requests.latency")
    page.wait_for_selector("section[aria-label=Numbers]")
    row = page.locator("section[aria-label=Numbers] tbody tr").first
    lower, upper, held = row.locator("td").all_inner_texts()
    row.locator("a").click()
    page.locator("section[aria-label=Events]").wait_for()
    inside = [
        one.event_id
        for hour in HOURS
        for one in hour_of(hour)
        if (lower == "–" or one.latency_ms > float(lower))
        and (upper == "–" or one.latency_ms <= float(upper))
    ]
    assert f"{len(inside)} in all" in page.locator("section[aria-label=Events]").inner_text()
    assert len(inside) == int(held)


def test_the_events_of_a_number_come_page_by_page(console):
    page = console.go("cell?q=SELECT+count+FROM+requests")
    ids = page.locator("section[aria-label=Events] tbody tr td:nth-child(2)")
    more = page.get_by_role("button", name="Show more")
    all_ids = [one.event_id for hour in HOURS for one in hour_of(hour)]
    for shown in range(50, len(all_ids), 50):
        ids.nth(shown - 1).wait_for()
        assert ids.count() == shown
        more.click()
    ids.nth(len(all_ids) - 1).wait_for()
    more.wait_for(state="detached")
    assert sorted(ids.all_inner_texts()) == sorted(all_ids)


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
    options.first.wait_for()  # the values come when they are first needed
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


def test_states_are_drawn_as_a_flow_and_their_changes_as_a_matrix(console):
    steps = [  # of 12 orders, when which got into which state
        (8 + step + number % 3, number, status)
        for number in range(12)
        for step, status in enumerate(("PLACED", "PAID", "SENT")[: 1 + number % 3])
    ]
    flow = {}
    for hour in range(8, 13):  # by the end of each hour
        latest = {number: status for at, number, status in sorted(steps) if at <= hour}
        flow[hour] = Counter(latest.values())
    page = console.go("explore?q=SELECT+states+FROM+orders.progress+INTERVAL+1h+GROUP+BY+state&chart=flow")
    page.wait_for_selector("tm-chart[data-drawn]")
    stacked = page.evaluate("""(() => {
        const it = document.querySelector('tm-chart'), [data] = it.drawn;
        return it.given.series.map((one, i) => [one.name, it.given.x.map(
            (at, place) => [at / 3_600_000 % 24, data[`to${i}`][place] - data[`from${i}`][place]])]);
    })()""")
    assert {name: {hour: n for hour, n in bars if n} for name, bars in stacked} == {
        status: {hour: found[status] for hour, found in flow.items() if found[status]}
        for status in ("PLACED", "PAID", "SENT")
    }
    page = console.go(
        "explore?q=SELECT+transitions+FROM+orders.progress+GROUP+BY+from_state,+to_state&chart=flow"
    )
    page.wait_for_selector("tm-chart[data-drawn]")
    matrix = page.evaluate("""(({x, y, value}) => x.map((to, i) => [y[i], to, value[i]]))(
        document.querySelector('tm-chart').drawn[0])""")
    moves = Counter(
        (status, after)
        for _, n, status in steps
        for _, m, after in steps
        if n == m and (status, after) in {("PLACED", "PAID"), ("PAID", "SENT")}
    )
    assert {(before, after): n for before, after, n in matrix if before in ("PLACED", "PAID")} == moves


def test_an_answer_is_saved_and_copied_as_a_command_that_gives_it_again(console, context):
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
    copied = {}
    buttons = page.get_by_role("group", name="Copy as").get_by_role("button")
    for place, name in enumerate(("curl", "Python", "text")):
        assert buttons.nth(place).inner_text() == name
        buttons.nth(place).click()
        buttons.nth(place).and_(page.get_by_text("Copied")).wait_for()
        copied[name] = page.evaluate("navigator.clipboard.readText()")
    assert copied["text"] == "SELECT sum(latency_ms) FROM requests GROUP BY api"
    space: dict[str, dict] = {}
    exec(copied["Python"], space)  # noqa: S102 - which prints the rows, too
    assert {row["api"]: str(row["sum(latency_ms)"]) for row in space["answer"]["rows"]} == truth
    command = shlex.split(copied["curl"])
    assert command[:2] == ["curl", "-sG"]
    if shutil.which("curl") is not None:
        answer = subprocess.run(command, capture_output=True, check=True).stdout
        rows = json.loads(answer, parse_float=str)["rows"]
        assert {row["api"]: row["sum(latency_ms)"] for row in rows} == truth


def test_a_heatmap_has_every_sample_once(console):
    console.go("explore?q=SELECT+bins+FROM+requests.latency+INTERVAL+1h")
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


def exact(record: str) -> dict[str, str]:
    """A record with the digits that its numbers are written with."""
    return json.loads(record, parse_float=str)


def test_a_search_finds_events_shows_their_payload_and_leads_to_slice_and_window(console):
    page = console.go("search/requests")
    area = page.get_by_label("Search text")
    area.fill('WHERE region = "eu" FILTER latency_ms > 380')
    area.press("Escape")
    area.press("Control+Enter")
    mine = [one for hour in HOURS for one in hour_of(hour) if one.region == "eu" and one.latency_ms > 380]
    found = page.locator("section[aria-label='Events found']")
    found.get_by_text(f"{len(mine)} found").wait_for()
    rows = found.locator("tbody tr")
    assert sorted(rows.locator("td:nth-child(2)").all_inner_texts()) == sorted(one.event_id for one in mine)
    row = rows.filter(has_text=mine[0].event_id)
    row.get_by_role("button", name="Show").click()
    assert exact(page.locator("pre.payload").inner_text()) == exact(mine[0].line)
    row.locator("td:nth-child(5) a").click()
    page.locator("section[aria-label=Slice] h2").wait_for()
    assert page.locator("section[aria-label=Slice] h2").inner_text() == f"hour-{mine[0].hour:02}.ndjson"
    page.go_back()
    rows.filter(has_text=mine[0].event_id).get_by_role("link", name="Window").click()
    page.locator("section[aria-label=Window] h2").wait_for()
    start, end = (f"{hour:02}:00" for hour in (mine[0].hour, mine[0].hour + 1))
    assert page.locator("section[aria-label=Window] h2").inner_text() == f"{story.DAY} {start} – {end}"


def test_an_event_is_traced_from_its_arrivals_to_every_number_it_is_in(console):
    page = console.go("trace")
    page.get_by_label("Event id").fill("r-10-001")
    page.keyboard.press("Enter")
    page.locator("section[aria-label=Event]").wait_for()
    event = hour_of(10)[1]
    assert exact(page.locator("section[aria-label=Event] pre").inner_text()) == exact(event.line)
    rows = [
        one.split("\t") for one in page.locator("section[aria-label=Arrivals] tbody tr").all_inner_texts()
    ]
    assert [(row[1], row[3]) for row in rows] == [
        ("hour-10.ndjson", "accepted"),
        ("hour-12.ndjson", "conflict"),
    ]
    tiles = [
        one.split("\t")
        for one in page.locator("section[aria-label='Rollup tiles'] tbody tr").all_inner_texts()
    ]
    levels = ("5s", "1m", "1h", "1d", "7d")
    assert sorted((row[0], row[1]) for row in tiles) == sorted(
        (m, at) for m in ("latency", "requests") for at in levels
    )
    assert {row[3] for row in tiles} == {f"{event.api} · {event.region}", event.api}
    dataset = page.locator("section[aria-label=Datasets] tbody td").all_inner_texts()
    assert [one.strip() for one in dataset] == [f"{story.DAY} 10:00 – 11:00", "built", "r1 has it, current"]
    assert "/other" in page.locator("section[aria-label=Quarantine] pre").inner_text()


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


def test_the_browser_runs_no_script_that_is_not_a_file_of_the_server(context, told):
    console = Watched(context.new_page(), told.url)
    page = console.go("overview")
    page.evaluate("""document.head.append(
        Object.assign(document.createElement('script'), {textContent: 'window.broken = 1'}))""")
    assert page.evaluate("window.broken") is None
    assert ["Content Security Policy" in one for one in console.errors] == [True]


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


def test_a_question_is_asked_and_answered_by_the_keyboard_alone(console):
    page = console.go("explore")
    page.wait_for_selector("section[aria-label=Numbers]")
    assert presses(page, "document.activeElement.tagName === 'TEXTAREA'")
    page.keyboard.press("Control+A")
    page.keyboard.type("SELECT count FROM requests ")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("section[aria-label=Numbers] tbody tr:only-child")
    assert presses(page, "document.activeElement.matches('section[aria-label=Numbers] td a')")
    page.keyboard.press("Enter")
    page.locator("section[aria-label=Events]").wait_for()
    number = page.locator("section[aria-label='The number']").inner_text()
    assert str(sum(len(hour_of(hour)) for hour in HOURS)) in number


def presses(page, wanted: str) -> bool:
    """Press Tab until something has the focus; False: nothing of the page is it."""
    for _ in range(60):
        if page.evaluate(wanted):
            return True
        page.keyboard.press("Tab")
    return False


def test_numbers_wait_for_two_answers_alone_and_the_chart_library_waits_for_them(console):
    page = console.go("explore?q=SELECT+count+FROM+requests+INTERVAL+1h")
    page.wait_for_selector("tm-chart[data-drawn]")
    asked_for = [one.removeprefix(console.url).split("?")[0] for one in console.requests]
    library = next(at for at, one in enumerate(asked_for) if one.endswith("/bokeh.min.js"))
    before = [one for one in asked_for[:library] if one.startswith("/v1/")]
    assert before[:2] == ["/v1/streams", "/v1/query"]
    assert set(before[2:]) <= {"/v1/streams/requests/changes"}  # of the slider, which is below the numbers


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


def test_no_page_breaks_a_rule_of_accessibility(console):
    axe = pytest.importorskip("axe_playwright_python")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = console.page
    for name, route in ROUTES.items():
        page.emulate_media(color_scheme="light")
        console.go(route)
        page.wait_for_selector("main section, main form, main article")
        page.wait_for_selector(".loading", state="detached")
        if not page.evaluate("'axe' in window"):
            page.evaluate(source)
        assert violations(page, "{}") == [], name
        page.emulate_media(color_scheme="dark")  # which changes colours alone
        assert violations(page, "{runOnly: ['color-contrast', 'link-in-text-block']}") == [], (name, "dark")


def violations(page, how: str) -> list[tuple[str, list]]:
    found = page.evaluate(f"axe.run({{...{how}, resultTypes: ['violations'], preload: false}})")["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found]


def test_nothing_is_wider_than_a_phone_and_what_scrolls_is_scrolled_by_keys(console):
    console.page.set_viewport_size({"width": 390, "height": 844})
    regions = 0
    for name, route in ROUTES.items():
        page = console.go(route)
        page.wait_for_selector(".loading", state="detached")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        tables = page.evaluate("""[...document.querySelectorAll('table')].map(({parentElement: one}) => [
            one.getAttribute('aria-label') !== null, one.tabIndex, one.scrollWidth > one.clientWidth])""")
        assert all(labelled and order == 0 for labelled, order, _ in tables), name
        regions += sum(scrolls for *_, scrolls in tables)
    assert regions > 3


@pytest.fixture
def guarded(written, tmp_path):
    """A server of its own on the story, for tokens."""
    with telling(written, tmp_path) as served:
        yield served


def test_a_token_is_asked_for_kept_in_memory_and_shows_one_tenant_alone(browser, guarded):
    served = guarded
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
