"""The charts: round ticks, values where they belong, and nothing that data could break out of."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from examples.demo.svg import Box, Chart, Scale, log_ticks, number, row_bars, text, ticks

PLAIN = Box(width=120, height=110, top=10, right=10, bottom=0, left=10)


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314 - made here


def chart(**more: object) -> Chart:
    """One pixel for each unit: x from 10 on, y from 110 upward."""
    return Chart("name", "Title", "Words", x=(0, 100), y=(0, 100), box=PLAIN, **more)  # type: ignore[arg-type]


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


def test_a_scale_maps_its_ends_and_keeps_what_is_outside_at_them() -> None:
    scale = Scale(0, 10, 100, 200)
    assert [scale(value) for value in (0, 2.5, 10, -5, 15)] == [100, 125, 200, 100, 200]
    assert Scale(1, 1_000, 0, 30, log=True)(10) == pytest.approx(10)
    assert Scale(1, 1_000, 0, 30, log=True)(0) == 0


@pytest.mark.parametrize("ends", [(1, 1, False), (2, 1, False), (0, 10, True)])
def test_a_scale_without_extent_is_refused(ends: tuple[float, float, bool]) -> None:
    with pytest.raises(ValueError, match="no scale"):
        Scale(ends[0], ends[1], 0, 1, log=ends[2])


def test_numbers_are_short_and_finite() -> None:
    assert [number(value) for value in (1.0, 1.005, 0.333333, -0.0001, 12.5)] == [
        "1",
        "1",
        "0.33",
        "0",
        "12.5",
    ]
    with pytest.raises(ValueError, match="no coordinate"):
        number(math.nan)


def test_text_is_safe_in_elements_and_attributes() -> None:
    assert text('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    assert text("a\x00b\x1bc\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert text(12) == "12"


def test_a_bar_stands_where_its_values_say() -> None:
    picture = chart()
    picture.bar((20, 30), (0, 40), "late", "from 20 to 30: 40")
    (bar,) = parsed(picture.svg()).iter("rect")
    assert bar.attrib == {"class": "fill-late", "x": "30", "y": "70", "width": "10", "height": "40"}
    assert bar.findtext("title") == "from 20 to 30: 40"


def test_a_bar_of_nothing_is_not_drawn() -> None:
    picture = chart()
    picture.bar((20, 30), (5, 5), "late", "nothing")
    assert list(parsed(picture.svg()).iter("rect")) == []


def test_lines_steps_and_bands_go_through_their_points() -> None:
    picture = chart()
    picture.line([(0, 0), (50, 100)], "mark")
    picture.steps([(0, 10), (10, 20)], "mark", dashed=True)
    picture.band([(0, 10, 20), (10, 30, 40)], "late")
    root = parsed(picture.svg())
    assert [line.attrib["points"] for line in root.iter("polyline")] == [
        "10,110 60,10",
        "10,100 20,100 20,90",
    ]
    assert [area.attrib["points"] for area in root.iter("polygon")] == ["10,100 20,80 20,70 10,90"]


def test_a_chart_without_points_has_no_line() -> None:
    picture = chart()
    picture.line([], "mark")
    picture.steps([], "mark")
    picture.band([], "mark")
    assert [child.tag for child in parsed(picture.svg())] == ["title", "desc"]


def test_a_chart_names_and_describes_itself_to_those_who_do_not_see_it() -> None:
    root = parsed(chart().svg())
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"] == "name-title name-desc"
    assert (root.findtext("title"), root.findtext("desc")) == ("Title", "Words")


def test_whatever_the_words_are_the_picture_stays_whole() -> None:
    evil = "</title><script>alert('1')</script>\x00\""
    picture = Chart("n", evil, evil, x=(0, 1), y=(0, 1))
    picture.x_axis([(0, evil)], evil, grid=True)
    picture.y_axis([(1, evil)], evil)
    picture.legend([("late", evil)])
    picture.bar((0, 1), (0, 1), "late", evil)
    picture.hover((0, 1), evil)
    picture.note((0, 0), evil)
    root = parsed(picture.svg())
    assert {element.tag for element in root.iter()} == {"svg", "title", "desc", "line", "text", "rect"}
    assert root.findtext("title") == evil.replace("\x00", "\ufffd")


@pytest.mark.parametrize("name", ["", "a b", 'a"', "A", "<"])
def test_names_and_colours_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        Chart(name, "t", "d", x=(0, 1), y=(0, 1))
    with pytest.raises(ValueError, match="plain name"):
        chart().bar((0, 1), (0, 1), name)


def test_row_bars_show_each_value_beside_its_bar() -> None:
    root = parsed(row_bars("rows", "T", "D", [("many", 1_000, "accepted"), ("none", 0, "late")], log=True))
    assert [bar.findtext("title") for bar in root.iter("rect")] == ["many: 1,000"]
    assert {"many", "1,000", "none", "0"} <= {words.text for words in root.iter("text")}
