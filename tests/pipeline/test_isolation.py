"""Damage in one stream or output stays there: it is named once, all others go on and answer as their input
says, a restart changes nothing, and once the file is back everything becomes current."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.damage import SLICES, Shop, answers, composed, details, expected, vectors
from tests.support.selection import one_in

from tidemill.mill import Mill
from tidemill.model.errors import DamageError, StorageError, TidemillError
from tidemill.model.time import MINUTE, SECOND
from tidemill.pipeline.documents import shapes
from tidemill.storage.locks import exclusive

Harm = Callable[[Path], object]


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def last_part(shop: Shop, folder: str) -> Path:
    return max(shop.parts(folder), key=lambda path: path.stat().st_mtime_ns)


PLACES = {"raw": "raw/orders", "rollups": "rollups/orders", "results": "windows/orders/ten"}


def faults_logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (getattr(record, "stream", ""), getattr(record, "output", ""))
        for record in caplog.records
        if record.levelno >= logging.ERROR and record.name.endswith("faults")
    ]


@pytest.mark.parametrize(
    ("place", "harm"), one_in(3, [(place, harm) for place in PLACES for harm in (delete, truncate)])
)
def test_a_damaged_part_stops_nothing_else(
    shop: Shop, caplog: pytest.LogCaptureFixture, place: str, harm: Harm
) -> None:
    part = last_part(shop, PLACES[place])
    kept = part.read_bytes()
    harm(part)
    with shop.open() as mill, caplog.at_level(logging.INFO):
        shop.land(mill, SLICES)
        for _ in range(20):
            report = mill.tick(patient=True)
            shop.clock.advance(SECOND)
        assert {fault.stream for fault in report.faults} <= {"orders"}
        logged = faults_logged(caplog)
        assert len(set(logged)) == len(logged)  # each is named once
        assert {stream for stream, _ in logged} <= {"orders"}
        assert answers(mill, "visits") == expected("visits", SLICES + 1)
        assert composed(mill) == vectors(SLICES + 1)
        others = details(mill, "visits")
    with shop.open() as mill:  # a restart works, too
        mill.tick(patient=True)
        assert answers(mill, "visits") == expected("visits", SLICES + 1)
        assert details(mill, "visits") == others
        mill.status()
    part.write_bytes(kept)
    shop.clock.advance(10 * MINUTE)
    with shop.open() as mill:
        mill.run_until_idle()
        assert [one.faults for one in mill.status()] == [[], [], []]
        assert answers(mill, "orders") == expected("orders", SLICES + 1)
        assert mill.verify().ok


def test_a_folder_that_cannot_be_read_is_the_fault_of_its_stream(shop: Shop) -> None:
    folder = shop.warehouse / "raw" / "orders"
    hidden = folder.rename(shop.root / "hidden")
    folder.write_bytes(b"not a folder")
    with shop.open() as mill:
        shop.land(mill, SLICES)
        report = mill.tick()
        assert {fault.stream for fault in report.faults} == {"orders"}
        assert answers(mill, "visits") == expected("visits", SLICES + 1)
        status = {one.stream: one for one in mill.status()}
        assert status["orders"].faults
        assert not status["visits"].faults
        document = shapes.status(shop.clock(), mill.status(), mill.faults())
        assert json.loads(json.dumps(document, default=str))["streams"][0]["faults"][0]["output"] == "raw"
    folder.unlink()
    hidden.rename(folder)
    with shop.open() as mill:
        mill.run_until_idle()
        assert not any(one.faults for one in mill.status())
        assert answers(mill, "orders") == expected("orders", SLICES + 1)


def test_a_query_over_a_damaged_part_names_it_and_others_answer(shop: Shop) -> None:
    part = last_part(shop, "rollups/orders")
    part.unlink()
    with shop.open() as mill:
        level = part.parent.name.removeprefix("level=")
        with pytest.raises(DamageError) as caught:
            mill.query(f"SELECT count FROM orders.sales USING ROLLUP {level} GROUP BY shop")
        assert caught.value.where == part.relative_to(shop.warehouse).as_posix()
        assert "tidemill repair" in caught.value.hint
        assert answers(mill, "visits") == expected("visits")


def test_rollups_that_are_damaged_do_not_keep_a_stream_from_accepting(shop: Shop) -> None:
    shutil.rmtree(shop.warehouse / "rollups" / "orders" / "_delta_log")
    (shop.warehouse / "rollups" / "orders" / "_delta_log").write_bytes(b"not a folder")
    with shop.open() as mill:
        shop.land(mill, SLICES)
        report = mill.tick()
        assert {(fault.stream, fault.output) for fault in report.faults} == {("orders", "rollups")}
        assert mill.state.totals("orders")["pending_slices"] == 0
        assert mill.search("orders", "WHERE shop = 'north' LIMIT 1000").rows.num_rows == len(  # type: ignore[union-attr]
            expected("orders", SLICES + 1)["found"]  # type: ignore[arg-type]
        )


def broken_work(mill: Mill, error: Exception) -> None:
    def fails(*_args: object, **_named: object) -> None:
        raise error

    mill.workers.output("orders", "rollups").has_work = fails  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        ValueError("Arrow: invalid"),
        StorageError("gone"),
        RuntimeError("bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_error_of_an_output_is_its_own(shop: Shop, error: Exception) -> None:
    with shop.open() as mill:
        broken_work(mill, error)
        shop.land(mill, SLICES)
        (fault,) = mill.tick().faults
        assert (fault.stream, fault.output, fault.attempts) == ("orders", "rollups", 1)
        assert mill.state.totals("orders")["pending_slices"] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_what_ends_a_process_ends_the_round(shop: Shop, error: Exception) -> None:
    with shop.open() as mill:
        broken_work(mill, error)
        shop.land(mill, SLICES)
        with pytest.raises(type(error)):
            mill.tick()


def test_a_restart_does_not_hammer_and_a_clock_that_is_set_back_does_not_wait_for_ever(shop: Shop) -> None:
    def attempts(count: int) -> list[int]:
        with shop.open() as mill:
            broken_work(mill, OSError(5, "Input/output error"))
            return [len(mill.tick(patient=True).faults) for _ in range(count)]

    assert attempts(3) == [1, 0, 0]
    assert attempts(2) == [0, 0]  # another process waits as well
    shop.clock.set(shop.clock() - 60 * MINUTE)
    assert attempts(1) == [0]
    with shop.open() as mill:
        broken_work(mill, OSError(5, "Input/output error"))
        mill.tick(patient=True)
        shop.clock.advance(2 * SECOND)  # by its own timer it is due, whatever the wall clock says
        assert len(mill.tick(patient=True).faults) == 1


def test_the_lock_says_nothing_of_errors_that_happen_under_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), exclusive(tmp_path / ".lock", "tick"):
        (tmp_path / "gone").stat()
    with pytest.raises(TidemillError, match="lock for tick"), exclusive(tmp_path / "no" / ".lock", "tick"):
        raise AssertionError("the lock cannot be taken")
