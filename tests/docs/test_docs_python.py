"""docs/python.md has all of the public Python API, as the code has it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tidemill
import tidemill.mill
from tidemill import AsyncClient, Client, Mill
from tidemill.config import FILE_NAME, read_template

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "scripts" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_script_writes(script: ModuleType) -> None:
    assert script.filled(PAGE, script.rendered()) == PAGE, "run scripts/api_reference.py"


def public(owner: object) -> Iterator[str]:
    return (name for name in dir(owner) if not name.startswith("_"))


@pytest.mark.parametrize(("owner", "prefix"), [(Client, "client"), (AsyncClient, "client")])
def test_every_method_of_a_client_is_there(owner: type, prefix: str) -> None:
    section = PAGE.split(f"### {owner.__name__}\n")[1].partition("\n### ")[0]
    assert [name for name in public(owner) if f"\n{prefix}.{name}(" not in plain(section)] == []


def test_every_method_property_and_attribute_of_a_mill_is_there(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(read_template("requests"), encoding="utf-8")
    section = PAGE.split("### Mill\n")[1].partition("\n### ")[0]
    with Mill.open(tmp_path) as mill:
        attributes = {name for name in vars(mill) if not name.startswith("_")}
    assert [name for name in attributes if f"`{name}`" not in section] == []
    members = [name for name in public(Mill) if name not in attributes]
    assert [name for name in members if not re.search(rf"\n[Mm]ill\.{name}[(:]", section)] == []


def plain(section: str) -> str:
    return section.replace("\nasync ", "\n")


def test_the_public_names_are_those_of_the_page() -> None:
    table = PAGE.split("| name | what it is |")[1].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(tidemill.__all__)
    assert set(tidemill.__all__) <= set(dir(tidemill))
    assert tidemill.Mill is tidemill.mill.Mill


def test_import_tidemill_loads_nothing_else() -> None:
    script = (
        "import sys, tidemill; print(sorted(name for name in sys.modules if name.startswith('tidemill.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
