"""Reduces windows to one digest each, so that contenders can be compared; run as `… FILES`.

FILES is JSON: start of a window -> its files. The order of rows is checked within each Arrow file and does
not matter for the digest. Nothing here is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

from tidemill.model.time import HOUR

ORDER = ("event_time", "event_id", "tenant")
STEP = 15 * 60 * 1_000_000
BATCH_ROWS = 32_768  # at most
AT_ONCE = 100  # windows


def windows(files: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Start of each window -> rows, and two sums of their 128-bit hashes."""
    names = sorted(files, key=int)
    found: dict[str, str] = {}
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        for first in range(0, len(names), AT_ONCE):
            found |= _digests(db, {name: files[name] for name in names[first : first + AT_ONCE]})
    return found


def _digests(db: duckdb.DuckDBPyConnection, files: Mapping[str, Sequence[str]]) -> dict[str, str]:
    tables = []
    for start, paths in files.items():
        for path in paths:
            table = _arrow(path, int(start)) if path.endswith(".arrow") else _parquet(path)
            tables.append(table.append_column("~start", pa.repeat(int(start), table.num_rows)))
    rows = pa.concat_tables(tables, promote_options="permissive")
    db.register("rows", rows)
    names = sorted(name for name in rows.column_names if name != "~start")
    spelled = ", ".join(f"""coalesce("{name}"::VARCHAR, '\\N')""" for name in names)
    answer = db.execute(f"""
        SELECT "~start", count(*), sum(md5_number_lower(k)::HUGEINT), sum(md5_number_upper(k)::HUGEINT)
        FROM (SELECT "~start", concat_ws('\x1f', {spelled}) AS k FROM rows) GROUP BY 1""").fetchall()
    return {str(start): ":".join(map(str, rest)) for start, *rest in answer}


def _arrow(path: str, start: int) -> pa.Table:
    """A dataset of ours, which also is in order, of its hour, and in batches that end with a step."""
    with ipc.open_file(path) as reader:
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        table = pa.Table.from_batches(batches, reader.schema)
    order = pc.sort_indices(table, [(name, "ascending") for name in ORDER])
    assert order.equals(pa.array(range(table.num_rows), pa.uint64())), f"{path} is not in order"
    times = [batch.column("event_time").cast(pa.int64()) for batch in batches]
    for batch in times:
        assert start <= batch[0].as_py() <= batch[-1].as_py() < start + HOUR, f"{path} holds other hours"
    for before, after in pairwise(times):
        cut = before[-1].as_py() // STEP == after[0].as_py() // STEP
        assert len(before) == BATCH_ROWS or not cut, f"{path}: a batch ends inside a step"
    return table.replace_schema_metadata(None)


def _parquet(path: str) -> pa.Table:
    return pq.read_table(path, partitioning=None)


def digests(files: Mapping[int, Iterable[Path]], told: Path) -> dict[str, str]:
    """The same in a process of its own: what it needs of memory is not the contender's."""
    told.write_text(json.dumps({start: [str(path) for path in paths] for start, paths in files.items()}))
    command = [sys.executable, "-m", "bench.check_windows", str(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the windows cannot be read:\n{done.stderr}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(windows(json.loads(Path(sys.argv[1]).read_text()))))
