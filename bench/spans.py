"""Random spans over a year of data, of any alignment: how long an answer takes, beside DuckDB over raw.

No time counts before every answer was found to be the one that DuckDB computes from raw.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from decimal import Decimal

import duckdb

from bench import visits
from bench.ours_sparse import STREAM, SparseStore
from bench.running import OUT, Bench, Result, within
from bench.work import START
from tidemill.model.time import DAY, HOUR, Interval, format_instant

YEAR = 366 * DAY
HALF_MS, MOST_MS = 30.0, 100.0
TARGET = 20.0
Answer = tuple[int, Decimal]


def spans(bench: Bench) -> list[Result]:
    """Spans of an hour to a year, of any alignment."""
    assert bench.ours is not None
    store = SparseStore(OUT / "spans", bench.ours.session(), daily=False)
    bench.say(f"spans: loading {bench.plan.span_events:,} events")
    store.load(visits.year(bench.plan.span_events))
    asked = _drawn(max(10, 10 * bench.plan.queries))
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false; SET threads = 2")
        files = store.raw_files()
        for span in asked:
            if (ours := _ours(store, span)) != (theirs := _theirs(db, files, span)):
                raise RuntimeError(f"{span}: the answer is {ours}, by DuckDB over raw {theirs}")
        own = sorted(_milliseconds(lambda each: _ours(store, each), span) for span in asked)
        peer = sorted(_milliseconds(lambda each: _theirs(db, files, each), span) for span in asked)
    store.close()
    middle, last = own[len(own) // 2], own[math.ceil(len(own) * 0.99) - 1]
    theirs_middle = peer[len(peer) // 2]
    ratio = theirs_middle / middle
    note = f"of {len(asked)} random spans of an hour to a year, warm"
    return [
        within("spans_p50", middle, None, HALF_MS, "ms", note),
        within("spans_p99", last, None, MOST_MS, "ms", note),
        Result(
            "spans vs duckdb over raw",
            middle,
            theirs_middle,
            ratio,
            TARGET,
            ratio >= TARGET,
            "ms",
            ">=",
            note,
        ),
    ]


def _drawn(count: int) -> list[Interval]:
    chance = random.Random(15)
    found = []
    for _ in range(count):
        length = chance.randint(HOUR, YEAR)
        start = START + chance.randrange(YEAR - length + 1)
        found.append(Interval(start, start + length))
    return found


def _ours(store: SparseStore, span: Interval) -> Answer:
    bounds = f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}"
    (row,) = store.mill.query(f"SELECT count, sum(fee) FROM {STREAM}.visits {bounds}").to_pylist()
    return row["count"], Decimal(row["sum(fee)"])


def _theirs(db: duckdb.DuckDBPyConnection, files: Sequence[str], span: Interval) -> Answer:
    found = db.execute(
        "SELECT count(*), coalesce(sum(CAST(payload ->> '$.fee' AS DECIMAL(18, 2))), 0)"
        " FROM read_parquet($files, hive_partitioning = false)"
        " WHERE event_time >= make_timestamptz($start) AND event_time < make_timestamptz($end)",
        {"files": list(files), "start": span.start, "end": span.end},
    ).fetchone()
    assert found is not None
    return found[0], Decimal(found[1])


def _milliseconds(answer: Callable[[Interval], Answer], span: Interval) -> float:
    began = time.perf_counter()
    answer(span)
    return (time.perf_counter() - began) * 1000
