"""The report in a real browser: it renders, in light and in dark, and asks for nothing."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from examples.demo import DemoResult

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
        timeout=120,
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
