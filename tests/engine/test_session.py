"""Where Spark runs, by tidemill.yaml, spark-submit or SPARK_REMOTE; and sessions that a caller passes in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidemill.config import load_project
from tidemill.engine import Engine, SessionSettings
from tidemill.engine.executors import executor_problem
from tidemill.engine.session import EXACT, exact_session, remote_of
from tidemill.eventtime import registered
from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = """version: 1
engine: {engine}
streams:
  readings:
    schema: {{id: string, at: string}}
    identity: id
    event_time: {{column: at, type: iso8601}}
"""


def settings(tmp_path: Path, engine: str) -> object:
    (tmp_path / "tidemill.yaml").write_text(STREAM.format(engine=engine))
    return load_project(tmp_path, registered()).engine


def test_master_and_settings_of_spark_are_read(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        "{master: 'spark://10.0.0.1:7077', conf: {spark.ui.enabled: true, spark.executor.cores: 4}}",
    )
    assert found.master == "spark://10.0.0.1:7077"  # type: ignore[attr-defined]
    assert found.conf == {  # type: ignore[attr-defined]
        "spark.ui.enabled": "true",
        "spark.executor.cores": "4",
    }


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{master: mesos}", "'mesos' is not a Spark master"),
        (
            "{conf: {spark.sql.session.timeZone: Europe/Paris}}",
            "spark.sql.session.timeZone cannot be set here",
        ),
        ("{conf: {spark.master: yarn}}", "spark.master cannot be set here"),
        ("{conf: {executor.cores: 2}}", "'executor.cores' is not a Spark setting"),
        ("{conf: {spark.jars: [a, b]}}", "spark.jars is not a string, a number or a boolean"),
    ],
)
def test_what_is_not_a_setting_is_refused(tmp_path: Path, engine: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, engine)
    assert message in str(refused.value)


def test_spark_connect_is_chosen_by_master_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert remote_of(SessionSettings()) is None
    assert remote_of(SessionSettings(master="sc://127.0.0.1:15002")) == "sc://127.0.0.1:15002"
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15003")
    assert remote_of(SessionSettings()) == "sc://127.0.0.1:15003"
    assert remote_of(SessionSettings(master="local[2]")) is None  # the file is more specific


def test_a_session_with_other_settings_is_left_as_it_is(spark: SparkSession) -> None:
    given = spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    given.conf.set("spark.sql.ansi.enabled", "false")
    used = Engine(given).session
    assert {name: used.conf.get(name) for name in EXACT} == dict(EXACT)
    assert given.conf.get("spark.sql.session.timeZone") == "Europe/Paris"
    assert given.conf.get("spark.sql.ansi.enabled") == "false"
    assert exact_session(spark) is spark


ANSWER = {"host": "node-7", "python": "", "version": "", "missing": "", "sees": True}


def test_jobs_are_named_for_what_they_do_and_a_session_is_announced_once(spark: SparkSession) -> None:
    announced: list[tuple[str, str | None]] = []
    engine = Engine(spark, on_start=lambda master, ui: announced.append((master, ui)))
    for label in ("stage", "tiles 5s 1m"):
        assert engine.run(_twice, [1, 2, 3], label) == [2, 4, 6]
    store = spark._jsc.sc().statusStore()  # type: ignore[attr-defined]
    jobs = store.jobsList(None)
    names = [jobs.apply(at).description() for at in range(jobs.size())]
    named = {name.get() for name in names if name.isDefined()}
    assert {"tidemill stage", "tidemill tiles 5s 1m"} <= named
    assert announced == [(spark.sparkContext.master, spark.sparkContext.uiWebUrl)]


def _twice(number: int) -> list[int]:
    return [2 * number]


def test_an_executor_that_cannot_work_is_named() -> None:
    import sys

    from tidemill import __version__

    same = ANSWER | {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "version": __version__}
    assert executor_problem(same, Path("/data/warehouse")) is None
    cases = [
        (same | {"missing": "tidemill"}, "an executor has no module 'tidemill'", "tidemill bundle"),
        (same | {"version": "0.0.1"}, "an executor has tidemill 0.0.1, and this process", "tidemill bundle"),
        (same | {"python": "3.9"}, "an executor runs Python 3.9", "PYSPARK_PYTHON"),
        (same | {"sees": False}, "an executor does not see the warehouse /data/warehouse", "mounts"),
    ]
    for answer, message, hint in cases:
        problem = executor_problem(answer, Path("/data/warehouse"))
        assert problem is not None
        assert message in problem.message
        assert hint in str(problem.hint)
        assert problem.where == "executor on node-7"
