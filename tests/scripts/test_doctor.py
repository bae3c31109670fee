"""`scripts/doctor.sh` on machines that lack something: it names the lack and the cure, and exits 1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCTOR = Path(__file__).resolve().parents[2] / "scripts" / "doctor.sh"


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\"' >&2"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder to be the whole path: the tools of any system, no Python and no Java."""
    for tool in ("sh", "sed", "head"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def install(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def doctor(machine: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(DOCTOR)],
        env={"PATH": str(machine), **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def this_python(machine: Path, name: str) -> None:
    # Not a link: the interpreter would look for its library beside the link.
    install(machine, name, f'exec "{sys.executable}" "$@"')


def test_a_machine_with_both_gets_the_python_to_use(machine: Path) -> None:
    this_python(machine, "python3")
    install(machine, "java", java("17.0.15"))
    found = doctor(machine)
    assert (found.returncode, found.stdout, found.stderr) == (0, "python3\n", "")


def test_an_old_python3_gives_way_to_a_newer_one_beside_it(machine: Path) -> None:
    install(machine, "python3", "echo 3.9")
    this_python(machine, "python3.12")
    install(machine, "java", java("21"))
    found = doctor(machine)
    assert (found.returncode, found.stdout) == (0, "python3.12\n")


def test_too_old_a_python_is_named_with_what_to_install(machine: Path) -> None:
    install(machine, "python3", "echo 3.9")
    install(machine, "java", java("17.0.15"))
    found = doctor(machine)
    assert (found.returncode, found.stdout) == (1, "")
    assert "Python 3.11 to 3.14 is needed" in found.stderr
    assert "python3 is 3.9" in found.stderr
    assert "install one (Debian/Ubuntu: python3.13 python3.13-venv" in found.stderr


def test_a_python_that_is_too_new_gives_way_to_one_that_all_parts_exist_for(machine: Path) -> None:
    install(machine, "python3", "echo 3.15")
    install(machine, "java", java("17.0.15"))
    found = doctor(machine)
    assert found.returncode == 1
    assert "Python 3.11 to 3.14 is needed" in found.stderr
    assert "python3 is 3.15" in found.stderr
    this_python(machine, "python3.14")
    assert doctor(machine).stdout == "python3.14\n"


def test_an_override_that_is_too_old_is_not_replaced_silently(machine: Path) -> None:
    this_python(machine, "python3")
    install(machine, "java", java("17.0.15"))
    old = install(machine / "old", "python", "echo 3.10")
    found = doctor(machine, PYTHON=str(old))
    assert found.returncode == 1
    assert f"{old} is 3.10" in found.stderr


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_too_old_a_java_is_named_with_what_to_install(machine: Path, version: str) -> None:
    this_python(machine, "python3")
    install(machine, "java", java(version))
    found = doctor(machine)
    assert (found.returncode, found.stdout) == (1, "")
    assert f"Java >= 17 is needed, and the java on the path is {version}" in found.stderr
    assert "install a Java runtime, version 17 or newer" in found.stderr


def test_java_home_wins_over_the_path(machine: Path) -> None:
    this_python(machine, "python3")
    install(machine, "java", java("11.0.2"))
    install(machine / "jdk" / "bin", "java", java("17"))
    assert doctor(machine, JAVA_HOME=str(machine / "jdk")).returncode == 0


def test_all_that_is_missing_is_said_at_once(machine: Path) -> None:
    found = doctor(machine, JAVA_HOME=os.devnull)
    assert found.returncode == 1
    assert "Python 3.11 to 3.14 is needed, and none was found" in found.stderr
    assert f"JAVA_HOME={os.devnull} has no bin/java that runs" in found.stderr
