"""FILTER finds the same rows by columns as by payloads, and reads no more of a part than it must."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from tidemill import Mill
from tidemill.model.time import MINUTE, SECOND, parse_instant
from tidemill.query.search.search import SearchPage
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
engine: {cores: 2}
streams:
  feed:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      n: integer
      d: {type: decimal, scale: 1}
      x: string
      b: boolean
      f: float
      t: timestamp
      site.name: string
    event_time: {column: at, type: unixtimestamp_us}
    identity: id
    pack: {enabled: false}
"""
Json = dict[str, object]
NEAR = Decimal("2.50000000000000000005")  # its double is 2.5
HUGE = Decimal("1e400")  # its double is infinity


def records() -> list[list[Json]]:
    """By slice. The last one has a decimal that its column rounds, and an array in place of an object."""
    found: list[list[Json]] = []
    for turn in range(4):
        lines: list[Json] = []
        for n in range(20):
            number = 100 * turn + n
            event: Json = {"id": f"e{number}", "at": NOON + number * SECOND, "n": number, "x": f"x{number}"}
            event |= {"d": n / 2, "b": n % 2 == 0, "f": n / 3, "t": f"2024-01-15T12:00:{n:02d}Z"}
            if n % 3:
                event["site"] = {"name": f"s{n % 5}"}
            if n % 7 == 0:
                event |= {"x": None, "n": None}
            lines.append(event)
        found.append(lines)
    found[3][5] |= {"d": 2.25}
    found[3][7] |= {"f": NEAR}
    found[3][8] |= {"f": HUGE}
    found[3][6] |= {"site": [{"name": "s1"}, {"name": "fan"}]}
    return found


def text(event: Json) -> str:
    """As JSON; a Decimal as the number that it is."""
    exact = {f'"{number}"': str(number) for number in event.values() if isinstance(number, Decimal)}
    said = json.dumps(event, default=str)
    for quoted, number in exact.items():
        said = said.replace(quoted, number)
    return said


def at(event: Json, path: str) -> list[object]:
    """What stands at a path; an array stands for its elements."""
    values: list[object] = [event]
    for step in path.split("."):
        inner = [e for value in values for e in (value if isinstance(value, list) else [value])]
        values = [value[step] for value in inner if isinstance(value, dict) and step in value]
    return [value for value in values if value is not None]


CONDITIONS: dict[str, Callable[[Json], bool]] = {
    "n = 205": lambda e: 205 in at(e, "n"),
    "n > 310.5": lambda e: any(v > 310.5 for v in at(e, "n")),
    "n BETWEEN 98 AND 103": lambda e: any(98 <= v <= 103 for v in at(e, "n")),
    "n IN (5, 305, 9000)": lambda e: bool({5, 305} & set(at(e, "n"))),
    "n IS NULL": lambda e: not at(e, "n"),
    "n != 3 AND x LIKE 'x1%'": lambda e: e["n"] not in (None, 3) and str(e["x"]).startswith("x1"),
    "NOT n < 300": lambda e: any(v >= 300 for v in at(e, "n")),
    "x = 'x7' OR x >= 'x318'": lambda e: any(v == "x7" or v >= "x318" for v in at(e, "x")),
    "d = 2.5": lambda e: Decimal("2.5") in at(e, "d"),
    "d = 2.25": lambda e: Decimal("2.25") in at(e, "d"),
    "d < 1": lambda e: any(v < 1 for v in at(e, "d")),
    "b = true AND n < 50": lambda e: e["b"] is True and any(v < 50 for v in at(e, "n")),
    "f > 6.2": lambda e: any(v > Decimal("6.2") for v in at(e, "f")),
    "f = 3": lambda e: 3 in at(e, "f"),
    f"f > {NEAR}": lambda e: any(v > NEAR for v in at(e, "f")),
    f"f < {NEAR} AND f >= 2.5": lambda e: any(Decimal("2.5") <= v < NEAR for v in at(e, "f")),
    "f > 2.5 AND f <= 2.5000000000000000001": lambda e: any(Decimal("2.5") < v <= NEAR for v in at(e, "f")),
    "f BETWEEN 1 AND 2 OR f IN (0, 5)": lambda e: any(1 <= v <= 2 or v in (0, 5) for v in at(e, "f")),
    "f > 1e320 OR f = 1e400": lambda e: HUGE in at(e, "f"),
    "NOT f < 6": lambda e: any(v >= 6 for v in at(e, "f")),
    "t = '2024-01-15T12:00:07Z'": lambda e: "2024-01-15T12:00:07Z" in at(e, "t"),
    "site.name = 's1'": lambda e: "s1" in at(e, "site.name"),
    "site.name = 'fan'": lambda e: "fan" in at(e, "site.name"),
    "site.name IS NULL AND n > 0": lambda e: not at(e, "site.name") and any(v > 0 for v in at(e, "n")),
    "missing = 1": lambda e: False,
}


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Mill:
    root: Path = tmp_path_factory.mktemp("filter")
    (root / "tidemill.yaml").write_text(CONFIG)
    made = Mill.open(root, clock=FakeClock(NOON + 60 * MINUTE))
    for number, lines in enumerate(records()):
        made.land("feed", "".join(f"{text(line)}\n" for line in lines).encode(), name=f"{number}")
        made.run_until_idle()
    return made


def found(mill: Mill, condition: str) -> SearchPage:
    page = mill.search("feed", f"FILTER {condition} LIMIT 1000", all_tenants=True)
    assert isinstance(page, SearchPage)
    return page


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_rows_are_those_whose_json_passes(mill: Mill, condition: str) -> None:
    every = [json.loads(text(e), parse_float=Decimal) for lines in records() for e in lines]
    wanted = {e["id"] for e in every if CONDITIONS[condition](e)}
    assert set(found(mill, condition).rows.column("event_id").to_pylist()) == wanted


def test_parts_that_cannot_hold_such_a_value_are_not_looked_into(mill: Mill) -> None:
    assert found(mill, "n = 205").facts.rows_filtered == 20
    assert found(mill, "n > 1000 OR x = 'y'").facts.rows_filtered == 0
    assert found(mill, "f > 6.5 AND f < 1e300").facts.rows_filtered == 20  # those beside infinity
