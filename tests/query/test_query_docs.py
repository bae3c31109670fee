"""Every query in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "query.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("text", QUERIES)
def test_documented_query_runs(desk, event, text):
    answer = desk([event("10:30:00", latency=5)]).ask(text)
    assert answer.stream == "requests"
    assert answer.table.column_names[0] == "bucket"


def test_there_are_documented_queries():
    assert len(QUERIES) == 3
