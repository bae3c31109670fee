"""The documentation is true: its commands and Python run and print what it shows, its links lead somewhere,
and its tables say what the code says.

Commands run in process on the shared session. `make` targets are looked up instead of being run, and entering
the virtual environment is left out: the tests are in one. A server that a page starts is a process of its
own, on a free port instead of the one that the page names.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic
import pytest
import typer
import yaml
from tests.support.patience import PATIENCE

from tidemill import eventtime
from tidemill.cli.app import EXIT_CODES
from tidemill.cli.main import every_command, main
from tidemill.config import gateway, parse_project, read_template
from tidemill.config.events import Events, FileSink, RedisSink, WebhookSink
from tidemill.config.metrics import Counter, Gauge, Histogram, Ratio, StateMetric, Term, Transition
from tidemill.config.project import (
    BucketSettings,
    BuilderSettings,
    EngineSettings,
    Limits,
    ScrubSettings,
    Settings,
    SqlSettings,
    StateStore,
)
from tidemill.config.schema import Field
from tidemill.config.stream import (
    Csv,
    EventTime,
    EventType,
    Json,
    Link,
    RetentionSettings,
    Skew,
    Stream,
    Tenant,
)
from tidemill.config.stream_sections import LateRows, LateSlices, Manifests, Messages, Pack, QueryDefaults
from tidemill.config.vectors import CompactionSettings, Vector
from tidemill.config.windowing import Gap, WindowDeclaration
from tidemill.eventtime import registry as eventtime_registry
from tidemill.formats.decide import RefusedRecord, decide
from tidemill.formats.read_plan import plan_for
from tidemill.mill import Mill, recover
from tidemill.model.failpoints import POINTS
from tidemill.model.levels import LEVELS
from tidemill.model.slices import RecordOutcome, Reject
from tidemill.model.time import format_duration, parse_instant
from tidemill.outputs.datasets.rules import REASONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *EXAMPLES]
IN_THE_CLONE = [DOCS / f"{name}.md" for name in ("windows", "streaming-windows", "vectors")]  # in examples
EVERY_PAGE = [
    *PAGES,
    *DECISIONS,
    DOCS / "decisions" / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]
PORT = "8470"  # of servers, as pages name it
RUNS = re.compile(r"^```(console|sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text_of(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section {heading!r}"
    return found.group(1)


def rows(text: str) -> list[list[str]]:
    """Cells of the tables of a text, heads and rules left out."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    rules = [place for place, line in enumerate(cells) if all(re.fullmatch(r"-+", cell) for cell in line)]
    return [line for place, line in enumerate(cells) if place not in rules and place + 1 not in rules]


def code(cell: str) -> str:
    return cell.removeprefix("`").removesuffix("`")


# -- what the pages tell to run


@dataclass
class Command:
    line: str
    shown: list[str] = field(default_factory=list)


def commands(block: str) -> list[Command]:
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif line.startswith("> ") and not found[-1].shown:
            found[-1].line += "\n" + line[2:]
        elif line.strip():
            found[-1].shown.append(line)
    return found


def assert_shows(said: str, wanted: Command) -> None:
    """Each line shown is a line that was said; an ellipsis stands for anything, a gap for any gap."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in wanted.shown:
        pattern = ".*".join(re.escape(piece.strip()) for piece in " ".join(line.split()).split("…"))
        exact = re.compile(pattern.replace(r".*", r"\s*.*\s*"))
        assert any(exact.fullmatch(one) for one in lines), f"$ {wanted.line}\n{line!r} is not in\n{said}"


@dataclass
class Shell:
    """As much of a shell as the pages use, with `tidemill` in process."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    server: subprocess.Popen[str] | None = None
    port: str = PORT  # where it listens

    def run(self, line: str) -> str:
        """Standard output of a line, which must succeed."""
        steps = re.split(r"&&", self.here(line).partition("  #")[0])
        said = "".join(self._one(step.strip()) for step in steps)
        return said.replace(f":{self.port}", f":{PORT}")

    def here(self, text: str) -> str:
        """What a page says, with the address of the server that it started."""
        return text.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}")

    def _begin(self, words: list[str]) -> str:
        """Start a server, as a shell does with `&`; what it says until it takes requests."""
        assert self.server is None
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", *words],
            cwd=self.folder, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TIDEMILL__GATEWAY__PORT": "0"},
        )  # fmt: skip
        assert self.server.stdout is not None
        said = ""
        while not said.endswith("Try:\n"):
            line = self.server.stdout.readline()
            assert line, said
            said += line
        (self.port,) = re.findall(r"http://127\.0\.0\.1:(\d+) ", said)
        return said

    def _end(self) -> str:
        """Stop it, as `kill` does; it must end well."""
        assert self.server is not None
        self.server.terminate()
        said, _ = self.server.communicate(timeout=PATIENCE)
        assert self.server.returncode == 0
        return said

    def _one(self, step: str) -> str:
        first, pipe, second = step.partition(" | ")
        words = shlex.split(first)
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        words = words[len(variables) :]
        if words[0] == "make":
            assert words[1] in make_targets(), step
            return ""
        if words == [".", ".venv/bin/activate"]:
            return ""
        if words[0] == "cd":
            self.folder /= words[1]
            self.monkeypatch.chdir(self.folder)
            return ""
        if words[0] == "tidemill" and words[-1] == "&":
            return self._begin(words[1:-1])
        if words == ["kill", "%1"]:
            return self._end()
        if words[0] == "tidemill":
            return self.tidemill([one for word in words[1:] for one in self._matches(word)], b"", variables)
        if words[0] == "python":
            first = shlex.join([sys.executable, *words[1:]])
        done = subprocess.run(["bash", "-c", first], cwd=self.folder, capture_output=True, check=True)
        if not pipe:
            return done.stdout.decode()
        return self.tidemill(shlex.split(second)[1:], done.stdout, variables)

    def _matches(self, word: str) -> list[str]:
        """The files that a pattern names, or the word itself when it names none."""
        return sorted(glob.glob(word, root_dir=self.folder)) or [word]  # noqa: PTH207 - any word will do

    def tidemill(self, words: list[str], fed: bytes, variables: dict[str, str], code: int = 0) -> str:
        out, err = io.StringIO(), io.StringIO()
        with (
            self.monkeypatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(fed)))
            with pytest.raises(SystemExit) as ended:
                main(words)
        assert ended.value.code == code, f"tidemill {shlex.join(words)}\n{out.getvalue()}{err.getvalue()}"
        return out.getvalue()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", text_of(ROOT / "Makefile"), re.MULTILINE))


@pytest.fixture
def shell(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """In an empty folder; whoever opens a mill gets the shared session."""
    opened, recovered = Mill.open, recover
    monkeypatch.setattr(Mill, "open", staticmethod(lambda *a, **k: opened(*a, **{"spark": spark, **k})))
    monkeypatch.setattr("tidemill.mill.recover", lambda *a, **k: recovered(*a, **{"spark": spark, **k}))
    # A type that a page registers is gone with the page.
    monkeypatch.setattr("tidemill.eventtime.registry._parsers", dict(eventtime_registry._parsers))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDEMILL")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    shell = Shell(tmp_path, monkeypatch)
    yield shell
    if shell.server is not None:
        shell.server.kill()
        shell.server.communicate()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"folder": tmp_path_factory.mktemp("docs") / "shop"}


@pytest.fixture
def shop(shell: Shell, kept: dict[str, Path], tmp_path: Path) -> Shell:
    """In a copy of the sample project with its first two slices accepted."""
    if not kept["folder"].exists():
        shell.run(f"tidemill init {kept['folder']}")
        shell.run(f"tidemill -p {kept['folder']} ingest requests {kept['folder']}/data/requests-[12].ndjson")
        shell.run(f"tidemill -p {kept['folder']} run --once")
    shutil.copytree(kept["folder"], tmp_path / "shop")
    shell.run("cd shop")
    return shell


def follow(page: Path, shell: Shell) -> int:
    """Run the page from top to bottom; how many blocks there were."""
    names: dict[str, object] = {"__name__": "__docs__"}
    blocks = RUNS.findall(text_of(page))
    for kind, block in blocks:
        if kind == "python":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(shell.here(block), page.name, "exec"), names)  # noqa: S102 - our own page
            wanted = [line.removeprefix("#> ") for line in block.splitlines() if line.startswith("#> ")]
            assert said.getvalue().splitlines() == wanted
        else:
            for command in commands(block):
                assert_shows(shell.run(command.line), command)
    return len(blocks)


def test_readme_runs_from_an_empty_folder(shell: Shell) -> None:
    assert follow(ROOT / "README.md", shell) == 3


@pytest.mark.parametrize(
    "page",
    [p for p in sorted(DOCS.glob("*.md")) if p not in IN_THE_CLONE and RUNS.search(text_of(p))],
    ids=name_of,
)
def test_page_runs_in_the_sample_project(shop: Shell, page: Path) -> None:
    assert follow(page, shop) > 0


@pytest.mark.parametrize("page", [*IN_THE_CLONE, *EXAMPLES], ids=name_of)
def test_page_runs_with_the_examples(shell: Shell, page: Path) -> None:
    made = shutil.ignore_patterns("data", "warehouse", "events.ndjson")  # by whoever tried it in the clone
    shutil.copytree(ROOT / "examples", shell.folder / "examples", ignore=made)
    assert follow(page, shell) > 0


# -- the command line


def cli_commands() -> dict[str, typer.core.TyperCommand]:
    return dict(typer.main.get_command(every_command()).commands)  # type: ignore[attr-defined]


def cli_sections() -> dict[str, str]:
    heads = re.findall(r"^## (.+)$", text_of(DOCS / "cli.md"), re.MULTILINE)
    return {head.split()[0]: section(DOCS / "cli.md", head) for head in heads}


def test_every_command_has_a_section_and_no_other_has() -> None:
    assert sorted(cli_sections()) == sorted(cli_commands())


def test_every_option_is_explained() -> None:
    common = section(DOCS / "cli.md", "The command line")
    for name, command in cli_commands().items():
        for parameter in [p for c in (command, *getattr(command, "commands", {}).values()) for p in c.params]:
            for option in [one for one in parameter.opts if one.startswith("--")]:
                if option != "--help":
                    assert f"`{option}" in common or option in cli_sections()[name], (name, option)


def test_exit_codes_are_those_of_the_code() -> None:
    table = section(DOCS / "cli.md", "The command line")
    assert [tuple(row) for row in rows(table) if row[0].isdigit()] == list(EXIT_CODES)


JSON = {
    "types": "types",
    "version": "version",
    "init": "init other",
    "ingest": "ingest requests data/requests-late.ndjson",
    "run": "run --once",
    "expire": "expire --explain",
    "pack": "pack --explain",
    "manifest": "manifest requests",
    "status": "status",
    "ledger": "ledger",
    "slice": "slice",
    "quarantine": "quarantine requests",
    "query": "query 'SELECT count FROM requests' --all-tenants",
    "search": "search requests --all-tenants",
    "catalog": "catalog",
    "late": "late requests",
    "explain": "explain requests",
    "results": "results requests",
    "flush": "flush",
    "verify": "verify",
    "repair": "repair",
    "recover": "recover",
}


def test_json_has_the_keys_that_the_page_names(shop: Shell) -> None:
    reported = cli_sections()
    for name, line in JSON.items():
        words = shlex.split(line)
        if name == "slice":
            words.append(yaml.safe_load(shop.run("tidemill ledger --output json"))["slices"][0]["id"][:12])
        document = yaml.safe_load(shop.tidemill([*words, "--output", "json"], b"", {}))
        shape = "An entry has " if name == "slice" else r"\bJSON[:,] "
        page = re.split(shape, reported["ledger" if name == "slice" else name])[-1].split("\n\n")[0]
        assert [key for key in document if f"`{key}`" not in page] == [], name
        if name in ("status", "catalog"):
            assert [key for key in document["streams"][0] if f"`{key}`" not in page] == []


# -- the configuration

MODELS: dict[str, tuple[type[pydantic.BaseModel], dict[str, object]]] = {
    "The file": (Settings, {"version": 1}),
    "engine": (EngineSettings, {}),
    "limits": (Limits, {}),
    "state": (StateStore, {}),
    "bucket": (BucketSettings, {}),
    "builder": (BuilderSettings, {}),
    "scrub": (ScrubSettings, {}),
    "sql": (SqlSettings, {}),
    "events": (Events, {}),
    "events.sinks.NAME: file": (FileSink, {"kind": "file", "path": "p"}),
    "events.sinks.NAME: webhook": (WebhookSink, {"kind": "webhook", "url": "https://example.com"}),
    "events.sinks.NAME: redis": (RedisSink, {"kind": "redis", "url": "redis://localhost"}),
    "gateway": (gateway.GatewaySettings, {}),
    "gateway.window: adaptive": (gateway.AdaptiveWindow, {}),
    "gateway.window: fixed": (gateway.FixedWindow, {"kind": "fixed"}),
    "gateway.window: sliding": (gateway.SlidingWindow, {"kind": "sliding"}),
    "gateway.window: session": (gateway.SessionWindow, {"kind": "session"}),
    "gateway.triggers": (gateway.Triggers, {}),
    "gateway.memory": (gateway.Memory, {}),
    "gateway.wal": (gateway.WalSettings, {}),
    "gateway.requests": (gateway.Requests, {}),
    "gateway.otlp": (gateway.Otlp, {}),
    "streams.NAME": (Stream, {"name": "n", "schema": {}}),
    "streams.NAME.source_links": (Link, {"href": "https://example.com"}),
    "streams.NAME.csv": (Csv, {}),
    "streams.NAME.json": (Json, {}),
    "streams.NAME.schema.COLUMN": (Field, {"type": "string"}),
    "streams.NAME.event_type": (EventType, {"column": "c", "allowed": ["a"]}),
    "streams.NAME.manifests": (Manifests, {}),
    "streams.NAME.event_time": (EventTime, {}),
    "streams.NAME.messages": (Messages, {"column": "c"}),
    "streams.NAME.vector": (Vector, {"dimension": 3}),
    "streams.NAME.compaction": (CompactionSettings, {}),
    "streams.NAME.tenant": (Tenant, {"column": "c"}),
    "streams.NAME.skew": (Skew, {}),
    "streams.NAME.metrics.NAME: counter": (Counter, {"kind": "counter"}),
    "streams.NAME.metrics.NAME: gauge": (Gauge, {"kind": "gauge", "value": "v"}),
    "streams.NAME.metrics.NAME: histogram": (Histogram, {"kind": "histogram", "value": "v"}),
    "streams.NAME.metrics.NAME: state": (StateMetric, {"kind": "state", "object": "o", "state": "s"}),
    "streams.NAME.metrics.NAME.transitions.NAME": (Transition, {}),
    "streams.NAME.metrics.NAME: ratio": (Ratio, {"kind": "ratio", "numerator": "a", "denominator": "b"}),
    "streams.NAME.metrics.NAME.numerator": (Term, {"metric": "m"}),
    "streams.NAME.retention": (RetentionSettings, {}),
    "streams.NAME.query": (QueryDefaults, {}),
    "streams.NAME.pack": (Pack, {}),
    "streams.NAME.gateway": (gateway.StreamGateway, {}),
    "streams.NAME.gateway.memory": (gateway.StreamMemory, {}),
    "streams.NAME.late_slices": (LateSlices, {}),
    "streams.NAME.windows.NAME": (WindowDeclaration, {"kind": "tumbling", "size": "1m"}),
    "streams.NAME.windows.NAME.gap": (Gap, {"duration": "30m"}),
    "streams.NAME.windows.NAME.late": (LateRows, {}),
}


@pytest.mark.parametrize("heading", MODELS)
def test_every_key_is_documented_with_its_default(heading: str) -> None:
    model, least = MODELS[heading]
    table = {code(row[0]): row for row in rows(section(DOCS / "configuration.md", heading))}
    fields = {info.alias or name: (name, info) for name, info in model.model_fields.items()}
    fields.pop("name", None)  # of a stream: its key
    assert sorted(table) == sorted(fields)
    without = model.model_validate(least)
    for key, (name, info) in fields.items():
        reported = table[key][2]
        if reported in ("required", "none"):
            assert (info.default is None) == (reported == "none"), key
            assert info.is_required() == (reported == "required"), key
        else:
            said = model.model_validate({**least, key: yaml.safe_load(code(reported))})
            assert getattr(said, name) == getattr(without, name), key


def test_every_section_of_the_models_is_documented() -> None:
    heads = re.findall(r"^## (.+)$", text_of(DOCS / "configuration.md"), re.MULTILINE)
    assert heads == list(MODELS)
    reached: set[type] = set()
    models = [Settings, Stream]
    while models:
        model = models.pop()
        reached.add(model)
        inner = [hint for info in model.model_fields.values() for hint in _models_in(info.annotation)]
        models.extend(one for one in inner if one not in reached)
    assert reached == {model for model, _ in MODELS.values()}


def _models_in(hint: object) -> Iterator[type[pydantic.BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        yield hint
    for argument in getattr(hint, "__args__", ()):
        yield from _models_in(argument)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configurations_that_are_shown_load(page: Path) -> None:
    for block in re.findall(r"^```yaml\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL):
        if block.startswith("version:"):
            assert parse_project(block, page, eventtime.registered(), {}).streams
        else:
            key = block.partition(":")[0]
            sample = yaml.safe_load(read_template("requests"))["streams"]["requests"]
            assert yaml.safe_load(block)[key] == sample[key]


# -- windows


def test_the_reasons_why_a_window_waits_are_those_of_the_rules() -> None:
    table = rows(section(DOCS / "windows.md", "When a window is ready"))
    assert sorted(code(row[0]) for row in table if len(row) == 2) == sorted(REASONS)


def test_metrics_are_those_that_are_served(tmp_path: Path) -> None:
    (tmp_path / "tidemill.yaml").write_text(text_of(ROOT / "examples" / "weather" / "tidemill.yaml"))
    with Mill.open(tmp_path) as mill:
        served = re.findall(r"^# TYPE (\w+) ", mill.meter.text(), re.MULTILINE)
    table = rows(section(DOCS / "windows.md", "Metrics"))
    assert [code(row[0]) for row in table] == served


# -- bad input


def test_every_reason_is_documented_and_its_example_gets_it() -> None:
    project = parse_project(read_template("requests"), ROOT / "tidemill.yaml", eventtime.registered(), {})
    plan = plan_for(project.stream("requests"), project.limits)
    table = rows(section(DOCS / "bad-input.md", "Records"))
    assert sorted(code(row[0]) for row in table) == sorted([*Reject, RecordOutcome.CONFLICT])
    arrival = parse_instant("2024-01-15T12:00:00Z")
    for reason, _, example in table:
        if example:
            verdict = decide(code(example).encode(), plan, arrival)
            assert isinstance(verdict, RefusedRecord), example
            assert verdict.reason == code(reason)


# -- architecture, decisions, the benchmark


def test_every_fail_point_is_in_the_crash_table_in_order() -> None:
    table = rows(section(DOCS / "architecture.md", "What a crash leaves"))
    assert [code(row[0]) for row in table] == list(POINTS)


def test_the_table_of_packages_is_the_list_of_layers() -> None:
    source = ROOT / "src" / "tidemill"
    there = {child.parent.name + "/" for child in source.glob("*/__init__.py")}
    there |= {child.name for child in source.glob("*.py") if not child.name.startswith("_")}
    reported = [code(row[0]) for row in rows(section(DOCS / "architecture.md", "The packages"))]
    assert set(reported) == there
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract = tomllib.load(file)["tool"]["importlinter"]["contracts"][0]
    layers = [name.strip() for layer in reversed(contract["layers"]) for name in layer.split("|")]
    names = [name.removesuffix("/").removesuffix(".py") for name in reported]
    rank = {name: number for number, layer in enumerate(contract["layers"]) for name in layer.split(" | ")}
    assert sorted(names) == sorted(layers)
    assert [rank[name] for name in names] == sorted((rank[name] for name in names), reverse=True)


def test_tile_spans_are_those_of_the_levels() -> None:
    table = rows(text_of(DOCS / "decisions" / "0037-many-tiles-in-a-part.md"))
    assert table[0][1:] == [format_duration(level.tile) for level in LEVELS]
    assert table[1][1:] == [str(level.tile // level.width) for level in LEVELS]


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_decision_is_listed_and_has_its_three_parts(page: Path) -> None:
    assert f"({page.name})" in text_of(DOCS / "decisions" / "README.md")
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text_of(page), re.MULTILINE)
    assert parts == ["Context", "Decision", "Consequences"]
    assert text_of(page).startswith(f"# {page.name[:4]}: ")


def test_every_case_of_the_benchmark_is_explained() -> None:
    found = re.search(
        r"^CASES\b.*?\{(.*?)^\}", text_of(ROOT / "bench" / "cases.py"), re.MULTILINE | re.DOTALL
    )
    assert found
    table = rows(section(DOCS / "performance.md", "The cases"))
    assert [code(row[0]) for row in table] == re.findall(r'"(\w+)":', found.group(1))


def test_results_of_the_benchmark_go_between_the_comments(
    load_script: Callable[[str], dict[str, object]],
) -> None:
    script = load_script("bench_table")
    compared = {"ours": 4.0, "peer": 5.0, "ratio": 1.25, "target": 1.0, "sense": ">=", "note": "a | b"}
    alone = {"ours": 1234.5, "peer": None, "ratio": None, "target": None}
    results = [
        {"case": "whole_job vs duckdb", "ok": True, "unit": "s", **compared},
        {"case": "cold_start", "ok": True, "unit": "s", **alone},
    ]
    table = script["rendered"](results)  # type: ignore[operator]
    assert rows(table) == [
        ["`whole_job vs duckdb`", "4 s", "5 s", "1.25", ">= 1", "yes", "a / b"],
        ["`cold_start`", "1,234 s", "", "", "", "", ""],
    ]
    page = text_of(DOCS / "performance.md")
    once = script["filled"](page, table)  # type: ignore[operator]
    assert script["filled"](once, table) == once  # type: ignore[operator]
    assert once.replace(table, "") == re.sub(r"(?s)(bench:begin -->\n).*?(<!-- bench:end)", r"\1\2", page)


@pytest.fixture
def load_script() -> Callable[[str], dict[str, object]]:
    def load(name: str) -> dict[str, object]:
        path = ROOT / "scripts" / f"{name}.py"
        names: dict[str, object] = {"__name__": name, "__file__": str(path)}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)  # noqa: S102 - our own script
        return names

    return load


# -- all pages


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if not target.startswith(("https://", "http://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    assert set(re.findall(r"`make ([a-z]+)", text_of(page))) <= make_targets()
