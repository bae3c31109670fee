"""Small charts as SVG text: axes, ticks, bars, lines, bands, tooltips.

Every text that comes in is escaped, colours are names of CSS classes, and nothing refers to anything outside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Point = tuple[float, float]
Tick = tuple[float, str]

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_CHAR: Final = 6.2  # width of a character of the labels, about


def text(value: object) -> str:
    """Any value as text that is safe inside an element and inside a quoted attribute."""
    return escape(_CONTROL.sub("\ufffd", str(value)), quote=True)


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no coordinate")
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


def ticks(high: float, count: int = 5) -> list[Tick]:
    """Round values 1, 2 or 5 times a power of ten from 0 up to the first at or above `high`."""
    if high <= 0:
        return [(0.0, "0"), (1.0, "1")]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(step, 1.0)  # what is counted is whole
    last = math.ceil(high / step - 1e-9)
    return [(i * step, f"{i * step:,.0f}") for i in range(last + 1)]


def log_ticks(high: float) -> list[Tick]:
    """Powers of ten from 1 up to the first at or above `high`: 1, 10, 100, 1k …"""
    last = max(1, math.ceil(math.log10(max(high, 1)) - 1e-9))
    return [(10.0**i, f"{10 ** (i % 3)}{'kMGT'[i // 3 - 1] if i >= 3 else ''}") for i in range(last + 1)]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `end`, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __post_init__(self) -> None:
        if self.high <= self.low or (self.log and self.low <= 0):
            raise ValueError(f"no scale from {self.low} to {self.high}")

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        share = min(1.0, max(0.0, (at - low) / (high - low)))
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Box:
    """The size of a chart and the margins around what is plotted."""

    width: float = 880
    height: float = 280
    top: float = 34
    right: float = 16
    bottom: float = 44
    left: float = 56


class Chart:
    """A picture under way; `svg` gives it as text. `name` must be unique in its page."""

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        box: Box | None = None,
        log_x: bool = False,
        top_down: bool = False,
    ) -> None:
        self.name = _named(name)
        self.title = title
        self.description = description
        self.box = box or Box()
        self.x = Scale(*x, self.box.left, self.box.width - self.box.right, log=log_x)
        bottom, top = self.box.height - self.box.bottom, self.box.top
        self.y = Scale(*y, top, bottom) if top_down else Scale(*y, bottom, top)
        self._parts: list[str] = []

    # -- around the plot

    def x_axis(self, marks: Sequence[Tick], label: str = "", *, grid: bool = False) -> None:
        bottom = self.box.height - self.box.bottom
        self._line(self.box.left, bottom, self.box.width - self.box.right, bottom, "axis")
        for value, name in marks:
            at = self.x(value)
            self._line(at, self.box.top if grid else bottom, at, bottom + 5, "grid" if grid else "axis")
            self._text(at, bottom + 18, name, "tick middle")
        if label:
            middle = (self.box.left + self.box.width - self.box.right) / 2
            self._text(middle, self.box.height - 6, label, "label middle")

    def y_axis(self, marks: Sequence[Tick], label: str = "", *, grid: bool = True) -> None:
        for value, name in marks:
            at = self.y(value)
            if grid:
                self._line(self.box.left, at, self.box.width - self.box.right, at, "grid")
            self._text(self.box.left - 8, at + 4, name, "tick end")
        if label:
            self._text(2, 14, label, "label")

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """(colour, what it stands for), from the right edge at the top."""
        at = self.box.width - self.box.right - sum(22 + _CHAR * len(name) + 12 for _, name in entries)
        for colour, name in entries:
            self._parts.append(_rect(at, 5, 12, 12, f"fill-{_named(colour)}", "", rounded=2))
            self._text(at + 18, 15, name, "tick")
            at += 22 + _CHAR * len(name) + 12

    # -- in the plot

    def bar(
        self, x: tuple[float, float], y: tuple[float, float], colour: str, tip: str = "", *, gap: float = 0
    ) -> None:
        """A rectangle between values; `gap` pixels are left free at its right and below it."""
        left, right = sorted((self.x(x[0]), self.x(x[1])))
        top, bottom = sorted((self.y(y[0]), self.y(y[1])))
        if right <= left or bottom <= top:
            return
        width, height = max(right - left - gap, 0.5), max(bottom - top, 0.5)
        self._parts.append(_rect(left, top, width, height, f"fill-{_named(colour)}", tip))

    def line(self, points: Sequence[Point], colour: str, *, dashed: bool = False) -> None:
        if points:
            path = " ".join(f"{number(self.x(x))},{number(self.y(y))}" for x, y in points)
            style = f"line line-{_named(colour)}" + (" dashed" if dashed else "")
            self._parts.append(f'<polyline class="{style}" points="{path}"/>')

    def steps(self, points: Sequence[Point], colour: str, *, dashed: bool = False) -> None:
        """A line that holds each value until the next point."""
        corners: list[Point] = []
        for x, y in points:
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, y))
        self.line(corners, colour, dashed=dashed)

    def band(self, points: Sequence[tuple[float, float, float]], colour: str) -> None:
        """The area between a lower and an upper value at each x."""
        if points:
            edge = [(x, low) for x, low, _ in points] + [(x, high) for x, _, high in reversed(points)]
            path = " ".join(f"{number(self.x(x))},{number(self.y(y))}" for x, y in edge)
            self._parts.append(f'<polygon class="band fill-{_named(colour)}" points="{path}"/>')

    def hover(self, x: tuple[float, float], tip: str) -> None:
        """A column without ink that shows a tooltip."""
        left, right = sorted((self.x(x[0]), self.x(x[1])))
        height = self.box.height - self.box.bottom - self.box.top
        self._parts.append(_rect(left, self.box.top, right - left, height, "hover", tip))

    def note(self, at: Point, words: str, *, dx: float = 0, dy: float = 0, style: str = "tick") -> None:
        self._text(self.x(at[0]) + dx, self.y(at[1]) + dy, words, style)

    def svg(self) -> str:
        size = f"0 0 {number(self.box.width)} {number(self.box.height)}"
        return (
            f'<svg role="img" viewBox="{size}" aria-labelledby="{self.name}-title {self.name}-desc">'
            f'<title id="{self.name}-title">{text(self.title)}</title>'
            f'<desc id="{self.name}-desc">{text(self.description)}</desc>'
            f"{''.join(self._parts)}</svg>"
        )

    def _line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        ends = " ".join(
            f'{key}="{number(value)}"'
            for key, value in zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
        )
        self._parts.append(f'<line class="{style}" {ends}/>')

    def _text(self, x: float, y: float, words: str, style: str) -> None:
        self._parts.append(
            f'<text class="{text(style)}" x="{number(x)}" y="{number(y)}">{text(words)}</text>'
        )


def row_bars(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[str, int, str]],
    *,
    log: bool = False,
    label: str = "",
    width: float = 430,
) -> str:
    """One horizontal bar for each (label, value, colour), with its value beside it."""
    highest = max((value for _, value, _ in rows), default=0)
    marks = log_ticks(highest) if log else ticks(highest, 4)
    side = 24 + _CHAR * max((len(words) for words, _, _ in rows), default=0)
    box = Box(width=width, height=60 + 30 * len(rows), top=8, right=66, left=side)
    low = 1.0 if log else 0.0
    chart = Chart(
        name,
        title,
        description,
        x=(low, marks[-1][0]),
        y=(0, max(len(rows), 1)),
        box=box,
        log_x=log,
        top_down=True,
    )
    chart.x_axis(marks, label, grid=True)
    for place, (words, value, colour) in enumerate(rows):
        chart.note((low, place + 0.5), words, dx=-8, dy=4, style="tick end")
        if value > 0:
            chart.bar((low, max(value, low)), (place + 0.16, place + 0.84), colour, f"{words}: {value:,}")
        chart.note((max(value, low), place + 0.5), f"{value:,}", dx=6, dy=4, style="value")
    return chart.svg()


def _rect(
    x: float, y: float, width: float, height: float, style: str, tip: str, *, rounded: float = 0
) -> str:
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    corner = f' rx="{number(rounded)}"' if rounded else ""
    inner = f"<title>{text(tip)}</title>" if tip else ""
    return f'<rect class="{style}" {place}{corner}>{inner}</rect>'


def _named(name: str) -> str:
    """Ids and colours go into attributes as they are, so they must be plain names."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a plain name")
    return name
