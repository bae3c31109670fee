"""The rules about files of a warehouse, which may be objects of a bucket, and about names of modules."""

from __future__ import annotations

import ast

import pytest
from scripts.house_rules import file_faults, module_faults

ANYWHERE = "src/tidemill/outputs/index/indexer.py"


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("open(path)", "builtins.open"),
        ("import os\nos.replace(path, other)", "os.replace"),
        ("from os import replace as move\nmove(path, other)", "os.replace"),
        ("import os.path\nos.path.getsize(path)", "os.path.getsize"),
        ("import pyarrow.parquet as parquet\nparquet.read_table(path)", "pyarrow.parquet.read_table"),
        ("from pyarrow import parquet\nparquet.ParquetFile(path)", "pyarrow.parquet.ParquetFile"),
        ("import pyarrow as pa\npa.ipc.open_file(str(path))", "pyarrow.ipc.open_file"),
        ("from pyarrow import dataset as ds\nds.dataset(path)", "pyarrow.dataset.dataset"),
        ("import tempfile\ntempfile.mkdtemp(dir=root)", "tempfile.mkdtemp"),
        ("from deltalake import DeltaTable\nDeltaTable(str(root))", "deltalake.DeltaTable"),
    ],
)
def test_what_opens_a_path_past_the_storage_is_found(text: str, called: str) -> None:
    (fault,) = file_faults(ANYWHERE, ast.parse(text))
    line = text.count("\n") + 1
    assert fault.startswith(f"{ANYWHERE}:{line}: {called}() of what may be in a bucket")


@pytest.mark.parametrize(
    "text",
    [
        "path.open('rb')",
        "import pyarrow.parquet as pq\npq.read_table(local_copy(path))",
        "import pyarrow as pa\npa.ipc.open_file(pa.py_buffer(content))",
        "from pyarrow import ipc\nipc.new_file(self._sink, schema)",
        "import os\nos.stat(on_disk(path))",
        "import tempfile\ntempfile.TemporaryDirectory(prefix='x')",
        "def replace(path): ...\nreplace(path)",
    ],
)
def test_what_the_storage_opens_or_copies_is_allowed(text: str) -> None:
    assert list(file_faults(ANYWHERE, ast.parse(text))) == []


def test_the_storage_itself_may() -> None:
    assert list(file_faults("src/tidemill/storage/files.py", ast.parse("open(path)"))) == []


def test_a_module_that_does_not_say_what_is_inside_is_found() -> None:
    odd = [
        "src/tidemill/storage/state/window_acts.py",
        "tests/support/wal_playing.py",
        "src/tidemill/raw/utils.py",
    ]
    plain = ["src/tidemill/storage/state/windows_sql.py", "tests/support/wal_driver.py", "bench/common.py"]
    assert [len(list(module_faults(path))) for path in odd + plain] == [1, 1, 1, 0, 0, 0]
