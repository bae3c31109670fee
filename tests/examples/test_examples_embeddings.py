"""The embeddings example by its values: a small version of it, held against every delta in order."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.oracles.vectors import VectorOracle

from tidemill.mill import Mill
from tidemill.model.deltas import Delta, Op
from tidemill.model.time import parse_instant
from tidemill.testing import FakeClock

EXAMPLE = Path(__file__).parents[2] / "examples" / "embeddings"
HOURS = runpy.run_path(str(EXAMPLE / "make.py"))["hours"]
VECTORS, DELTAS = 30, 600


def delta(line: str) -> Delta:
    said = json.loads(line)
    indices = tuple(said["indices"]) if "indices" in said else None
    values = tuple(map(float, said.get("values", ())))
    at, op = parse_instant(said["at"]), Op(said["op"])
    return Delta(said["vector_id"], said["delta_id"], at, op, values, indices)


@pytest.fixture(scope="module")
def oracle() -> VectorOracle:
    return VectorOracle(384, [delta(line) for _, lines in HOURS(VECTORS, DELTAS) for line in lines])


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """The first twenty hours in one round, the others in a round each."""
    root = tmp_path_factory.mktemp("embeddings")
    shutil.copy(EXAMPLE / "tidemill.yaml", root)
    with Mill.open(root, clock=FakeClock(parse_instant("2024-01-16T00:00:00Z"))) as mill:
        for number, (name, lines) in enumerate(HOURS(VECTORS, DELTAS)):
            mill.land("embeddings", "".join(lines).encode(), name=name)
            if number >= 19:
                mill.run_until_idle()
        yield mill


def test_the_generator_makes_as_many_as_asked_for_and_the_same_again() -> None:
    made = dict(HOURS(VECTORS, DELTAS))
    assert made == dict(HOURS(VECTORS, DELTAS))
    assert (len(made), sum(map(len, made.values()))) == (24, DELTAS)
    assert len(made["hour-00.ndjson"]) == VECTORS
    ops = {json.loads(line)["op"] for lines in made.values() for line in lines}
    assert ops == {op.value for op in Op}


def test_every_delta_is_accepted(mill: Mill) -> None:
    (status,) = mill.status()
    assert (status.totals["accepted"], status.totals["rejected"]) == (DELTAS, 0)


@pytest.mark.parametrize("at", [None, "2024-01-15T00:30:00Z", "2024-01-15T12:00:00Z", "2024-01-15T23:30:00Z"])
def test_vectors_are_what_the_deltas_make_of_them(mill: Mill, oracle: VectorOracle, at: str | None) -> None:
    found = mill.vectors("embeddings", oracle.ids, at).to_pylist()
    assert len(found) == VECTORS
    for row in found:
        want = oracle.at(row["vector_id"], None if at is None else parse_instant(at))
        assert row["exists"] == (want is not None)
        assert want is None or np.array(want).tobytes() == np.array(row["values"]).tobytes()


def test_chains_are_short(mill: Mill, oracle: VectorOracle) -> None:
    for name in oracle.ids:
        chain = mill.chain("embeddings", name)
        assert len(chain.deltas) <= 8  # as many as start a compaction
        assert chain.merged + len(chain.deltas) == len(oracle.chain(name))
