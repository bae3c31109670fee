"""SQL over a stream that has no events yet."""

from __future__ import annotations

from tidemill.mill import Mill

CONFIG = """
version: 1
streams:
  shop:
    schema:
      id: string
      site.name: string
      kwh: {type: decimal, scale: 3}
      tags: {type: array, items: string}
    identity: id
    event_time: {mode: processing}
"""
TYPED = "SELECT site.name, kwh, tags[1] AS tag, count(*) AS n FROM raw.shop GROUP BY ALL"


def test_declared_columns_are_there_before_the_first_event(tmp_path):
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    with Mill.open(tmp_path) as mill:
        before = mill.sql(TYPED).table
        columns = mill.sql_views()["raw.shop"]
        assert before.num_rows == 0
        mill.land("shop", b'{"id": "a", "site": {"name": "n"}, "kwh": 1.5, "tags": ["x"]}', format="ndjson")
        mill.tick()
        after = mill.sql(TYPED).table
        assert after.schema == before.schema
        assert [tuple(map(str, row.values())) for row in after.to_pylist()] == [("n", "1.500", "x", "1")]
        assert mill.sql_views()["raw.shop"] == columns
