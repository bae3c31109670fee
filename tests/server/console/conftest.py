"""One Chromium for each module of tests, and a server on the warehouse of the story."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.server.conftest import Served, running, write
from tests.support import console_story as story

from tidemill.mill import Mill
from tidemill.model.time import MINUTE
from tidemill.testing import FakeClock, SteppableClock

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
HARMLESS = ("Failed to load resource",)  # a refusal, which the page shows


class Watched:
    """A page, and what must not happen on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._requested)

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)

    def go(self, route: str) -> Page:
        """Open a page of the console, and wait until it is there in place of the one before."""
        address = f"{self.url}/#/{route}"
        if self.page.url == address:
            self.page.reload()
        else:
            self.page.evaluate("document.querySelector('main > *')?.classList.add('left')")
            self.page.goto(address)
        self.page.wait_for_selector("main > :not(.left) h1")
        return self.page

    def check(self) -> None:
        """No error in the console, and nothing asked from elsewhere."""
        assert [one for one in self.errors if not one.startswith(HARMLESS)] == []
        assert [one for one in self.requests if not one.startswith((f"{self.url}/", "blob:", "data:"))] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with the module: while it is there, Playwright has an event loop of its own in this thread, and
    no other test could start one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make test` installs it")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield made
        made.close()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the story, told once: each server that tells it has a copy."""
    folder = write(tmp_path_factory.mktemp("written") / "project", text=story.PROJECT)
    with Mill.open(folder, clock=FakeClock(story.NOW)) as mill:
        story.tell(mill)
    return folder


@pytest.fixture(scope="session")
def told(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on the whole story, which tests only look at."""
    with telling(written, tmp_path_factory.mktemp("told")) as served:
        yield served


@contextmanager
def telling(written: Path, folder: Path) -> Iterator[Served]:
    """A server on a copy of the story, a minute after its end."""
    clock = SteppableClock(story.NOW + MINUTE, lambda: time.monotonic_ns() // 1000)
    copied = shutil.copytree(written, folder / "project")
    with running(copied, clock=clock) as served:
        yield served


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    made.set_default_timeout(15_000)
    yield made
    made.close()


@pytest.fixture
def console(context: BrowserContext, told: Served) -> Iterator[Watched]:
    """A page of its own, on the story; at its end nothing must have gone wrong."""
    watched = Watched(context.new_page(), told.url)
    yield watched
    watched.check()
