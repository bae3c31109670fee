"""The lock of a warehouse: held by one at a time, waited for by those who are patient, and never for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from tidemill.model.errors import BusyError
from tidemill.storage.locks import exclusive


def test_who_is_not_patient_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(BusyError, match="cannot repair now")
    with exclusive(tmp_path / "lock", "tick"), refused, exclusive(tmp_path / "lock", "repair"):
        pass


def test_who_is_patient_gets_it_when_it_is_free(tmp_path: Path) -> None:
    order: list[str] = []

    def wait() -> None:
        with exclusive(tmp_path / "lock", "repair", PATIENCE):
            order.append("second")

    with exclusive(tmp_path / "lock", "tick"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not any(thread.name == "lock" for thread in threading.enumerate()):
            pass
        order.append("first")
    waiting.join(PATIENCE)
    assert order == ["first", "second"]
    with exclusive(tmp_path / "lock", "tick"):  # and it is free afterwards
        pass


def test_who_gave_up_does_not_get_it_later(tmp_path: Path) -> None:
    refused = pytest.raises(BusyError)
    with exclusive(tmp_path / "lock", "tick"), refused, exclusive(tmp_path / "lock", "repair", 0.001):
        pass
    for thread in threading.enumerate():
        if thread.name == "lock":
            thread.join(PATIENCE)
    with exclusive(tmp_path / "lock", "tick"):
        pass


def test_an_error_inside_passes_through_and_frees_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock", "tick", PATIENCE):
        raise ZeroDivisionError
    with exclusive(tmp_path / "lock", "tick"):
        pass
