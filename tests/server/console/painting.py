"""What is painted on the canvas of the timeline: pixels, read back where time and height say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

Colour = list[int]  # red, green, blue
WINDOWS: Final = 67  # heights in the canvas: the middle of the blocks,
GAPS: Final = 112  # of the hatching beneath them,
SLICES: Final = 128  # of the first lane of slices,
LANE: Final = 11  # which are so high
_PIXELS: Final = """(spots) => {
    const it = document.querySelector('tm-timeline'), { canvas, view } = it;
    it.paint();
    const pen = canvas.getContext('2d'), dense = canvas.width / canvas.clientWidth;
    const x = (at) => Math.round((at - view[0]) / (view[1] - view[0]) * canvas.clientWidth);
    return spots.map(([at, y]) => [...pen.getImageData(x(at) * dense, y * dense, 1, 1).data.slice(0, 3)]);
}"""
_TOKENS: Final = """(names) => names.map((name) => {
    const probe = document.body.appendChild(document.createElement('span'));
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    probe.remove();
    return found;
})"""


def painted(page: Page, spots: Sequence[tuple[int, int]]) -> list[Colour]:
    """The colour at each instant and height."""
    found: list[Colour] = page.evaluate(_PIXELS, list(spots))
    return found


def colours(page: Page, *names: str) -> list[Colour]:
    """What names of colours stand for in the theme of now."""
    found: list[Colour] = page.evaluate(_TOKENS, list(names))
    return found
