"""CPU seconds of tests by folder, file and test: `make test ARGS='-p tests.support.cpu_times'`.

Wall time says little on a busy machine. Counted are the process of the tests and all that it started; what
outlives a test (Spark, a browser) counts in the tests during which it works.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SHOWN = 40  # files and tests
TICKS = os.sysconf("SC_CLK_TCK")
seconds: Counter[str] = Counter()  # by test


def descendants(process: int) -> Iterator[int]:
    with suppress(OSError):  # it has just ended
        for listed in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, listed.read_text().split()):
                yield child
                yield from descendants(child)


def of_process(process: int) -> float:
    """Its own seconds, and those of its children that have ended; none if it has ended itself."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


def so_far() -> float:
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    here = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return here + sum(map(of_process, descendants(os.getpid())))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = so_far()
    try:
        return (yield)
    finally:
        seconds[item.nodeid] += max(0.0, so_far() - before)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu"] = dict(seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    seconds.update(getattr(node, "workeroutput", {}).get("cpu", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for test, spent in seconds.items():
        file = test.split("::")[0]
        files[file] += spent
        folders["/".join(file.split("/")[:2])] += spent
    for title, found, shown in (
        ("folder", folders, len(folders)),
        ("file", files, SHOWN),
        ("test", seconds, SHOWN),
    ):
        terminalreporter.section(f"CPU seconds by {title}, {sum(found.values()):.0f} in all")
        for name, spent in found.most_common(shown):
            terminalreporter.write_line(f"{spent:8.2f}  {name}")
