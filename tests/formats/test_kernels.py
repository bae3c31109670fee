"""Compiling is reported when it begins, once, and not for what is compiled already."""

from __future__ import annotations

from numba import njit

from tidemill.formats.kernels import compiling_reported


def test_compiling_is_reported_once():
    reports = []
    kernel = njit(lambda number: number + 1)
    with compiling_reported(lambda: reports.append("compiling")):
        assert kernel(1) == 2
        assert kernel(1.5) == 2.5  # compiled again, for another type
    assert reports == ["compiling"]


def test_nothing_is_reported_for_a_compiled_kernel():
    reports = []
    kernel = njit(lambda number: number + 1)
    kernel(1)
    with compiling_reported(lambda: reports.append("compiling")):
        assert kernel(41) == 42
    kernel(1.5)  # after the block
    assert reports == []
