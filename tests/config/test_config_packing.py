"""Packing: what can be set, what it is by default, and what is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import Project, parse_project
from tidemill.config.stream_sections import MIB, Pack
from tidemill.model.errors import ConfigError
from tidemill.model.time import MINUTE, SECOND

FILE = Path("tidemill.yaml")

STREAM = """\
version: 1
streams:
  klines:
    schema: {open_time: integer, close: string}
    event_time: {column: open_time, type: unixtimestamp_ms}
    gate: none
"""


def load(*lines: str, environment: dict[str, str] | None = None) -> Project:
    text = STREAM + "".join(f"    {line}\n" for line in lines)
    return parse_project(text, FILE, ("unixtimestamp_ms",), environment or {})


def test_by_default_64_slices_or_128_mib_are_packed_by_the_daemon() -> None:
    pack = load().stream("klines").pack
    assert pack == Pack()
    assert (pack.enabled, pack.slices, pack.bytes) == (True, 64, 128 * MIB)
    assert (pack.partial, pack.idle) == (5 * SECOND, 30 * SECOND)
    assert (pack.retry_delay, pack.max_retry_delay) == (5 * SECOND, 10 * MINUTE)


def test_all_of_it_can_be_set() -> None:
    written = "{enabled: false, slices: 3, bytes: 1KiB, partial: 1s, idle: 1m, "
    written += "retry_delay: 2s, max_retry_delay: 8s}"
    pack = load(f"pack: {written}").stream("klines").pack
    assert (pack.enabled, pack.slices, pack.bytes) == (False, 3, 1024)
    assert (pack.partial, pack.idle) == (SECOND, MINUTE)
    assert (pack.retry_delay, pack.max_retry_delay) == (2 * SECOND, 8 * SECOND)


def test_a_section_without_keys_is_the_default() -> None:
    assert load("pack:").stream("klines").pack == Pack()


def test_it_can_come_from_the_environment() -> None:
    given = {"TIDEMILL__STREAMS__KLINES__PACK__SLICES": "500"}
    assert load(environment=given).stream("klines").pack.slices == 500


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("{slices: 0}", ".slices", ""),
        ("{slices: 100001}", ".slices", ""),
        ("{slices: '3'}", ".slices", ""),
        ("{bytes: 0}", ".bytes", ""),
        ("{bytes: much}", ".bytes: 'much' is not a size", "64KiB"),
        ("{partial: 0s}", ".partial: a duration of 0 is too short", "leave the key out"),
        ("{slice: 3}", ".slice: unknown key", "did you mean slices?"),
        ("{partial: 1m}", ": idle is less than partial", "make it as long, or longer"),
        ("{idle: 1s}", ": idle is less than partial", "make it as long, or longer"),
        ("{retry_delay: 1h}", ": max_retry_delay is less than retry_delay", "make it as long, or longer"),
    ],
)
def test_mistake_about_packing(written: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"pack: {written}")
    assert caught.value.where == "tidemill.yaml:7"
    assert caught.value.message.startswith(f"streams.klines.pack{message}")
    assert hint in caught.value.hint
