"""The index and retention: what can be declared, what is refused, and what is warned about, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import Project, RetentionSettings, parse_project
from tidemill.config.stream import MAX_INDEXED
from tidemill.model.errors import ConfigError
from tidemill.model.time import DAY, HOUR

FILE = Path("tidemill.yaml")

STREAM = """\
version: 1
streams:
  clicks:
    schema: {id: string, ts: integer, user: object, items: array, rest: any, user.name: string}
    event_time: {column: ts, type: unixtimestamp_ms, late_tolerance: 2h}
    identity: id
    metrics: {clicks: {kind: counter}}
"""


def load(*lines: str) -> Project:
    text = STREAM + "".join(f"    {line}\n" for line in lines)
    return parse_project(text, FILE, ("unixtimestamp_ms",), {})


def refused(*lines: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(*lines)
    return caught.value


# -- the index


def test_paths_of_the_index_need_not_be_in_the_schema() -> None:
    written = "indexed: [id, user.name, user.plan, items.sku, rest.any.thing, tags]"
    assert load(written).stream("clicks").indexed == (
        "id", "user.name", "user.plan", "items.sku", "rest.any.thing", "tags",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("[user..plan]", "[0]: column name 'user..plan' is not allowed", "dots lead into objects"),
        ("['items[0]']", "[0]: column name 'items[0]' is not allowed", "dots lead into objects"),
        ("[id, tags, id]", ": 'id' is listed 2 times", "once"),
        ("[tags, id.x]", "[1]: 'id' is of type string and has nothing inside", "index id, or declare it as"),
        ("[user.name.first]", "[0]: 'user.name' is of type string and has nothing inside", "index user.name"),
        ("id", ": 'id' should be a list", "[a, b]"),
        (f"{[f'p{i}' for i in range(MAX_INDEXED + 1)]}", ": a list has more than 64 items", "leave some out"),
    ],
)
def test_mistake_about_the_index(written: str, message: str, hint: str) -> None:
    error = refused(f"indexed: {written}")
    assert error.where == "tidemill.yaml:8"
    assert error.message == f"streams.clicks.indexed{message}"
    assert hint in error.hint


# -- retention


def test_without_limits_all_is_kept_for_ever() -> None:
    declared = load().stream("clicks").retention
    assert declared == RetentionSettings()
    assert (declared.raw, declared.index, declared.quarantine, declared.datasets) == (None,) * 4
    assert (declared.rollups, declared.sealed) == ({}, "merge")


def test_every_kind_of_thing_has_its_own_limit_and_nothing_is_said_about_it() -> None:
    project = load(
        "indexed: [id]",
        "aggregation_span: 1h",
        "retention: {raw: 400d, index: 90d, quarantine: 30d, datasets: 1000d, "
        "rollups: {5s: 90d, 1m: 30d, 7d: 5000d}, sealed: refuse}",
    )
    kept = project.stream("clicks").retention
    assert (kept.raw, kept.index, kept.quarantine) == (400 * DAY, 90 * DAY, 30 * DAY)
    assert (kept.datasets, kept.sealed) == (1000 * DAY, "refuse")
    assert kept.rollups == {"5s": 90 * DAY, "1m": 30 * DAY, "7d": 5000 * DAY}
    assert project.warnings == ()


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("{raw: 1}", "raw: duration 1 has no unit", "5s"),
        ("{index: 0s}", "index: a duration of 0 is too short", "leave the key out"),
        ("{rollups: {30s: 1d}}", "rollups.30s: there is no rollup level '30s'", "5s, 1m, 1h, 1d, 7d"),
        ("{sealed: drop}", "sealed: 'drop' is not a valid sealed", "choices: merge, refuse"),
        ("{indexes: 1d}", "indexes: unknown key", "did you mean index?"),
        (
            "{rollups: {1d: 6d}}",
            "rollups.1d: buckets of 7d are made of those of 1d, which would be gone by then",
            "use 7d or longer",
        ),
        ("{rollups: {5s: 59s}}", "rollups.5s: buckets of 1m are made of those of 5s", "use 1m or longer"),
    ],
)
def test_mistake_about_retention(written: str, message: str, hint: str) -> None:
    error = refused(f"retention: {written}")
    assert error.where == "tidemill.yaml:8"
    assert error.message.startswith(f"streams.clicks.retention.{message}")
    assert hint in error.hint


def test_a_level_is_kept_at_least_as_long_as_the_next_one_needs_it() -> None:
    kept = load("retention: {rollups: {5s: 1m, 1m: 1h, 1h: 1d, 1d: 7d, 7d: 1h}}").stream("clicks").retention
    assert kept.rollups["7d"] == HOUR


@pytest.mark.parametrize(
    ("late", "raw", "needed"),
    [("discard", "2h59m", "3h"), ("{policy: reemit, max_lateness: 1d}", "1d2h", "1d3h")],
)
def test_raw_is_kept_until_datasets_are_made_of_it(late: str, raw: str, needed: str) -> None:
    windows = ("aggregation_span: 1h", "subject_to_change_window: 2h", f"late_slices: {late}")
    error = refused(*windows, f"retention: {{raw: {raw}}}")
    assert error.where == "tidemill.yaml:11"
    assert error.message.endswith(
        f"retention.raw: rows would be gone after {raw}, before their dataset is made"
    )
    assert error.hint.startswith(f"use {needed} or longer: aggregation_span")
    assert load(*windows, f"retention: {{raw: {needed}}}").warnings == ()


@pytest.mark.parametrize(
    ("lines", "key", "warning", "hint"),
    [
        (
            ("indexed: [id]", "retention: {raw: 10d, index: 11d}"),
            "index",
            "the index is deleted with raw, after 10d",
            "make it as long as raw, or shorter",
        ),
        (
            ("retention: {index: 11d}",),
            "index",
            "there is no index that it could hold for",
            "add indexed: [PATH], or leave it out",
        ),
        (
            ("retention: {datasets: 10d}",),
            "datasets",
            "there are no windows that become datasets",
            "add aggregation_span, such as 1h, or leave it out",
        ),
        (
            ("retention: {sealed: merge}",),
            "sealed",
            "nothing is sealed, since raw is kept for ever",
            "add raw, such as raw: 400d, or leave it out",
        ),
        (
            ("retention: {raw: 1h}",),
            "raw",
            "events that are not late may be of a time that raw is gone for after 1h",
            "make it as long as late_tolerance of event_time, or longer",
        ),
        (
            ("skew: {past: 30d}", "retention: {raw: 10d}"),
            "raw",
            "events may be as old as 30d (skew), and of a time that raw is gone for",
            "say what becomes of them: sealed: merge, or sealed: refuse",
        ),
    ],
)
def test_what_has_no_effect_or_a_surprising_one_is_warned_about(
    lines: tuple[str, ...], key: str, warning: str, hint: str
) -> None:
    place = f"tidemill.yaml:{7 + len(lines)}: streams.clicks.retention.{key}"
    assert load(*lines).warnings == (f"{place}: {warning} ({hint})",)


def test_levels_of_no_metrics_are_warned_about() -> None:
    text = STREAM.replace("metrics: {clicks: {kind: counter}}", "retention: {rollups: {5s: 1d}}")
    (warning,) = parse_project(text, FILE, ("unixtimestamp_ms",), {}).warnings
    assert warning.startswith("tidemill.yaml:7: streams.clicks.retention.rollups: there are no metrics")


@pytest.mark.parametrize("sealed", ["merge", "refuse"])
def test_who_says_what_becomes_of_old_events_is_not_warned_about_them(sealed: str) -> None:
    assert load("skew: {past: 30d}", f"retention: {{raw: 10d, sealed: {sealed}}}").warnings == ()
