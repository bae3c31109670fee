"""Answers about random metrics of all kinds against the oracle, over rows that the oracle itself wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.metrics_answers import agree_on_answers
from tests.support.oracles.metrics import MetricOracle
from tests.support.oracles.oracle import Landing, Oracle
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import OracleStream
from tests.support.strategies.metrics import START, metered_streams, sensor_feeds

from tidemill.config import parse_project
from tidemill.model.completeness import Available
from tidemill.model.levels import LEVELS, Level
from tidemill.model.time import Interval, align
from tidemill.outputs.rollups.spec import spec_for
from tidemill.query import Answer, Files, Querier

some = examples(12)
many = at_length(3_000)


class Shelf:
    """The rows of every level, in two files each."""

    version, available, raw = 1, Available(), None

    def __init__(self, folder: Path, schema: pa.Schema, oracle: MetricOracle) -> None:
        self._folder = folder
        fields = pa.schema([field for field in schema if field.name != "level"])
        for level in LEVELS:
            rows = oracle.rows(level.name)
            for part in (0, 1):
                table = pa.Table.from_pylist(rows[part::2], schema=fields)
                pq.write_table(table, folder / f"{level.name}-{part}.parquet")

    def files_for(self, level: str, spans: Sequence[Interval]) -> Files:
        paths = sorted(self._folder.glob(f"{level}-*.parquet"))
        return Files([str(path) for path in paths], sum(pq.read_metadata(path).num_rows for path in paths))


def answered(folder: Path, stream: OracleStream, feed: Sequence[Landing], level: Level, back: int) -> None:
    oracle = Oracle(stream)
    for landing in feed:
        oracle.land(*landing)
    expected = MetricOracle(stream, oracle.accepted)
    text = project_text([stream])
    streams = parse_project(text, Path("tidemill.yaml"), ["unixtimestamp_us"], {}).streams
    shelf = Shelf(folder, spec_for(streams[stream.name]).schema, expected)
    querier = Querier(streams, lambda name: shelf)

    def ask(text: str, tenant: str) -> pa.Table:
        answer = querier.ask(text, tenant=tenant, now=START)
        assert isinstance(answer, Answer)
        assert answer.level == level.name
        return answer.table

    start = align(START, level.width) - back * level.width
    agree_on_answers(ask, expected, level, Interval(start, start + 25 * level.width))
    querier.close()


@some
@given(
    stream=metered_streams(),
    feed=sensor_feeds(),
    level=st.sampled_from(LEVELS),
    back=st.integers(0, 20),
)
def test_answers_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    stream: OracleStream,
    feed: list[Landing],
    level: Level,
    back: int,
) -> None:
    answered(tmp_path_factory.mktemp("shelf"), stream, feed, level, back)


@pytest.mark.soak
@many
@given(
    stream=metered_streams(),
    feed=sensor_feeds(max_events=60),
    level=st.sampled_from(LEVELS),
    back=st.integers(0, 20),
)
def test_answers_are_those_of_the_oracle_at_length(
    tmp_path_factory: pytest.TempPathFactory,
    stream: OracleStream,
    feed: list[Landing],
    level: Level,
    back: int,
) -> None:
    answered(tmp_path_factory.mktemp("shelf"), stream, feed, level, back)
