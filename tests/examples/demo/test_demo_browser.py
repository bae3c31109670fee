"""The demo in a real browser: its report, which asks for nothing, and the console on its warehouse."""

from __future__ import annotations

import re
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.server.conftest import Served, running
from tests.server.console.conftest import Watched
from tests.support.patience import PATIENCE

from examples.demo import DemoResult
from tidemill.model.time import MINUTE, format_instant
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

ROOT = Path(__file__).resolve().parents[3]

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: install the package chromium to run this"),
]


def browse(profile: Path, page: Path, *flags: str) -> str:
    assert BROWSER is not None
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
    done = subprocess.run(
        [
            BROWSER,
            *quiet,
            f"--user-data-dir={profile}",
            "--hide-scrollbars",
            *flags,
            page.absolute().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout


def different_rows(png: bytes) -> int:
    """How many lines of the picture differ from each other; a blank one has next to none."""
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    size = 1 + width * depth // 8 * {2: 3, 6: 4}[colour]
    pixels = zlib.decompress(data)
    return len({pixels[row * size : (row + 1) * size] for row in range(height)})


def test_the_dom_holds_the_charts_and_the_numbers(demo: DemoResult, tmp_path: Path) -> None:
    dom = browse(tmp_path / "profile", demo.report, "--virtual-time-budget=20000", "--dump-dom")
    assert dom.count('data-drawn="1"') == 9
    assert f"<b>{demo.facts.total.records:,}</b>" in dom
    assert "Everything equals its recomputation." in dom
    assert dom.count("<table>") == 9


def test_the_page_is_drawn_in_light_and_in_dark(demo: DemoResult, tmp_path: Path) -> None:
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"
    size = ("--window-size=1000,1600", "--virtual-time-budget=20000")
    browse(tmp_path / "profile", demo.report, *size, f"--screenshot={light}")
    scheme = "--blink-settings=preferredColorScheme=0"
    browse(tmp_path / "profile", demo.report, *size, scheme, f"--screenshot={dark}")
    assert different_rows(light.read_bytes()) > 300
    assert different_rows(dark.read_bytes()) > 300
    assert light.read_bytes() != dark.read_bytes()


@pytest.fixture(scope="module")
def served(demo_run: tuple[DemoResult, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The console on a copy of the warehouse that the demo leaves, five minutes after its end."""
    folder = shutil.copytree(demo_run[0].folder, tmp_path_factory.mktemp("served") / "demo")
    with running(folder, clock=FakeClock(demo_run[0].facts.span.end + 5 * MINUTE)) as made:
        yield made


def test_each_page_of_the_console_shows_the_demo(
    demo: DemoResult, served: Served, context: BrowserContext
) -> None:
    console = Watched(context.new_page(), served.url)
    total, late = demo.facts.total, format_instant(demo.facts.late_span.start)
    text = console.go("overview").locator("article[aria-label=requests]").inner_text()
    for outcome in ("accepted", "duplicate", "conflict", "rejected", "late"):
        assert f"{getattr(total, outcome):,} {outcome}" in text
    page = console.go(f"stream/requests?at={late}")
    page.locator("section[aria-label=Window]").get_by_text("revision 2").wait_for()
    page = console.go("explore?q=SELECT+count+FROM+requests+INTERVAL+1h")
    page.wait_for_selector("tm-chart[data-drawn]")
    drawn = page.evaluate("[...document.querySelector('tm-chart').drawn[0].y].filter(one => !isNaN(one))")
    assert sum(drawn) == total.accepted
    page = console.go("cell?q=SELECT+count+FROM+requests")
    page.locator("section[aria-label=Events]").get_by_text(f"{total.accepted:,} in all").wait_for()
    page = console.go("search/requests")
    page.locator("section[aria-label='Events found']").get_by_text(f"{total.accepted:,} found").wait_for()
    page.locator("section[aria-label='Events found'] tbody a").first.click()
    page.locator("section[aria-label=Event] .dot-accepted").wait_for()
    page = console.go("ledger/requests?outcome=late")
    page.locator("tbody tr", has_text=demo.facts.late.entry.slice.name).first.wait_for()
    page = console.go("ledger/requests?view=quarantine&outcome=conflict")
    page.locator("tbody tr .dot-conflict").first.wait_for()
    page = console.go("vectors")
    page.get_by_text("No stream keeps vectors.").wait_for()
    console.check()


def test_the_demo_ends_with_the_address_of_the_console_when_it_is_to_serve(
    demo: DemoResult, tmp_path: Path
) -> None:
    folder = shutil.copytree(demo.folder, tmp_path / "demo")
    code = (
        "import sys; from pathlib import Path; from rich.console import Console; "
        "from examples.demo.__main__ import serve; serve(Path(sys.argv[1]), Console(width=160))"
    )
    run = subprocess.Popen(
        [sys.executable, "-u", "-c", code, folder], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert run.stdout is not None
    try:
        said = next(line for line in run.stdout if line.strip())
        found = re.fullmatch(
            r"The console is at (http://127\.0\.0\.1:\d+/) until you press Ctrl\+C\.\n", said
        )
        assert found is not None, said
        assert httpx.get(found[1], timeout=PATIENCE).text.startswith("<!doctype html>")
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE)
    assert run.returncode == 0


def test_make_demo_serves_when_it_is_asked_to() -> None:
    done = subprocess.run(
        ["make", "-n", "demo", "SERVE=1"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m examples.demo --serve" in done.stdout
