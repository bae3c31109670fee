"""The registry of event-time types: exact values, refused values, third parties."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.eventtime import iso8601_in, register, registered, registry, resolve
from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, format_instant, parse_instant

BUILT_IN = ("iso8601", "unixtimestamp_ms", "unixtimestamp_ns", "unixtimestamp_s", "unixtimestamp_us")
UNIX = {"unixtimestamp_s": 6, "unixtimestamp_ms": 3, "unixtimestamp_us": 0, "unixtimestamp_ns": -3}


@pytest.fixture(autouse=True)
def _registry_as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_parsers", dict(registry._parsers))


def test_v28_one_as_unixtimestamp_s_is_one_second() -> None:
    assert resolve("unixtimestamp_s")(1) == 1_000_000


def test_v28_1500_as_unixtimestamp_ms_is_one_and_a_half_seconds() -> None:
    assert resolve("unixtimestamp_ms")(1500) == 1_500_000


def test_v28_unknown_type_lists_the_registered_types() -> None:
    with pytest.raises(InputError) as caught:
        resolve("missing")
    assert "'missing'" in caught.value.message
    assert caught.value.hint == f"types: {', '.join(BUILT_IN)}"
    assert registered() == BUILT_IN


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("unixtimestamp_s", 0, 0),
        ("unixtimestamp_s", -1, -1_000_000),
        ("unixtimestamp_s", Decimal("1.5"), 1_500_000),
        ("unixtimestamp_s", Decimal("1.0000019"), 1_000_001),
        ("unixtimestamp_s", Decimal("-0.0000001"), -1),
        ("unixtimestamp_s", Decimal("1e3"), 1_000_000_000),
        ("unixtimestamp_s", Decimal("1." + "0" * 5000 + "1"), 1_000_000),
        ("unixtimestamp_s", Decimal("-1e-999999"), -1),
        ("unixtimestamp_s", Decimal("0e999999"), 0),
        ("unixtimestamp_s", "1704106800", 1_704_106_800_000_000),
        ("unixtimestamp_s", "1704106800.25", 1_704_106_800_250_000),
        ("unixtimestamp_s", "+01.5", 1_500_000),
        ("unixtimestamp_ms", "-1500", -1_500_000),
        ("unixtimestamp_ms", "-0.0001", -1),
        ("unixtimestamp_ms", Decimal("1704106800123.4567"), 1_704_106_800_123_456),
        ("unixtimestamp_us", 1_704_106_800_123_456, 1_704_106_800_123_456),
        ("unixtimestamp_us", Decimal("7.9"), 7),
        ("unixtimestamp_ns", 1_999, 1),
        ("unixtimestamp_ns", -1, -1),
        ("unixtimestamp_ns", Decimal("1999.9"), 1),
        ("iso8601", "1970-01-01T00:00:01.5Z", 1_500_000),
        ("iso8601", "1970-01-01T01:00:00+01:00", 0),
        ("iso8601", "1970-01-01T00:00:00.1234567Z", 123_456),
        ("iso8601", "1970-01-01T00:00:00.123456789012345Z", 123_456),
    ],
)
def test_value_becomes_exact_microseconds_rounded_down(name: str, value: object, expected: int) -> None:
    assert resolve(name)(value) == expected


@pytest.mark.parametrize("name", UNIX)
@pytest.mark.parametrize(
    "value", [True, False, None, 1.5, [], {}, "", " 1", "1 ", "1e3", "+-1", "+", "0x10", "1.", ".5", "abc",
              "٣", "1970-01-01T00:00:00Z", Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")],
)  # fmt: skip
def test_unix_timestamp_refuses_what_is_not_a_number(name: str, value: object) -> None:
    with pytest.raises(ValueError):
        resolve(name)(value)


@pytest.mark.parametrize(
    "value", [0, Decimal(1), True, None, [], {}, "", "1704106800", "2024-13-01T00:00:00Z", "2024-02-30",
              "2024-01-01T25:00:00Z", "10000-01-01T00:00:00Z", "2024-01-01T00:00:00+25:00", "٢٠٢٤-01-01"],
)  # fmt: skip
def test_iso8601_refuses_what_is_not_an_instant_in_text(value: object) -> None:
    with pytest.raises(ValueError):
        resolve("iso8601")(value)


def test_an_error_names_a_type_as_json_does() -> None:
    for number in (5, Decimal("5.5")):
        with pytest.raises(ValueError, match="not a number"):
            resolve("iso8601")(number)


def test_a_time_without_an_offset_is_what_a_clock_of_the_zone_showed() -> None:
    with pytest.raises(ValueError, match=r"does not say its offset from UTC; .*event_time\.timezone"):
        resolve("iso8601")("2024-07-01T12:00:00")
    paris = iso8601_in("Europe/Paris")
    assert paris("2024-07-01T12:00:00") == parse_instant("2024-07-01T10:00:00Z")
    assert paris("2024-10-27T02:30:00") == parse_instant("2024-10-27T00:30:00Z")  # the first of the two
    assert paris("2024-07-01T12:00:00Z") == parse_instant("2024-07-01T12:00:00Z")
    with pytest.raises(ValueError, match="put forward over it"):
        paris("2024-03-31T02:30:00")


@pytest.mark.parametrize(("name", "exponent"), UNIX.items())
def test_years_1_to_9999_are_the_range_of_every_type(name: str, exponent: int) -> None:
    parse = resolve(name)
    first, end = (Decimal(bound).scaleb(-exponent) for bound in (MIN_INSTANT, MAX_INSTANT))
    assert parse(first) == MIN_INSTANT
    assert parse(end - 1) < MAX_INSTANT
    for outside in (end, int(end), str(int(end)), first - 1, Decimal("1e999999"), 10**5000, "9" * 5000):
        with pytest.raises(ValueError, match="outside the years 1 to 9999"):
            parse(outside)
    with pytest.raises(ValueError, match="outside the years 1 to 9999"):
        resolve("iso8601")("0001-01-01T00:00:00+00:01")


@given(st.integers(MIN_INSTANT, MAX_INSTANT - 1))
def test_all_types_agree_on_every_instant(us: int) -> None:
    for name, exponent in UNIX.items():
        parse = resolve(name)
        exact = Decimal(us).scaleb(-exponent)
        assert parse(exact) == us
        assert parse(f"{exact:f}") == us
    assert resolve("unixtimestamp_us")(us) == us
    assert resolve("unixtimestamp_ns")(us * 1000 + 999) == us
    assert resolve("iso8601")(format_instant(us)) == us


def test_register_adds_a_type_and_refuses_to_replace_another_parser() -> None:
    def ticks(value: object) -> int:
        return int(str(value)) // 10

    register("dotnet_ticks", ticks)
    register("dotnet_ticks", ticks)
    assert resolve("dotnet_ticks")(15) == 1
    assert "dotnet_ticks" in registered()
    for taken in ("dotnet_ticks", "iso8601"):
        with pytest.raises(InputError, match="registered already"):
            register(taken, lambda _: 0)
    assert resolve("dotnet_ticks") is ticks


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that brings event-time types of its own."""
    (tmp_path / "tidemill_swatch.py").write_text(
        "def parse(value):\n    return int(value) * 86_400_000\n\nNOT_A_FUNCTION = 3\n"
    )
    info = tmp_path / "tidemill_swatch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidemill-swatch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tidemill.eventtime]\n"
        "swatch = tidemill_swatch:parse\n"
        "broken = tidemill_swatch:absent\n"
        "constant = tidemill_swatch:NOT_A_FUNCTION\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("tidemill_swatch", None)


@pytest.mark.usefixtures("plugin")
def test_entry_points_of_installed_packages_are_types_too() -> None:
    assert {"swatch", "broken", "constant"} < set(registered())
    assert "tidemill_swatch" not in sys.modules, "loaded before it was asked for"
    assert resolve("swatch")("2") == 172_800_000


@pytest.mark.usefixtures("plugin")
def test_entry_point_that_cannot_be_used_says_which() -> None:
    with pytest.raises(InputError, match="'broken' cannot be loaded from tidemill_swatch:absent"):
        resolve("broken")
    with pytest.raises(InputError, match="tidemill_swatch:NOT_A_FUNCTION is not a function"):
        resolve("constant")


def test_type_that_two_packages_provide_is_refused(plugin: Path) -> None:
    other = plugin / "other_swatch-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-swatch\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[tidemill.eventtime]\nswatch = other_swatch:parse\n")
    with pytest.raises(InputError, match="provided more than once") as caught:
        resolve("swatch")
    assert caught.value.hint == "uninstall all but one of other_swatch:parse, tidemill_swatch:parse"
