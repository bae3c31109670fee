"""One small run of the demo on the shared session, for all tests that look at what it leaves."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from tests.server.console.conftest import browser, context  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from examples.demo import DemoResult


@pytest.fixture(scope="session")
def demo_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, str]:
    """The result, and what was printed."""
    from rich.console import Console

    from examples.demo import run_demo

    out = StringIO()
    folder = tmp_path_factory.mktemp("told") / "my [demo]"  # not markup, and in need of quotes
    result = run_demo(folder, events=6_000, console=Console(file=out, width=80), spark=spark)
    return result, out.getvalue()


@pytest.fixture
def demo(demo_run: tuple[DemoResult, str]) -> DemoResult:
    return demo_run[0]


@pytest.fixture
def printed(demo_run: tuple[DemoResult, str]) -> str:
    return demo_run[1]
