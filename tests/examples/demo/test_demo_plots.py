"""The charts: round ticks, values where they belong, and nothing that data could break out of."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from examples.demo.plots import Chart, log_ticks, row_bars, text, ticks


class Plot(HTMLParser):
    """The elements of a chart, and what it has drawn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.spec: dict = {}
        self.label = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        if "data-plot" in given:
            self.spec, self.label = json.loads(given["data-plot"] or ""), given["aria-label"] or ""


def chart(**more: object) -> Chart:
    return Chart("Title", "Words", x=(0, 100), y=(0, 50), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("high", "values"),
    [
        (0, [0, 1]),
        (3, [0, 1, 2, 3]),
        (7, [0, 2, 4, 6, 8]),
        (40, [0, 10, 20, 30, 40]),
        (41, [0, 10, 20, 30, 40, 50]),
        (12_500, [0, 5_000, 10_000, 15_000]),
    ],
)
def test_ticks_are_round_and_reach_the_highest_value(high: float, values: list[float]) -> None:
    assert [value for value, _ in ticks(high)] == values


def test_tick_labels_group_thousands() -> None:
    assert ticks(12_500)[-1][1] == "15,000"


def test_log_ticks_are_powers_of_ten_in_short() -> None:
    assert log_ticks(306_210) == [
        (1, "1"), (10, "10"), (100, "100"), (1_000, "1k"), (10_000, "10k"), (100_000, "100k"), (1e6, "1M"),
    ]  # fmt: skip
    assert log_ticks(0) == [(1, "1"), (10, "10")]


@pytest.mark.parametrize(("x", "log"), [((1, 1), False), ((2, 1), False), ((0, 10), True)])
def test_a_scale_without_extent_is_refused(x: tuple[float, float], log: bool) -> None:
    with pytest.raises(ValueError, match="no scale"):
        Chart("Title", "Words", x=x, y=(0, 1), log_x=log)


def test_text_is_safe_in_elements_and_attributes() -> None:
    assert text('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    assert text("a\x00b\ud800") == "a\ufffdb\ufffd"


def test_bars_lie_between_their_values_and_empty_ones_are_left_out() -> None:
    picture = chart()
    picture.bar((20, 10), (0, 5), "late", "a tip")
    picture.bar((1, 1), (0, 5), "late")
    picture.hover((0, 10), "words")
    first, hover = Plot(picture.html()).spec["bars"]
    assert (first["left"], first["right"], first["bottom"], first["top"]) == (10, 20, 0, 5)
    assert (first["colour"], first["tip"]) == ("late", "a tip")
    assert (hover["bottom"], hover["top"], hover["colour"]) == (0, 50, "")


def test_steps_hold_each_value_until_the_next() -> None:
    picture = chart()
    picture.steps([(0, 1), (5, 3)], "mark", dashed=True)
    (line,) = Plot(picture.html()).spec["lines"]
    assert (line["x"], line["y"], line["dashed"]) == ([0, 5, 5], [1, 1, 3], True)


def test_whatever_comes_in_stays_text() -> None:
    evil = "</div><script>alert('1')</script>\x00\""
    picture = Chart(evil, evil, x=(0, 1), y=(0, 1))
    picture.x_axis([(0, evil)], evil)
    picture.bar((0, 1), (0, 1), "late", evil)
    picture.note((0, 0), evil)
    picture.legend([("late", evil)])
    found = Plot(picture.html())
    assert found.tags == ["div", "span", "div"]
    assert found.spec["bars"][0]["tip"] == evil
    assert found.label.startswith("</div><script>")


def test_rows_are_bars_from_the_top_with_their_values_beside_them() -> None:
    found = Plot(row_bars("Title", "Words", [("a", 10, "late"), ("b", 0, "late")])).spec
    assert found["y"] == [2, 0]
    assert [(bar["left"], bar["right"]) for bar in found["bars"]] == [(0, 10)]
    assert [(note["x"], note["text"]) for note in found["notes"]] == [(10, "10"), (0, "0")]
    assert [name for _, name in found["left"]["ticks"]] == ["a", "b"]
