"""A retraction after the declaration of a stream has changed: slices that are decided again are read by the
declaration of today, and everything that was made of them follows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest

from tidemill.mill import Mill, recover
from tidemill.model.time import DAY, format_instant, parse_instant
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
streams:
  shop:
    schema: {{id: string, at: string, booked: string, unit: string, n: integer}}
    {declared}
    skew: {{past: null}}
    aggregation_span: 1h
    coverage: watermark
    pack: {{slices: 1}}
    metrics: {{sales: {{kind: counter, measures: [n]}}}}
    windows: {{minutes: {{kind: tumbling, size: 1m, aggregates: {{n: sum(n)}}}}}}
"""
BY_ID = "identity: id"
BY_BOTH = "identity: [id, n]"
AT = "event_time: {column: at, type: iso8601}"
BOOKED = "event_time: {column: booked, type: iso8601}"
TENANT = "tenant: {column: unit}"
BEFORE = f"{BY_ID}\n    {AT}\n    {TENANT}"
# what is declared then, and of both remaining events the tenant, the time and the id
CASES = [
    (f"{BY_BOTH}\n    {AT}\n    {TENANT}", [("a", 0, '["x1",1]'), ("b", 1, '["x2",2]')]),
    (f"{BY_ID}\n    {AT}", [("default", 0, "x1"), ("default", 1, "x2")]),
    (f"{BY_ID}\n    {BOOKED}\n    {TENANT}", [("a", 10, "x1"), ("b", 11, "x2")]),
]


def event(name: str, second: int, unit: str, n: int) -> dict[str, object]:
    at, booked = (format_instant(NOON + (second + more) * 1_000_000) for more in (0, 10))
    return {"id": name, "at": at, "booked": booked, "unit": unit, "n": n}


def lines(*events: dict[str, object]) -> bytes:
    return "\n".join(map(json.dumps, events)).encode()


GONE = [event("gone", -3600, "a", 100)]
KEPT = [event("x1", 0, "a", 1), event("x2", 1, "b", 2), event("gone", -3600, "a", 100)]
LAST = [event("end", 7200, "a", 0)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON + DAY)


def opened(root: Path, declared: str, clock: FakeClock) -> Mill:
    (root / "tidemill.yaml").write_text(CONFIG.format(declared=declared))
    return Mill.open(root, clock=clock)


def agree(mill: Mill, expected: list[tuple[str, int, str]]) -> None:
    """All that the product says of the two events, and no more than that of the repeated one."""

    def rows(sql: str) -> Iterator[tuple[object, ...]]:
        for row in mill.sql(sql, all_tenants=True).table.to_pylist():
            yield tuple(one.second if isinstance(one, datetime) else one for one in row.values())

    kept = "tenant, event_time, event_id FROM {}.shop WHERE n IN (1, 2)"
    both = " UNION ALL ".join(f"SELECT '{view}', {kept.format(view)}" for view in ("datasets", "raw"))
    found = list(rows(f"{both} ORDER BY 1, event_time"))
    assert found == [(view, *event) for view in ("datasets", "raw") for event in expected]
    kept = "FROM rollups.shop WHERE level = '5s' AND n__sum < 100 AND n__sum > 0"
    by_tenant: dict[tuple[str, int], int] = {}
    for (tenant, second, _), n in zip(expected, (1, 2), strict=True):
        key = tenant, second // 5 * 5
        by_tenant[key] = by_tenant.get(key, 0) + n
    sums = {(tenant, at): int(n) for tenant, at, n in rows(f"SELECT tenant, bucket, n__sum {kept}")}  # type: ignore[call-overload]
    assert sums == by_tenant
    audit = mill.verify()
    assert audit.ok, audit.findings


@pytest.fixture(scope="module")
def retold(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool, bool], Path]:
    """The folder of a mill that has taken everything by what was declared before, made once for each of:
    packed or not, and the first slice retracted or not."""

    @cache
    def make(packed: bool, retracted: bool) -> Path:
        folder = tmp_path_factory.mktemp("retold")
        with opened(folder, BEFORE, FakeClock(NOON + DAY)) as mill:
            gone = mill.land("shop", lines(*GONE)).entry.id
            mill.tick()
            mill.land("shop", lines(*KEPT))
            mill.land("shop", lines(*LAST))
            mill.run_until_idle()
            if packed:
                mill.pack("shop", rebuild=True)
            agree(mill, [("a", 0, "x1"), ("b", 1, "x2")])
            if retracted:
                mill.retract(mill.plan_retraction(gone, "a mistake"))
        return folder

    return make


@pytest.mark.parametrize(("declared", "expected"), CASES)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_is_decided_again_is_read_as_declared_today(
    retold, tmp_path, clock, declared, expected, late, packed
):
    """`late`: the declaration changes only after the retraction."""
    shutil.copytree(retold(packed, late), tmp_path, dirs_exist_ok=True)
    with opened(tmp_path, declared, clock) as mill:
        if not late:
            mill.run_until_idle()
            agree(mill, [("a", 0, "x1"), ("b", 1, "x2")])
            gone = mill.ledger("shop")[-1].id
            mill.retract(mill.plan_retraction(gone, "a mistake"))
        mill.run_until_idle()
        agree(mill, expected)
    for part in ("state.db", "state.db-wal", "state.db-shm"):
        (tmp_path / "warehouse" / part).unlink(missing_ok=True)
    recover(tmp_path)
    with Mill.open(tmp_path, clock=clock) as mill:
        mill.run_until_idle()
        agree(mill, expected)


@pytest.mark.parametrize(("declared", "expected"), CASES)
def test_what_is_made_again_after_damage_is_read_as_declared_today(tmp_path, clock, declared, expected):
    with opened(tmp_path, BEFORE, clock) as mill:
        mill.land("shop", lines(*KEPT))
        mill.tick()
        mill.land("shop", lines(*LAST))
        mill.run_until_idle()
        agree(mill, [("a", 0, "x1"), ("b", 1, "x2")])
        raw = mill.snapshot("raw", "shop")
        assert raw is not None
        paths = raw.paths()
    for path in paths:
        Path(path).unlink()
    with opened(tmp_path, declared, clock) as mill:
        mill.repair()
        mill.run_until_idle()
        agree(mill, expected)
