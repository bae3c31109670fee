"""Names, levels, the hash of a set of slices, fail points."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import pairwise, permutations

import pytest

from tidemill.model.errors import InputError, QueryError
from tidemill.model.failpoints import EXIT_CODE, POINTS, failpoint
from tidemill.model.levels import LEVELS, NAMES, below, level_for, level_named
from tidemill.model.names import is_safe_name, safe_name
from tidemill.model.slices import set_hash, slice_id
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval

U1, U2, U3 = (f"0000000{n}-0000-4000-8000-000000000000" for n in (1, 2, 3))


@pytest.mark.parametrize("name", ["a", "requests", "web_requests_2", "a" * 63])
def test_safe_names_pass_unchanged(name: str) -> None:
    assert safe_name(name, "stream") == name


@pytest.mark.parametrize("name", ["", "A", "1a", "_a", "a-b", "a.b", "a/b", "..", "a b", "a\n", "é",
                                  "a" * 64, "a;drop table x", "a'"])  # fmt: skip
def test_names_that_could_become_a_path_or_sql_are_refused(name: str) -> None:
    assert not is_safe_name(name)
    with pytest.raises(InputError, match="is not allowed") as caught:
        safe_name(name, "stream")
    assert "lower-case letter" in caught.value.hint


def test_levels_are_5s_to_7d_and_each_holds_whole_buckets_and_tiles_of_the_one_below() -> None:
    assert NAMES == ("5s", "1m", "1h", "1d", "7d")
    assert below(LEVELS[0]) is None
    for lower, upper in pairwise(LEVELS):
        assert below(upper) is lower
        assert upper.width % lower.width == 0
        assert upper.tile % lower.tile == 0
    for level in LEVELS:
        assert level.tile % level.width == 0


@pytest.mark.parametrize(
    ("interval", "level"),
    [(30 * SECOND, "5s"), (3 * HOUR, "1h"), (15 * MINUTE, "1m"), (9 * DAY, "1d"), (14 * DAY, "7d")],
)
def test_m10_interval_reads_the_largest_level_that_divides_it(interval: int, level: str) -> None:
    assert level_for(interval).name == level


@pytest.mark.parametrize("interval", [7 * SECOND, 1, 0, -5 * SECOND])
def test_m11_interval_that_no_level_divides_is_refused_naming_the_levels(interval: int) -> None:
    with pytest.raises(QueryError) as caught:
        level_for(interval)
    assert "5s, 1m, 1h, 1d, 7d" in caught.value.hint


def test_unknown_level_is_refused_naming_the_levels() -> None:
    assert level_named("1m").width == MINUTE
    with pytest.raises(QueryError, match="'30d'") as caught:
        level_named("30d")
    assert "5s, 1m, 1h, 1d, 7d" in caught.value.hint


def test_w10_hash_of_a_set_knows_neither_order_nor_repeats() -> None:
    expected = "64e6b929e9218779ced6c08927c078f7e0f0810055b508b74fa193cdbf32b315"
    for ids in ([U1, U2], [U2, U1], [U1, U2, U1], (i for i in (U2, U2, U1))):
        assert set_hash(ids) == expected
    assert {set_hash(ids) for ids in permutations([U1, U2, U3])} == {set_hash([U1, U2, U3])}
    assert set_hash([U1, U2, U3]) != expected
    assert set_hash([]) == hashlib.sha256(b"").hexdigest()


def test_slice_identity_is_stream_bounds_and_bytes() -> None:
    content = hashlib.sha256(b"{}\n").hexdigest()
    ids = [
        slice_id("requests", None, content),
        slice_id("events", None, content),
        slice_id("requests", Interval(0, 10), content),
        slice_id("requests", Interval(0, 11), content),
        slice_id("requests", None, hashlib.sha256(b"{}").hexdigest()),
    ]
    assert len(set(ids)) == len(ids)
    assert ids[0] == slice_id("requests", None, content)


def _passes(name: str, times: int, wanted: str | None) -> subprocess.CompletedProcess[str]:
    code = (
        "from tidemill.model.failpoints import failpoint\n"
        f"for n in range({times}):\n    print(n, flush=True)\n    failpoint({name!r})\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "TIDEMILL_FAILPOINT"}
    environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    if wanted is not None:
        environ["TIDEMILL_FAILPOINT"] = wanted
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("wanted", "lines", "code"),
    [
        (None, ["0", "1", "2"], 0),
        ("raw.after_commit", ["0", "1", "2"], 0),
        ("raw.before_commit", ["0"], EXIT_CODE),
        ("raw.before_commit:3", ["0", "1", "2"], EXIT_CODE),
        ("raw.before_commit:4", ["0", "1", "2"], 0),
    ],
)
def test_process_dies_at_the_fail_point_that_the_environment_names(
    wanted: str | None, lines: list[str], code: int
) -> None:
    done = _passes("raw.before_commit", 3, wanted)
    assert (done.stdout.split(), done.returncode) == (lines, code)
    assert done.stderr == ("failpoint raw.before_commit: exit\n" if code else "")


def test_fail_point_that_is_not_listed_is_a_bug() -> None:
    assert all(text for text in POINTS.values())
    with pytest.raises(AssertionError):
        failpoint("nowhere")
