"""What a stream says of its windows, and the builder, state and events of a project: read, and refused when
it makes no sense; nothing that is written is silently ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import BuilderSettings, LateSlices, Project, parse_project
from tidemill.config.project import ScrubSettings
from tidemill.model.errors import ConfigError
from tidemill.model.names import DATASET_COLUMNS
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.outputs.datasets.dataset import LEADING

FILE = Path("tidemill.yaml")
TYPES = ("iso8601", "unixtimestamp_ms")

WEATHER = """\
version: 1
streams:
  weather:
    schema:
      station: string
      at: string
      celsius: {type: decimal, scale: 1}
    event_time: {column: at, type: iso8601}
    identity: [station, at]
    aggregation_span: PT1H
    subject_to_change_window: PT6H
"""


def load(text: str) -> Project:
    return parse_project(text, FILE, TYPES, {})


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value


def changed(old: str, new: str) -> str:
    assert old in WEATHER
    return WEATHER.replace(old, new)


def test_windows_are_declared_with_the_words_of_the_feed() -> None:
    weather = load(WEATHER).stream("weather")
    assert (weather.aggregation_span, weather.subject_to_change_window) == (HOUR, 6 * HOUR)
    assert (weather.gap_tolerance, weather.allow_incomplete_windows) == (SECOND, False)
    assert weather.late_slices == LateSlices(policy="discard")


def test_a_stream_without_a_span_has_no_windows() -> None:
    text = changed("    aggregation_span: PT1H\n    subject_to_change_window: PT6H\n", "")
    assert load(text).stream("weather").aggregation_span is None


@pytest.mark.parametrize(
    ("written", "policy", "lateness"),
    [
        ("discard", "discard", None),
        ("{policy: discard}", "discard", None),
        ("{policy: reemit, max_lateness: 7d}", "reemit", 7 * DAY),
    ],
)
def test_late_slices_are_discarded_or_for_a_while_make_it_come_out_again(
    written: str, policy: str, lateness: int | None
) -> None:
    late = load(f"{WEATHER}    late_slices: {written}\n").stream("weather").late_slices
    assert (late.policy, late.max_lateness) == (policy, lateness)


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("reemit", "reemit needs max_lateness", "{policy: reemit, max_lateness: 7d}"),
        ("{policy: discard, max_lateness: 1d}", "discard has no max_lateness", "use policy: reemit"),
        ("{policy: next_window}", "'next_window' is not a valid policy", "choices: discard, reemit"),
        ("{policy: reemit, max_lateness: 0s}", "max_lateness: a duration of 0 is too short", "longer"),
        ("{late: 1d}", "late_slices.late: unknown key", "keys: policy, max_lateness"),
    ],
)
def test_mistake_about_late_slices(written: str, message: str, hint: str) -> None:
    error = refused(f"{WEATHER}    late_slices: {written}\n")
    assert error.where == "tidemill.yaml:12"
    assert error.message.startswith("streams.weather.late_slices")
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "setting",
    [
        "subject_to_change_window: 6h",
        "allow_incomplete_windows: true",
        "allow_incomplete_windows: false",
        "gap_tolerance: 5s",
        "late_slices: {policy: reemit, max_lateness: 7d}",
    ],
)
def test_setting_of_windows_without_windows_is_refused(setting: str) -> None:
    error = refused(
        changed("    aggregation_span: PT1H\n    subject_to_change_window: PT6H\n", f"    {setting}\n")
    )
    assert error.where == "tidemill.yaml:10"
    key = setting.partition(":")[0]
    assert error.message == f"streams.weather.{key}: there are no windows that it could hold for"
    assert error.hint == "add aggregation_span, such as 1h, or leave it out"


def test_span_that_is_broken_is_one_problem() -> None:
    error = refused(changed("PT1H", "hourly"))
    assert str(error) == "tidemill.yaml:10: streams.weather.aggregation_span: 'hourly' is not a duration"


@pytest.mark.parametrize(
    ("old", "new", "where", "message", "hint"),
    [
        ("PT1H", "0s", 10, "aggregation_span: a duration of 0 is too short", "leave the key out"),
        ("PT1H", "250ms", 10, "aggregation_span: a window of 250ms is too short", "use 1s or longer"),
        (
            "PT6H",
            "PT6H\n    gap_tolerance: 60m",
            12,
            "gap_tolerance: a gap of 1h would be all of a window of 1h",
            "make gap_tolerance shorter than aggregation_span",
        ),
        ("PT6H", "-PT6H", 11, "subject_to_change_window: '-PT6H' is not a duration", "PT1H"),
        ("PT6H", "6", 11, "subject_to_change_window: duration 6 has no unit", "PT1H"),
        (
            "PT6H",
            "0\n    allow_incomplete_windows: maybe",
            12,
            "allow_incomplete_windows: 'maybe' should be true or false",
            "true or false",
        ),
    ],
)
def test_mistake_about_windows_names_its_line_and_what_is_valid(
    old: str, new: str, where: int, message: str, hint: str
) -> None:
    error = refused(changed(old, new))
    assert error.where == f"tidemill.yaml:{where}"
    assert error.message == f"streams.weather.{message}"
    assert hint in error.hint


def test_short_windows_are_allowed_with_a_tolerance_that_fits() -> None:
    weather = load(changed("PT1H", "1s\n    gap_tolerance: 0s")).stream("weather")
    assert (weather.aggregation_span, weather.gap_tolerance) == (SECOND, 0)


# -- the columns of a dataset


def test_the_columns_of_a_dataset_are_those_that_the_builder_writes() -> None:
    assert DATASET_COLUMNS == LEADING


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("event_time", "rename the field in the feed, or set event_time: {column: event_time}"),
        ("tenant", "rename the field in the feed, or set tenant: {column: tenant}"),
        ("event_id", "rename the field in the feed, or set identity: event_id"),
    ],
)
def test_field_that_would_hide_behind_a_column_of_the_dataset_is_refused(column: str, hint: str) -> None:
    error = refused(changed("      celsius:", f"      {column}: string\n      celsius:"))
    assert error.where == "tidemill.yaml:7"
    own = f"a dataset has a column {column} of its own, and this is not what it is made of"
    assert error.message == f"streams.weather.schema.{column}: {own}"
    assert error.hint == hint


@pytest.mark.parametrize(
    "stream",
    [
        """schema: {event_time: string, tenant: string, event_id: string}
event_time: {column: event_time, type: iso8601}
tenant: tenant
identity: event_id""",
        "schema: {id: string, resource.tenant: string}\nidentity: id\ntenant: resource.tenant",
    ],
)
def test_field_that_is_the_source_of_a_column_of_the_dataset_may_have_its_name(stream: str) -> None:
    assert of_windows(stream).stream("s").aggregation_span == HOUR


@pytest.mark.parametrize(
    ("stream", "column"),
    [
        ("schema: {event_id: string, part: integer}\nidentity: [event_id, part]", "event_id"),
        ("schema: {event_id: string}\nidentity: event_id\ngate: none", "event_id"),
        (
            """schema: {id: string, event_time: string}
identity: id
event_time: {mode: processing, column: event_time, type: iso8601}""",
            "event_time",
        ),
        ("schema: {id: string, tenant: string}\nidentity: id\ntenant: {value: acme}", "tenant"),
    ],
)
def test_field_that_is_only_a_part_of_it_or_not_read_is_not_the_source(stream: str, column: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_windows(stream)
    assert caught.value.where == "tidemill.yaml:4"
    assert f"a dataset has a column {column} of its own" in caught.value.message


@pytest.mark.parametrize(
    ("stream", "column"),
    [
        ("schema: {id: string, TENANT: string}\nidentity: id", "TENANT"),
        ("schema: {id: string, Tenant: string}\nidentity: id\ntenant: Tenant", "Tenant"),
        ("schema: {Event_Id: string}\nidentity: Event_Id", "Event_Id"),
    ],
)
def test_field_that_differs_by_case_from_a_column_of_the_dataset_is_refused(stream: str, column: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_windows(stream)
    own = f"a dataset has a column {column.lower()} of its own, and readers ignore case"
    assert caught.value.message == f"streams.s.schema.{column}: {own}"
    assert caught.value.hint == "rename the field in the feed"


def test_fields_that_differ_only_by_case_are_refused() -> None:
    error = refused(changed("      celsius:", "      Station: string\n      celsius:"))
    assert error.where == "tidemill.yaml:7"
    assert error.message == (
        "streams.weather.schema.Station: 'Station' and 'station' would be one column of a dataset: "
        "readers ignore case"
    )
    assert error.hint == "rename one of the two fields in the feed"


def test_without_windows_columns_may_have_any_name() -> None:
    schema = "schema: {id: string, Id: string, event_time: string, tenant: string, event_id: string}"
    assert of_windows(f"{schema}\nidentity: id", span=None).stream("s").aggregation_span is None


def test_source_that_is_broken_is_reported_once() -> None:
    with pytest.raises(ConfigError) as caught:
        of_windows("schema: {id: string, tenant: string}\nidentity: id\ntenant: {colum: tenant}")
    lines = str(caught.value).splitlines()
    assert [line for line in lines if "of its own" in line] == []


def of_windows(stream: str, span: str | None = "1h") -> Project:
    """A stream `s` of the given keys, with windows."""
    lines = [*stream.splitlines(), *([f"aggregation_span: {span}"] if span else [])]
    return load("\n".join(["version: 1", "streams:", "  s:", *(f"    {line}" for line in lines)]))


# -- builder, state, events


def test_settings_of_the_builder() -> None:
    project = load(
        "builder: {concurrency: 0, attempts: 3, retry_delay: 5s, max_retry_delay: 1m, lease: 90s}\n"
        "state: {kind: sqlite}\n" + WEATHER
    )
    assert project.builder == BuilderSettings(
        concurrency=0, attempts=3, retry_delay="5s", max_retry_delay="1m", lease="90s"
    )
    assert (project.builder.retry_delay, project.builder.max_retry_delay) == (5 * SECOND, MINUTE)


def test_settings_of_the_scrub() -> None:
    assert load(WEATHER).scrub == ScrubSettings(enabled=True, every="7d", bytes_per_second="16MiB")
    project = load("scrub: {enabled: false, every: 12h, bytes_per_second: 1KiB}\n" + WEATHER)
    assert (project.scrub.enabled, project.scrub.bytes_per_second) == (False, 1024)


@pytest.mark.parametrize(
    ("section", "message", "hint"),
    [
        ("scrub: {every: 0s}", "scrub.every: a duration of 0 is too short", "leave the key out"),
        ("scrub: {bytes_per_second: 1023}", "scrub.bytes_per_second: 1023 should be at least 1024", "larger"),
        ("builder: {concurrency: -1}", "builder.concurrency: -1 should be at least 0", "larger"),
        ("builder: {concurrency: 257}", "builder.concurrency: 257 should be at most 256", "smaller"),
        ("builder: {concurrency: two}", "builder.concurrency: 'two' should be a whole number", "digits"),
        ("builder: {concurrency: 1.5}", "builder.concurrency: 1.5 should be a whole number", "digits"),
        ("builder: {attempts: 0}", "builder.attempts: 0 should be at least 1", "larger"),
        ("builder: {lease: 0s}", "builder.lease: a duration of 0 is too short", "leave the key out"),
        ("builder: {retry_delay: 1}", "builder.retry_delay: duration 1 has no unit", "5s"),
        ("builder: {retry_delay: 1h}", "builder: max_retry_delay is less than retry_delay", "or longer"),
        ("builder: {threads: 2}", "builder.threads: unknown key", "keys: concurrency, attempts"),
        (
            "state: {kind: redis, url: 'redis://a', prefix: b}",
            "state: the state is no longer kept on Redis",
            "remove the state section and run `tidemill recover`",
        ),
        ("state: {kind: postgres}", "state.kind: 'postgres' is not a valid kind", "sqlite, postgresql"),
        ("state: {kind: postgresql}", "state: url is missing", "add url: postgresql://"),
        ("state: {kind: sqlite, url: 'postgresql://a/b'}", "state: SQLite has no url", "remove kind"),
        ("state: {schema: shop}", "state: only a PostgreSQL server has a schema", "add url"),
        ("state: {url: 'redis://a:secret@b'}", "state.url: this is not the address of a", "postgresql://"),
        ("state: {url: 'postgresql://a/b', schema: public}", "'public' cannot be the schema", "lower-case"),
        ("state: {url: 'postgresql://a/b', schema: 'x;y'}", "'x;y' cannot be the schema", "lower-case"),
        ("state: {prefix: b}", "state.prefix: unknown key", "keys: kind, url, schema"),
        ("events: {sinks: {Log: {kind: file, path: e}}}", "name 'Log' is not allowed", "lower-case"),
        ("events: {sinks: {log: {kind: file}}}", "events.sinks.log: path is missing", "add path"),
        ("events: {sinks: {log: {path: e}}}", "events.sinks.log: kind is missing", "file | webhook | redis"),
        (
            "events: {sinks: {log: {kind: kafka}}}",
            "events.sinks.log.kind: 'kafka' is not a valid kind",
            "choices: file, webhook, redis",
        ),
        (
            "events: {sinks: {bus: {kind: redis, url: 'redis://a', stream: ''}}}",
            "events.sinks.bus.stream: '' should not be empty",
            "leave it out",
        ),
        ("events: {retry_delay: 1h}", "events: max_retry_delay is less than retry_delay", "or longer"),
    ],
)
def test_mistake_in_a_section_names_its_line_and_what_is_valid(section: str, message: str, hint: str) -> None:
    error = refused(section + "\n" + WEATHER)
    assert error.where == "tidemill.yaml:1"
    assert message in error.message
    assert hint in error.hint
