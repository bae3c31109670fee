"""What an archive for executors holds."""

from __future__ import annotations

from pathlib import Path

import tidemill
from tidemill.engine.bundle import bundle_files


def test_the_package_and_all_it_needs_are_packed_but_spark_is_not() -> None:
    packages, files = bundle_files()
    names = {name for _, name in files}
    roots = {name.split("/")[0] for name in names}
    assert {"tidemill", "pyarrow", "numpy", "numba", "llvmlite", "duckdb", "deltalake", "orjson"} <= roots
    assert "pyspark" not in roots
    assert "py4j" not in roots
    assert any(package.startswith("tidemill==") for package in packages)
    package = Path(str(tidemill.__file__)).parent
    shipped = {
        f"tidemill/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.suffix in {".py", ".yaml", ".typed"}
    }
    assert shipped <= names
    assert not any(name.endswith(".pyc") for name in names)
