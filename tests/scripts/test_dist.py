"""The wheel has all that the product needs and nothing else, and works where there is no clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CONSOLE = SOURCE / "tidemill" / "server" / "console" / "static"
DATA = (
    "config/templates/events.yaml",
    "config/templates/requests.yaml",
    "py.typed",
    *sorted(
        path.relative_to(SOURCE / "tidemill").as_posix() for path in CONSOLE.rglob("*") if path.is_file()
    ),
)


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel, and a folder to work in."""

    environment: Path
    folder: Path

    def run(self, *command: str) -> str:
        """Standard output of a command, which must succeed, with nothing of this process' Python settings."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "TIDEMILL", "VIRTUAL_ENV"))
        }
        path = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        done = subprocess.run(
            command, cwd=self.folder, env={**kept, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (made,) = dist.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One without the clone. What the wheel depends on is taken from where these tests have it."""
    folder = tmp_path_factory.mktemp("outside") / "env"
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, str(wheel)], check=True
    )
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    # The .pth files in there, such as the one that leads to the clone, do not count from here.
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "dependencies.pth").write_text("".join(f"{one}\n" for one in sorted(others)), encoding="utf-8")
    return folder


@pytest.fixture
def installation(environment: Path, tmp_path: Path) -> Installation:
    return Installation(environment, tmp_path)


def version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"tidemill-{version()}-py3-none-any.whl"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / "tidemill").rglob("*.py")}
    assert names == modules | {f"tidemill/{name}" for name in DATA}


def test_the_source_distribution_has_what_the_wheel_is_built_from_and_the_docs(dist: Path) -> None:
    name = f"tidemill-{version()}"
    with tarfile.open(dist / f"{name}.tar.gz") as archive:
        names = {Path(one).relative_to(name) for one in archive.getnames()}
    assert {one.parts[0] for one in names if len(one.parts) > 1} == {"docs", "src"}
    assert {Path("LICENSE"), Path("README.md"), Path("CHANGELOG.md"), Path("pyproject.toml")} <= names
    assert {Path("src/tidemill") / one for one in DATA} <= names


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version())} - \d{{4}}-\d\d-\d\d", heads[1])


def test_an_installed_wheel_makes_a_project_and_reads_it(installation: Installation) -> None:
    where = installation.run("python", "-c", "import tidemill; print(tidemill.__file__)")
    assert Path(where.strip()).is_relative_to(installation.environment)
    assert installation.run("tidemill", "version").split()[:2] == ["tidemill", version()]
    installation.run("tidemill", "init", ".")
    landed = installation.run("tidemill", "ingest", "requests", "data/requests-1.ndjson")
    assert landed.startswith("landed")
    query = "EXPLAIN SELECT count FROM requests GROUP BY region"
    assert "requests" in installation.run("tidemill", "query", query, "--all-tenants")


def test_an_installed_wheel_has_the_console_and_its_charts(installation: Installation) -> None:
    code = "from tidemill.server.console import routes; print(len(routes._paths()), *routes.chart_files())"
    found = installation.run("python", "-c", code).split()
    assert found == [str(len(list(CONSOLE.rglob("*.*"))) + 2), "bokeh.min.js", "bokeh-api.min.js"]


@pytest.mark.soak
def test_the_quick_start_of_the_readme_runs_from_an_installed_wheel(installation: Installation) -> None:
    """In a shell. Kernels are compiled for the new place first, which takes most of the time."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On the command line\n")[2]
    lines = re.findall(r"^\$ (.+)$", readme.partition("\n## ")[0], re.MULTILINE)
    steps = [line for line in lines if not line.startswith("make ")]
    assert len(steps) == len(lines) - 1
    said = " ".join(installation.run("bash", "-ec", "\n".join(steps)).split())
    for line in ("380 accepted", "ap 132 27922.066", "40 accepted (40 late)", "tiles recomputed: equal"):
        assert line in said
