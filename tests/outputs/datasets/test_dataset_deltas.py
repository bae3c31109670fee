"""Batches of deltas are the same bytes however raw is cut and however little memory there is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.outputs.datasets.test_dataset_build import TEN, TINY, A, B, Row, a_build, built, read, write_part

from tidemill.config import Stream
from tidemill.model.time import HOUR, SECOND
from tidemill.model.windows import Dataset
from tidemill.outputs.datasets.kernel import BuildUnit, Sizes, WindowUnit, build_windows

STREAM = Stream.model_validate(
    {
        "name": "weather",
        "kind": "delta",
        "vector": {"dimension": 4},
        "schema": {"ts": "integer"},
        "event_time": {"column": "ts", "type": "unixtimestamp_us"},
        "tenant": {"value": "default"},
        "aggregation_span": "1h",
    }
)


def deltas(count: int, seed: int) -> list[Row]:
    random, rows = Random(seed), []
    for number in range(count):
        op = random.choice(["add", "set", "set", "set", "replace", "scale", "delete"])
        said: dict[str, object] = {"vector_id": f"v{random.randrange(9)}", "op": op}
        if op == "set":
            places = sorted(random.sample(range(4), random.randrange(1, 4)))
            said |= {"indices": places, "values": [random.random() for _ in places]}
        elif op == "scale":
            said["values"] = [2]
        elif op != "delete":
            said["values"] = [random.random() for _ in range(4)]
        time = TEN + random.randrange(HOUR // SECOND) * SECOND
        name, tenant = f"d{number:04d}", random.choice(["acme", "globex"])
        rows.append((time, tenant, name, random.choice([A, B]), number, json.dumps(said)))
    return rows


def build(folder: Path, parts: list[str], sizes: Sizes) -> Dataset:
    folder.mkdir()
    unit = BuildUnit(STREAM, str(folder), [WindowUnit(a_build([A, B]), parts)], sizes=sizes)
    return built(list(build_windows(unit)))


@pytest.mark.parametrize("sizes", [TINY, replace(TINY, bucket=40_000), replace(TINY, buffer=1)])
def test_what_is_merged_does_not_depend_on_memory_or_parts(tmp_path: Path, sizes: Sizes) -> None:
    rows = deltas(900, 7)
    whole = build(tmp_path / "whole", [write_part(tmp_path / "raw/all.parquet", rows)], Sizes())
    halves = [write_part(tmp_path / f"raw/{n}.parquet", rows[n::2], 50) for n in range(2)]
    spilled = build(tmp_path / "spilled", halves, sizes)
    assert spilled == whole
    assert (tmp_path / "spilled" / whole.file).read_bytes() == (tmp_path / "whole" / whole.file).read_bytes()
    assert whole.deltas is not None
    assert (whole.deltas.received, whole.deltas.vectors) == (900, 18)
    assert whole.rows == read(tmp_path / "whole", whole).num_rows < 900
