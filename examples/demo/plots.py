"""Charts as values: axes, bars, lines, bands and tooltips, as JSON that `report.js` has Bokeh draw.

Every text that comes in is escaped, and colours are names of the page's style.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Point = tuple[float, float]
Tick = tuple[float, str]

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
HEIGHT: Final = 280


def text(value: object) -> str:
    """Any value as text that is safe inside an element and inside a quoted attribute."""
    return escape(_CONTROL.sub("\ufffd", str(value)), quote=True)


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


class Chart:
    """A picture under way; `html` gives the element that it is drawn in."""

    def __init__(
        self,
        title: str,
        description: str,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        height: int = HEIGHT,
        log_x: bool = False,
        top_down: bool = False,
    ) -> None:
        if x[1] <= x[0] or y[1] <= y[0] or (log_x and x[0] <= 0):
            raise ValueError(f"no scale from {x} and {y}")
        self.title = title
        self.description = description
        self._y = y
        self._legend: Sequence[tuple[str, str]] = ()
        self._bars: list[Mapping[str, object]] = []
        self._lines: list[Mapping[str, object]] = []
        self._bands: list[Mapping[str, object]] = []
        self._notes: list[Mapping[str, object]] = []
        self._axes: dict[str, object] = {}
        self._spec: dict[str, object] = {
            "x": x, "y": y[::-1] if top_down else y, "height": height, "log": log_x,
        }  # fmt: skip

    # -- around the plot

    def x_axis(self, marks: Sequence[Tick], label: str = "") -> None:
        self._axes["below"] = {"ticks": marks, "label": label}

    def y_axis(self, marks: Sequence[Tick], label: str = "") -> None:
        self._axes["left"] = {"ticks": marks, "label": label}

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """(colour, what it stands for)."""
        self._legend = entries

    # -- in the plot

    def bar(
        self, x: tuple[float, float], y: tuple[float, float], colour: str, tip: str = "", *, gap: bool = False
    ) -> None:
        """A rectangle between values; with a `gap`, apart from its neighbours."""
        (left, right), (bottom, top) = sorted(x), sorted(y)
        if left < right and bottom < top:
            place = {"left": left, "right": right, "bottom": bottom, "top": top}
            self._bars.append({**place, "colour": colour, "tip": tip, "gap": gap})

    def line(self, points: Sequence[Point], colour: str, *, dashed: bool = False) -> None:
        x, y = [at for at, _ in points], [value for _, value in points]
        self._lines.append({"x": x, "y": y, "colour": colour, "dashed": dashed})

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
        x, low, high = [p[0] for p in points], [p[1] for p in points], [p[2] for p in points]
        self._bands.append({"x": x, "low": low, "high": high, "colour": colour})

    def hover(self, x: tuple[float, float], tip: str) -> None:
        """A column without ink that shows a tooltip."""
        self.bar(x, self._y, "", tip)

    def note(self, at: Point, words: str) -> None:
        """Words to the right of a point."""
        self._notes.append({"x": at[0], "y": at[1], "text": words})

    @property
    def spec(self) -> Mapping[str, object]:
        drawn = {"bars": self._bars, "lines": self._lines, "bands": self._bands, "notes": self._notes}
        return {**self._spec, **self._axes, **drawn}

    def html(self) -> str:
        keys = "".join(
            f'<span class="key key-{text(colour)}">{text(name)}</span>' for colour, name in self._legend
        )
        legend = f'<div class="legend">{keys}</div>' if keys else ""
        label = f"{self.title}. {self.description}"
        content = json.dumps(self.spec, separators=(",", ":"), allow_nan=False)
        data = f'aria-label="{text(label)}" data-plot="{text(content)}"'
        return f'{legend}<div class="plot" role="img" {data}></div>'


def row_bars(
    title: str,
    description: str,
    rows: Sequence[tuple[str, int, str]],
    *,
    log: bool = False,
    label: str = "",
) -> str:
    """One horizontal bar for each (label, value, colour), with its value beside it."""
    highest = max((value for _, value, _ in rows), default=0)
    marks = log_ticks(highest) if log else ticks(highest, 4)
    low, high = 1.0 if log else 0.0, marks[-1][0]
    room = high * 4 if log else high * 1.15  # for the value beside the longest bar
    y = (0, max(len(rows), 1))
    chart = Chart(
        title, description, x=(low, room), y=y, height=70 + 30 * len(rows), log_x=log, top_down=True
    )
    chart.x_axis(marks, label)
    chart.y_axis([(place + 0.5, words) for place, (words, _, _) in enumerate(rows)])
    for place, (words, value, colour) in enumerate(rows):
        if value > low:
            chart.bar((low, value), (place + 0.16, place + 0.84), colour, f"{words}: {value:,}")
        chart.note((max(value, low), place + 0.5), f"{value:,}")
    return chart.html()
