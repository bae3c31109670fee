"""Every mistake in `tidemill.yaml` is named with its file, its line and what is valid, all at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.config import load_project, parse_project, read_template
from tidemill.model.errors import ConfigError

FILE = Path("tidemill.yaml")
TYPES = ("iso8601", "unixtimestamp_ms", "unixtimestamp_s")

STREAM = """\
version: 1
streams:
  requests:
    schema:
      event_id: string
      ts: integer
      tenant: string
      api: string
      latency: float
    event_time: {column: ts, type: unixtimestamp_ms}
    identity: event_id
    metrics:
      requests: {kind: counter, dimensions: [api]}
"""


def refused(text: str, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_project(text, FILE, TYPES, environ)
    return caught.value


def changed(old: str, new: str) -> ConfigError:
    assert old in STREAM
    return refused(STREAM.replace(old, new))


def test_the_stream_of_these_tests_is_valid() -> None:
    assert parse_project(STREAM, FILE, TYPES, {}).stream("requests").time_column == "ts"


def test_v29_event_time_column_that_is_not_in_the_schema() -> None:
    error = changed("column: ts", "column: tz")
    assert error.where == "tidemill.yaml:10"
    assert error.message == "streams.requests.event_time.column: column 'tz' is not in the schema"
    assert error.hint == "did you mean ts? columns that can be used here: event_id, ts, tenant, api"


def test_v29_event_time_type_that_is_not_registered() -> None:
    error = changed("unixtimestamp_ms", "unixtime_ms")
    assert error.where == "tidemill.yaml:10"
    assert error.message == "streams.requests.event_time.type: there is no event-time type 'unixtime_ms'"
    assert error.hint == "did you mean unixtimestamp_ms? types: iso8601, unixtimestamp_ms, unixtimestamp_s"


@pytest.mark.parametrize(
    ("old", "new", "where", "message", "hint"),
    [
        (
            "identity: event_id",
            "identity: [event_id, id]",
            11,
            "identity[1]: column 'id' is not in the schema",
            "columns that can be used here: event_id, ts, tenant, api",
        ),
        (
            "identity: event_id",
            "identity: latency",
            11,
            "identity[0]: column 'latency' is of type float",
            "an identity is string or integer",
        ),
        ("identity: event_id", "identity: [ts, ts]", 11, "identity: 'ts' is listed 2 times", "list it once"),
        (
            "identity: event_id",
            "tenant: account",
            11,
            "tenant.column: column 'account' is not in the schema",
            "columns that can be used here: event_id, tenant, api",
        ),
        (
            "identity: event_id",
            "gate: event_id",
            11,
            "gate: the gate needs to know what makes an event one",
            "gate: none to accept every record",
        ),
        ("    identity: event_id\n", "", 3, "requests: the gate needs to know", "add identity"),
        (
            "identity: event_id",
            "identity: ts\n    tenant: ts",
            12,
            "tenant.column: column 'ts' is of type integer",
            "a tenant is a string",
        ),
        (
            "identity: event_id",
            "identity: ts\n    event_type: {column: kind, allowed: [a]}",
            12,
            "event_type.column: column 'kind' is not in the schema",
            "columns that can be used here: event_id",
        ),
        (
            "identity: event_id",
            "identity: ts\n    event_type: {column: api, allowed: []}",
            12,
            "event_type.allowed: a list should not be empty",
            "at least one",
        ),
        ("[api]", "[ap]", 13, "metrics.requests.dimensions[0]: column 'ap' is not in", "did you mean api?"),
        (
            "[api]",
            "[latency]",
            13,
            "dimensions[0]: column 'latency' is of type float",
            "a dimension is string, integer or boolean",
        ),
        ("[api]", "[api, api]", 13, "metrics.requests.dimensions: 'api' is listed 2 times", "once"),
        (
            "[api]",
            "[api], measures: [latency]",
            13,
            "measures[0]: column 'latency' is of type float",
            "a float has no exact sum: declare a decimal with a scale",
        ),
        (
            "[api]",
            "[api], measures: [api]",
            13,
            "measures[0]: column 'api' is of type string",
            "integer or decimal",
        ),
        (
            "kind: counter",
            "kind: summary",
            13,
            "metrics.requests.kind: 'summary' is not a valid kind",
            "choices: counter, gauge, histogram, state, ratio",
        ),
        ("kind: counter, ", "", 13, "metrics.requests: kind is missing", "add kind: counter"),
        (
            "      requests:",
            "      Re-quests:",
            13,
            "metrics.Re-quests: name 'Re-quests' is not allowed",
            "lower-case",
        ),
        (
            "ts: integer",
            "ts: boolean",
            10,
            "event_time.column: column 'ts' is of type boolean",
            "an event time is integer, decimal, string, timestamp or any",
        ),
        (
            "unixtimestamp_ms",
            "iso8601",
            10,
            "event_time.type: iso8601 reads text, and column 'ts' is of type integer",
            "declare the column as string",
        ),
        (
            ", type: unixtimestamp_ms",
            "",
            10,
            "event_time: type is missing",
            "types: iso8601, unixtimestamp_ms",
        ),
        ("column: ts, ", "", 10, "event_time: column is missing", "or set mode: processing"),
        (
            "api: string",
            "api: text",
            8,
            "schema.api: 'text' is not a valid type",
            "string, integer, decimal, float, boolean, timestamp, object, array, any",
        ),
        ("api: string", "api:", 8, "schema.api: the column has no type", "types: string"),
        (
            "api: string",
            "api: decimal",
            8,
            "schema.api: a decimal needs its scale",
            "{type: decimal, scale: 3}",
        ),
        (
            "latency: float",
            "latency: {type: decimal, scale: 16}",
            9,
            "schema.latency.scale: 16 should be at most 15",
            "",
        ),
        (
            "latency: float",
            "latency: {type: float, scale: 2}",
            9,
            "a field of type float has no scale",
            "decimal",
        ),
        (
            "latency: float",
            "latency: {type: float, required: yes}",
            9,
            "schema.latency.required: 'yes' should be true or false",
            "",
        ),
        (
            "latency: float",
            "a-b: float",
            9,
            "schema.a-b: column name 'a-b' is not allowed",
            "letters, digits and _",
        ),
        (
            "latency: float",
            "api.x: float",
            9,
            "schema.api.x: 'api' is of type string and has nothing inside",
            "object",
        ),
        (
            "  requests:\n    s",
            "  Requests:\n    s",
            3,
            "streams.Requests: stream name 'Requests' is not",
            "lower-case",
        ),
        (
            "identity:",
            "retention: {raw: 3}\n    identity:",
            11,
            "retention.raw: duration 3 has no unit",
            "5s, 1m",
        ),
        (
            "identity:",
            "retention: {raw: 0s}\n    identity:",
            11,
            "retention.raw: a duration of 0",
            "leave the key out",
        ),
        (
            "identity:",
            "retention: {rollups: {30s: 1d}}\n    identity:",
            11,
            "retention.rollups.30s: there is no rollup level '30s'",
            "levels: 5s, 1m, 1h, 1d, 7d",
        ),
        ("identity:", "skew: {past: soon}\n    identity:", 11, "skew.past: 'soon' is not a duration", "PT1H"),
        ("identity:", "skew: {past: 999999999d}\n    identity:", 11, "skew.past: '999999999d' is longer", ""),
        (
            "identity:",
            "tenant: {column: api, value: acme}\n    identity:",
            11,
            "tenant: needs a column or a value",
            "not both",
        ),
        ("identity:", "tenant: {value: 7}\n    identity:", 11, "tenant.value: 7 should be text", "quotes"),
        (
            "identity:",
            "source_links: [a.html]\n    identity:",
            11,
            "source_links[0]: 'a.html' is not a web",
            "https://",
        ),
        (
            "identity:",
            "format: xml\n    identity:",
            11,
            "format: 'xml' is not a valid format",
            "ndjson, json, csv",
        ),
        (
            "identity:",
            "csv: {delimiter: ab}\n    identity:",
            11,
            "csv.delimiter: 'ab' cannot separate",
            "one character",
        ),
        (
            "identity:",
            "csv: {header: false}\n    identity:",
            11,
            "csv: without a header the columns have",
            "columns: [",
        ),
        (
            "identity:",
            "format: json\n    csv: {}\n    identity:",
            12,
            "csv: slices of format json are not CSV",
            "csv",
        ),
    ],
)
def test_mistake_names_its_line_and_what_is_valid(
    old: str, new: str, where: int, message: str, hint: str
) -> None:
    error = changed(old, new)
    lines = str(error).splitlines()
    assert any(line.startswith(f"tidemill.yaml:{where}: ") and message in line for line in lines), lines
    assert hint in error.hint or hint in error.message


@pytest.mark.parametrize(
    ("old", "new", "where", "path", "hint"),
    [
        (
            "version: 1",
            "version: 1\nwarehous: x",
            2,
            "warehous",
            "did you mean warehouse? keys: version, warehouse, engine, limits, bucket, state, builder, scrub",
        ),
        (
            "version: 1",
            "version: 1\nengine:\n  core: 2",
            3,
            "engine.core",
            "did you mean cores? keys: master, cores, memory, conf",
        ),
        (
            "identity:",
            "keyword: [x]\n    identity:",
            11,
            "streams.requests.keyword",
            "did you mean keywords? keys: description",
        ),
        (
            "column: ts",
            "colum: ts",
            10,
            "streams.requests.event_time.colum",
            "did you mean column? keys: column, type, timezone, late_tolerance, mode",
        ),
        (
            "ts: integer",
            "ts: {type: integer, requierd: true}",
            6,
            "streams.requests.schema.ts.requierd",
            "did you mean required? keys: type, required, scale",
        ),
        (
            "dimensions:",
            "dims:",
            13,
            "streams.requests.metrics.requests.dims",
            "keys: kind, dimensions, measures",
        ),
        (
            "identity:",
            "name: x\n    identity:",
            11,
            "streams.requests.name",
            "the key under streams is the name",
        ),
        ("identity:", "<<: {}\n    identity:", 11, "streams.requests.<<", "keys: description"),
    ],
)
def test_unknown_key_names_its_path_the_closest_key_and_the_valid_ones(
    old: str, new: str, where: int, path: str, hint: str
) -> None:
    error = changed(old, new)
    lines = [*str(error).splitlines(), error.hint]
    assert any(line.startswith(f"tidemill.yaml:{where}: {path}: unknown key") for line in lines), lines
    assert any(hint in line for line in lines), lines


def test_all_problems_are_listed_in_the_order_of_the_file() -> None:
    text = (
        STREAM.replace("version: 1", "version: 2\nengine: {cores: 0, memory: 64k}").replace(
            "column: ts, type: unixtimestamp_ms", "column: tz, late_tolerance: soon, type: x"
        )
        + "  Other: {schema: {a: strin}, gate: nope}\n  third: 3\n"
    )
    error = refused(text, TIDEMILL__LIMITS__DEPTH="deep")
    assert [line.split(" ")[:2] for line in str(error).splitlines()] == [
        ["tidemill.yaml:1:", "version:"],
        ["tidemill.yaml:2:", "engine.cores:"],
        ["tidemill.yaml:2:", "engine.memory:"],
        ["tidemill.yaml:11:", "streams.requests.event_time.late_tolerance:"],
        ["tidemill.yaml:11:", "streams.requests.event_time.column:"],
        ["tidemill.yaml:11:", "streams.requests.event_time.type:"],
        ["tidemill.yaml:15:", "streams.Other:"],
        ["tidemill.yaml:15:", "streams.Other.schema.a:"],
        ["tidemill.yaml:15:", "streams.Other.gate:"],
        ["tidemill.yaml:16:", "streams.third:"],
        ["environment", "variable"],
    ]
    assert error.hint == "11 problems, one on each line"
    assert error.where == "tidemill.yaml:1"


def test_broken_column_is_reported_once_and_not_again_where_it_is_used() -> None:
    error = changed("ts: integer", "ts: {type: integr}")
    assert str(error).splitlines() == [
        "tidemill.yaml:6: streams.requests.schema.ts.type: 'integr' is not a valid type"
    ]


def test_stream_without_a_schema_is_one_problem() -> None:
    error = refused(
        "version: 1\nstreams:\n  s:\n    identity: id\n    event_time: {column: a, type: iso8601}\n"
    )
    assert str(error) == "tidemill.yaml:3: streams.s: schema is missing"


def test_required_column_that_a_csv_cannot_have_is_refused() -> None:
    text = STREAM.replace("event_id: string", "event_id: {type: string, required: true}")
    error = refused(text.replace("    event_time", "    csv: {columns: [ts]}\n    event_time"))
    assert str(error) == (
        "tidemill.yaml:10: streams.requests.csv.columns: the required column 'event_id' is not among them"
    )


def test_key_given_twice_is_refused_at_the_second() -> None:
    error = changed("      api: string", "      ts: string")
    assert "tidemill.yaml:8: streams.requests.schema.ts: this key is given twice" in str(error)


def test_record_limit_that_does_not_fit_a_chunk_is_refused() -> None:
    error = changed("version: 1", "version: 1\nengine: {chunk_bytes: 1MiB}\nlimits: {record_bytes: 2MiB}")
    assert error.where == "tidemill.yaml:3"
    assert "does not fit a chunk" in error.message


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", "tidemill.yaml", "the file is empty"),
        ("# only a comment\n", "tidemill.yaml", "the file is empty"),
        ("- a\n- b\n", "tidemill.yaml:1", "not a mapping"),
        ("version: 1\nstreams: [\n", "tidemill.yaml:3", "this is not YAML"),
        ("version: 1\n\tstreams: 1\n", "tidemill.yaml:2", "this is not YAML"),
        ("version: 1\nx: \0\n", "tidemill.yaml:2", "this is not YAML"),
        ("version: 1\n---\nversion: 1\n", "tidemill.yaml:2", "this is not YAML"),
        ("version: 1\nx: *nothing\n", "tidemill.yaml:2", "this is not YAML"),
        ("[" * 100_000, "tidemill.yaml:1", "this is not YAML: it is nested too deeply"),
        (
            "version: 1\nx: " + "{a: " * 100_000,
            "tidemill.yaml:2",
            "this is not YAML: it is nested too deeply",
        ),
        ("version: 1\nx: &a [*a]\n", "tidemill.yaml:2", "nested too deeply"),
        ("version: 1\nstreams: 3\n", "tidemill.yaml:2", "3 should be a section"),
        ("version: 1\nstreams:\n", "tidemill.yaml:2", "declare at least one stream"),
        (
            "version: 1\nstreams: {s: {schema: {}, gate: none}}",
            "tidemill.yaml:2",
            "the schema has no columns",
        ),
        (
            "version: 1\nwarehouse: hdfs://host/x\nstreams: {s: {schema: {a: any}, gate: none}}",
            "tidemill.yaml:2",
            "is not a folder",
        ),
        (
            "version: 1\nwarehouse: ~nobody_of_that_name/x\nstreams: {s: {schema: {a: any}, gate: none}}",
            "tidemill.yaml:2",
            "names the home of an unknown user",
        ),
        (
            "version: 1\nwarehouse: 7\nstreams: {s: {schema: {a: any}, gate: none}}",
            "tidemill.yaml:2",
            "7 should be text",
        ),
        (
            "version: 1\nstreams: {s: {schema: {a: !!python/name:os.system any}, gate: none}}",
            "tidemill.yaml:2",
            "the tag tag:yaml.org,2002:python/name:os.system does not fit",
        ),
        (
            "version: 1\n? [a]\n: b\nstreams: {s: {schema: {a: any}, gate: none}}",
            "tidemill.yaml:2",
            "a key is not plain text",
        ),
    ],
)
def test_file_that_is_not_a_configuration(text: str, where: str, message: str) -> None:
    error = refused(text)
    assert message in error.message
    assert error.hint
    assert error.where == where


def test_aliases_that_multiply_are_refused_before_they_unfold() -> None:
    lines = ["version: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "unfolds to too many values" in refused("\n".join(lines)).message


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TIDEMILL__ENGINE__CORES", "many", "engine.cores: 'many' is not a number of cores"),
        ("TIDEMILL__ENGINE__CORSE", "2", "engine.corse: unknown key"),
        ("TIDEMILL__ENGINE__CORES", "[2", "engine.cores: this is not YAML"),
        ("TIDEMILL__ENGINE__CORES__X", "2", "engine.cores: {'x': 2} is not a number of cores"),
        ("TIDEMILL__STREAMS__orders__GATE", "none", "there is no stream 'orders'"),
        ("TIDEMILL__STREAMS__requests", "{}", "streams are declared in the file"),
        ("TIDEMILL__STREAMS", "{}", "streams are declared in the file"),
        ("TIDEMILL__STREAMS__requests__IDENTITY", "x", "streams.requests.identity[0]: column 'x' is not in"),
        ("TIDEMILL__STREAMS__requests__SCHEMA__TS__REQUIRED", "true", "schema.ts is a value, not a section"),
        ("TIDEMILL____X", "1", "the name is not a path of keys"),
        ("TIDEMILL_WAREHOUSE", "gs:///x", "warehouse: 'gs:///x' is not the address of a bucket"),
    ],
)
def test_mistake_in_an_override_names_the_variable(variable: str, value: str, message: str) -> None:
    error = refused(STREAM, **{variable: value})
    assert error.where == f"environment variable {variable}"
    assert message in error.message


def test_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "tidemill.yaml").write_text(read_template("requests"), encoding="utf-8-sig")
    by_folder = load_project(tmp_path, TYPES, {})
    assert by_folder == load_project(tmp_path / "tidemill.yaml", TYPES, {})
    assert by_folder.warehouse == tmp_path / "warehouse"


def test_relative_path_gives_an_absolute_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.yml").write_text(STREAM)
    monkeypatch.chdir(tmp_path)
    project = load_project(Path("other.yml"), TYPES, {})
    assert (project.root, project.warehouse) == (tmp_path, tmp_path / "warehouse")


def test_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "tidemill.yaml"):
        with pytest.raises(ConfigError) as caught:
            load_project(path, TYPES, {})
        assert caught.value.message == f"no tidemill.yaml in {tmp_path}"
        assert caught.value.hint == f"run tidemill init {tmp_path}"
    with pytest.raises(ConfigError, match=r"no tidemill.yaml in .*absent"):
        load_project(tmp_path / "absent", TYPES, {})


def test_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.yaml"
    file.write_bytes(b"version: 1\nwarehouse: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        load_project(file, TYPES, {})
    assert caught.value.where == f"{file}:2"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read_is_not_a_stack_trace(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.yaml"
    file.write_text(STREAM)
    file.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_project(file, TYPES, {})


def test_configuration_knows_no_other_room_and_no_engine() -> None:
    code = "import sys, tidemill.config; print(*sorted(m for m in sys.modules if m.count('.') == 1))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    rooms = {name for name in done.stdout.split() if name.startswith("tidemill.")}
    assert rooms == {"tidemill.config", "tidemill.model"}
    assert not {"pyspark", "pyarrow", "duckdb"} & {name.partition(".")[0] for name in done.stdout.split()}
