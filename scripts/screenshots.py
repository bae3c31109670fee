"""Pictures of the console for the docs: the demo and a small story are served, and each page is photographed.

Writes `docs/images/*.png`. Needs Chromium and what the tests need (`make screenshots` installs the latter).
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
MOST: Final = 150_000  # bytes of a picture
CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
WIDE: Final = (1180, 820)
PHONE: Final = (390, 780)
DEMO_NOW: Final = "2024-01-03T00:05:00Z"
LATE: Final = "2024-01-01T03:00:00Z"
HOURLY: Final = "SELECT+count+FROM+requests+INTERVAL+1h+GROUP+BY+region"
CELL: Final = f"cell?q={HOURLY}&start={LATE}&end=2024-01-01T04:00:00Z&group=%7B%22region%22:%22eu-west%22%7D"
EVENT: Final = "13d18da06d1e32305ac122d858f477a2"  # of the late slice; the feed is seeded
# name, route, theme, size, and what is clicked before the picture is taken
DEMO: Final = (
    ("overview", "overview", "light", WIDE, ""),
    ("stream", f"stream/requests?at={LATE}", "light", WIDE, ""),
    ("stream-dark", f"stream/requests?at={LATE}", "dark", WIDE, "text=What changed since r1"),
    ("explore", f"explore?q={HOURLY}", "light", WIDE, ""),
    ("travel", f"explore?q={HOURLY}&as_of=2024-01-02T00:00:00Z", "light", (1180, 1120), ""),
    ("cell", CELL, "light", WIDE, ""),
    ("search", "search/requests?q=FILTER+status+%3E%3D+500", "light", WIDE, ""),
    ("trace", f"trace?id={EVENT}", "light", WIDE, ""),
    ("ledger", "ledger/requests?view=quarantine", "light", WIDE, "text=Show"),
    ("phone", "stream/requests", "dark", PHONE, ""),
)
STORY: Final = (
    ("heatmap", "explore?q=SELECT+bins+FROM+requests.latency+INTERVAL+1h", "dark", WIDE, ""),
    ("vectors", "vectors/embeddings/doc-1", "light", WIDE, ""),
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tidemill.mill import Mill

Shots = tuple[tuple[str, str, str, tuple[int, int], str], ...]


@contextmanager
def served(mill: Mill) -> Iterator[str]:
    """The address of a server on an open mill."""
    from tidemill.server import start

    stop, ready = threading.Event(), threading.Event()
    urls: list[str] = []

    def announce(started: start.Started) -> None:
        urls.append(started.url)
        ready.set()

    def work() -> None:
        try:
            start.serve(mill, stop, port=0, announce=announce)
        finally:
            ready.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield urls[0]
    finally:
        stop.set()
        thread.join()


def shoot(browser: Browser, url: str, shots: Shots) -> None:
    for name, route, theme, (width, height), click in shots:
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
        )
        page.goto(f"{url}/#/{route}")
        page.wait_for_selector("main h1")
        page.wait_for_load_state("load")
        page.wait_for_selector(".loading", state="detached")
        if click:
            page.locator(click).first.click()
        page.wait_for_timeout(1_200)  # charts are drawn
        file = IMAGES / f"{name}.png"
        file.write_bytes(smaller(page.screenshot()))
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size:,} bytes")
        page.close()


def smaller(png: bytes) -> bytes:
    """A picture that is too large gets fewer colours."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        out = io.BytesIO()
        picture.convert("RGB").save(out, "PNG", optimize=True)
        if out.tell() > MOST:
            out = io.BytesIO()
            picture.convert("RGB").quantize(255).save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> int:
    if CHROMIUM is None:
        print("there is no Chromium here: apt-get install chromium")
        return 1
    sys.path.insert(0, str(ROOT))
    from examples.demo.story import run_demo
    from playwright.sync_api import sync_playwright
    from tests.support import console_story

    from tidemill.mill import Mill
    from tidemill.model.time import parse_instant
    from tidemill.testing import FakeClock

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        folder = Path(made)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        run_demo(folder / "demo", console=Console(file=io.StringIO()), quick=True)
        with (
            Mill.open(folder / "demo", clock=FakeClock(parse_instant(DEMO_NOW))) as mill,
            served(mill) as url,
        ):
            shoot(browser, url, DEMO)
        (folder / "story").mkdir()
        (folder / "story" / "tidemill.yaml").write_text(console_story.PROJECT % {"gateway": ""})
        with Mill.open(folder / "story", clock=FakeClock(console_story.NOW)) as mill:
            console_story.tell(mill)
            with served(mill) as url:
                shoot(browser, url, STORY)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
