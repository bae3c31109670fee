"""Every query in the documentation runs over the stream that it shows; the document says what a text says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tidemill import eventtime
from tidemill.config import parse_project
from tidemill.model.time import parse_instant
from tidemill.query import Answer, Explanation, NoRollups, Querier

PAGE = (Path(__file__).parents[2] / "docs" / "query.md").read_text("utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, flags=re.DOTALL)
(DOCUMENT,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
(DECLARED,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
NOW = parse_instant("2024-01-01T12:00:00Z")


@pytest.fixture(scope="module")
def querier():
    project = parse_project(DECLARED, Path("query.md"), eventtime.registered(), {})
    return Querier(project.streams, lambda name: NoRollups())


@pytest.mark.parametrize("text", QUERIES)
def test_documented_query_runs(querier, text):
    answer = querier.ask(text, tenant=None, now=NOW)
    assert isinstance(answer, Answer | Explanation)
    assert answer.stream == "requests"


def test_documented_document_runs(querier):
    answer = querier.ask(json.loads(DOCUMENT), tenant=None, now=NOW)
    assert answer.table.column_names == ["bucket", "region", "count", "mean"]
    assert answer.table.equals(querier.ask(DOCUMENT, tenant=None, now=NOW).table)


def test_there_are_documented_queries():
    assert len(QUERIES) >= 16


def test_7d_buckets_start_on_thursdays(desk, event):
    (row,) = desk([event("10:00:00")]).ask("SELECT count FROM requests USING ROLLUP 7d").table.to_pylist()
    assert row["bucket"].strftime("%A %Y-%m-%d") == "Thursday 2023-12-28"
