"""What closes a window: each rule by itself, their order, who goes first without memory, and custom ones."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.gateway import Triggers
from tidemill.ingest.gateway.triggers import (
    NONE_IS,
    OpenWindow,
    custom_triggers,
    has_bytes,
    has_count,
    has_lasted,
    has_pressure,
    known,
    large_from,
    trigger_of,
)
from tidemill.model.errors import ConfigError

WINDOW = OpenWindow(
    stream="clicks", source="http", since=1000, last=1500, now=2000, events=10, bytes=500, rate=100.0,
    pressure=0.3, held=6500,
)  # fmt: skip
YOUNG = 2001  # when its time will be over
OFF = Triggers(count=None, bytes=None, rate_change=None, memory=None)


def test_each_rule_holds_from_its_limit_on() -> None:
    assert [has_lasted(WINDOW, until) for until in (1999, 2000, 2001)] == [True, True, False]
    assert [has_count(WINDOW, limit) for limit in (9, 10, 11, None)] == [True, True, False, False]
    assert [has_bytes(WINDOW, limit) for limit in (499, 500, 501, None)] == [True, True, False, False]
    assert [has_pressure(WINDOW, mark, 1) for mark in (0.2, 0.3, 0.4, None)] == [True, True, False, False]
    assert [has_pressure(WINDOW, 0.3, large) for large in (6499, 6500, 6501)] == [True, True, False]


def test_a_window_that_no_rule_is_about_stays_open() -> None:
    assert trigger_of(WINDOW, Triggers(), closes_at=YOUNG) is None


@pytest.mark.parametrize(
    ("settings", "around", "expected"),
    [
        ({"count": 10}, {}, "count"),
        ({"bytes": 500}, {}, "bytes"),
        ({"memory": 0.3}, {}, "memory_pressure"),
        ({}, {"closes_at": 2000}, "time"),
        ({"rate_change": 0.5}, {"rate_changed": True}, "rate_change"),
        ({}, {"wanted_at": 2000}, "waiting"),
        ({}, {"wanted_at": 2001}, None),
        ({"memory": 0.3}, {"large_from": 6501}, None),
        ({"rate_change": None}, {"rate_changed": True}, None),
        ({"count": 10, "bytes": 500, "memory": 0.3}, {"closes_at": 2000}, "count"),
        ({"bytes": 500, "memory": 0.3}, {"closes_at": 2000}, "bytes"),
        ({"memory": 0.3}, {"closes_at": 2000}, "memory_pressure"),
        ({"rate_change": 0.5}, {"closes_at": 2000, "rate_changed": True, "wanted_at": 0}, "time"),
        ({"rate_change": 0.5}, {"rate_changed": True, "wanted_at": 0}, "rate_change"),
    ],
)
def test_why_it_is_closed_and_of_several_reasons_which(
    settings: dict[str, float | None], around: dict[str, int], expected: str | None
) -> None:
    triggers = OFF.model_copy(update=settings)
    assert trigger_of(WINDOW, triggers, **{"closes_at": YOUNG, **around}) == expected


# -- memory


def test_below_the_mark_no_window_is_large() -> None:
    assert large_from([100, 50], 0.79, 0.8, 100) == NONE_IS
    assert large_from([100, 50], 1.0, None, 100) == NONE_IS
    assert large_from([], 0.9, 0.8, 100) == NONE_IS


def test_the_largest_go_until_half_of_the_mark_is_left_open() -> None:
    assert large_from([10, 30, 20, 20], 0.8, 0.8, 100) == 20  # 80 are open, 40 may stay: 30 and a 20 go
    assert large_from([41], 0.8, 0.8, 100) == 41
    assert large_from([1] * 80, 0.8, 0.8, 100) == 1


def test_what_is_on_its_way_out_is_no_reason_to_close_more() -> None:
    """Most of memory is closed windows that have not landed: a slice for each request would not help them."""
    assert large_from([40], 0.95, 0.8, 100) == NONE_IS


@given(st.lists(st.integers(1, 1000), max_size=30), st.floats(0.1, 1), st.integers(1, 5000))
def test_those_that_stay_open_hold_half_of_the_mark_at_most(
    sizes: list[int], mark: float, allowed: int
) -> None:
    limit = large_from(sizes, 1.0, mark, allowed)
    assert sum(size for size in sizes if size < limit) <= mark * allowed / 2
    larger = sum(size for size in sizes if size <= limit)
    assert limit == NONE_IS or larger > mark * allowed / 2, "one more than needed was closed"


# -- custom ones


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that brings triggers of its own."""
    (tmp_path / "tidemill_tides.py").write_text(
        "def many(window):\n    return window.events > 5 and window.stream == 'clicks'\n\n"
        "def odd(window):\n    return window.events % 2 == 1\n\n"
        "def broken(window):\n    raise RuntimeError('no moon')\n\n"
        "MOON = 3\n"
    )
    info = tmp_path / "tidemill_tides-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidemill-tides\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tidemill.triggers]\n"
        "many = tidemill_tides:many\n"
        "odd = tidemill_tides:odd\n"
        "broken = tidemill_tides:broken\n"
        "absent = tidemill_tides:absent\n"
        "moon = tidemill_tides:MOON\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("tidemill_tides", None)


@pytest.mark.usefixtures("plugin")
def test_a_package_brings_triggers_by_entry_point() -> None:
    assert set(known()) >= {"absent", "broken", "many", "moon", "odd"}
    custom = custom_triggers(("odd", "many"))
    assert trigger_of(WINDOW, OFF, custom, closes_at=YOUNG) == "custom:many"
    assert (
        trigger_of(replace(WINDOW, events=7), OFF, custom, closes_at=YOUNG) == "custom:odd"
    )  # in the order of the file
    assert trigger_of(replace(WINDOW, events=4), OFF, custom, closes_at=YOUNG) is None
    assert trigger_of(WINDOW, OFF, custom, closes_at=0) == "time"


@pytest.mark.usefixtures("plugin")
def test_one_that_fails_is_logged_once_and_closes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    custom = custom_triggers(("broken", "many"))
    with caplog.at_level(logging.ERROR):
        assert trigger_of(WINDOW, OFF, custom, closes_at=YOUNG) == "custom:many"
        assert trigger_of(WINDOW, OFF, custom[:1], closes_at=YOUNG) is None
    assert [record.getMessage() for record in caplog.records] == [
        "trigger broken failed; it closes nothing when it does"
    ]
    assert "no moon" in caplog.text


@pytest.mark.usefixtures("plugin")
def test_an_unknown_trigger_names_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        custom_triggers(("many", "manny"))
    assert caught.value.message == "there is no trigger 'manny'"
    assert caught.value.hint.startswith("did you mean many? triggers: ")
    assert "many, moon, odd" in caught.value.hint
    assert caught.value.where == "gateway.triggers.custom"


@pytest.mark.usefixtures("plugin")
def test_a_trigger_that_cannot_be_used_says_why() -> None:
    with pytest.raises(ConfigError, match="'absent' cannot be loaded from tidemill_tides:absent") as caught:
        custom_triggers(("absent",))
    assert caught.value.hint == "repair or uninstall the package that provides it, or leave it out"
    with pytest.raises(ConfigError, match="tidemill_tides:MOON is not a function") as caught:
        custom_triggers(("moon",))
    assert "a function of an OpenWindow" in caught.value.hint


def test_a_trigger_that_two_packages_provide_is_refused(plugin: Path) -> None:
    other = plugin / "other_tides-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-tides\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[tidemill.triggers]\nmany = other_tides:many\n")
    with pytest.raises(ConfigError, match="'many' is provided more than once") as caught:
        custom_triggers(("many",))
    assert caught.value.hint == "uninstall all but one of other_tides:many, tidemill_tides:many"


def test_without_names_nothing_is_looked_up_and_without_packages_there_are_none() -> None:
    assert custom_triggers(()) == ()
    with pytest.raises(ConfigError) as caught:
        custom_triggers(("many",))
    assert caught.value.hint == "there are no triggers"
