"""How soon the console is of use: on 10,000 windows and a million rows in each of the finest rollup levels.

`python -m bench.console_paint [FOLDER]` makes the warehouse once (about a minute), serves it, and opens each
page in Chromium several times, in a new context each. Times are from the start of the navigation: the
browser's first contentful paint, and the moment at which what the page is for is there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from tidemill.mill import Mill
from tidemill.model.time import HOUR, format_instant, parse_instant
from tidemill.server import start
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOURS: Final = 10_000
APIS: Final = 100
SLICE: Final = 500  # hours
FIRST: Final = parse_instant("2024-01-01T00:00:00Z")
PROJECT: Final = """
version: 1
engine: {cores: 2, memory: 2g}
streams:
  requests:
    schema: {id: {type: string, required: true}, ts: {type: string, required: true}, api: string}
    identity: id
    event_time: {column: ts, type: iso8601}
    tenant: {value: acme}
    aggregation_span: 1h
    subject_to_change_window: 9999d   # so that windows wait, and are not built here
    max_slice_windows: 100000
    metrics: {requests: {kind: counter, dimensions: [api]}}
"""
CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
PAGES: Final = {
    "overview": ("overview", "article[aria-label=requests]"),
    "timeline": ("stream/requests", "tm-timeline[data-loaded]"),
    "explore": (
        "explore?q=SELECT+count+FROM+requests+INTERVAL+7d+GROUP+BY+api",
        "section[aria-label=Numbers]",
    ),
}
# Remembers when an element first is there and the frame with it was painted: asking for it from outside would
# wait for whatever the page does next.
WATCH: Final = """(wanted) => {
    const seen = () => {
        if (window.useful !== undefined || !document.querySelector(wanted)) return;
        watching.disconnect();
        requestAnimationFrame(() => setTimeout(() => { window.useful = performance.now(); }));
    };
    const watching = new MutationObserver(seen);
    watching.observe(document, {childList: true, subtree: true, attributes: true});
}"""
READY: Final = """new Promise((done) => {
    const again = () => window.useful === undefined ? setTimeout(again, 10) : done(window.useful);
    again();
})"""
PAINTED: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def make(folder: Path, hours: int) -> None:
    """One event for each hour and api, in slices that say what they cover."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tidemill.yaml").write_text(PROJECT, encoding="utf-8")
    with Mill.open(folder, clock=FakeClock(FIRST + hours * HOUR)) as mill:
        for at in range(0, hours, SLICE):
            stop = min(at + SLICE, hours)
            lines = (
                json.dumps(
                    {"id": f"{hour}-{api}", "ts": format_instant(FIRST + hour * HOUR), "api": f"/a{api}"}
                )
                for hour in range(at, stop)
                for api in range(APIS)
            )
            bounds = (FIRST + at * HOUR, FIRST + stop * HOUR)
            content = "\n".join(lines).encode()
            mill.land("requests", content, name=f"{at}", start=bounds[0], end=bounds[1], many_windows=True)
        mill.run_until_idle()


@contextmanager
def served(folder: Path, hours: int) -> Iterator[str]:
    stop, ready = threading.Event(), threading.Event()
    urls: list[str] = []

    def announce(started: start.Started) -> None:
        urls.append(started.url)
        ready.set()

    with Mill.open(folder, clock=FakeClock(FIRST + hours * HOUR)) as mill:
        work = threading.Thread(
            target=lambda: start.serve(mill, stop, port=0, announce=announce), daemon=True
        )
        work.start()
        ready.wait()
        try:
            yield urls[0]
        finally:
            stop.set()
            work.join()


def measure(browser: Browser, url: str, route: str, useful: str) -> tuple[float, float]:
    """Milliseconds until the first contentful paint, and until the page is of use."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(f"({WATCH})({json.dumps(useful)})")
    page.goto(f"{url}/#/{route}", wait_until="commit")
    page.wait_for_selector(useful, timeout=60_000)
    ready = float(page.evaluate(READY))
    painted = page.evaluate(PAINTED)
    context.close()
    return (float(painted) if painted is not None else ready), ready


@dataclass(frozen=True, slots=True)
class Times:
    """Of one page, in milliseconds, one of each for every time it was opened."""

    painted: Sequence[float]
    useful: Sequence[float]


def measure_all(folder: Path, hours: int, times: int) -> Iterator[tuple[str, Times]]:
    """Each page by name, on a warehouse that is made if it is not there."""
    from playwright.sync_api import sync_playwright

    if not (folder / "warehouse").exists():
        make(folder, hours)
    with served(folder, hours) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for name, (route, useful) in PAGES.items():
            found = [measure(browser, url, route, useful) for _ in range(times)]
            yield name, Times([one for one, _ in found], [one for _, one in found])
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.console_paint", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench/work/console"))
    parser.add_argument("--hours", type=int, default=HOURS)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    if CHROMIUM is None:
        print("there is no Chromium here: apt-get install chromium")
        return 1
    print(f"{given.hours:,} windows, {given.hours * APIS:,} rows of the 5s level; median of {given.times}")
    for name, found in measure_all(given.folder, given.hours, given.times):
        painted, useful = median(found.painted), median(found.useful)
        best = min(found.useful)
        print(f"{name:10} first paint {painted:6.0f} ms   of use {useful:6.0f} ms, at best {best:6.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
