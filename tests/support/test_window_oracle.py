"""The oracle of windows against the contract, case by case, and the scripts it is to be asked about."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.oracles.stream import READINGS
from tests.support.oracles.windows import (
    Land,
    OracleRules,
    OracleWindow,
    Retract,
    Tick,
    WindowOracle,
    dataset_columns,
)
from tests.support.strategies.feeds import FIRST_ARRIVAL, WindowScript, window_rules, window_scripts

from tidemill.model.errors import InputError
from tidemill.model.slices import set_hash
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, align, parse_instant

quick = examples(50)
NEW_YEAR = parse_instant("2024-01-01T00:00:00Z")
STRICT = OracleRules(HOUR, stc=HOUR)


def at(clock: str) -> int:
    hours, minutes, *seconds = clock.split(":")
    return NEW_YEAR + int(hours) * HOUR + int(minutes) * MINUTE + int((seconds or ["0"])[0]) * SECOND


def between(span: str) -> Interval:
    """`10:00-10:30`, on the first of January."""
    start, end = span.split("-")
    return Interval(at(start), at(end))


def reading(name: str, clock: int, **fields: object) -> bytes:
    return json.dumps({"reading": name, "at": clock, "station": "s", **fields}).encode()


def landing(name: str, span: str | None, *records: bytes, arrival: str = "10:00") -> Land:
    return Land(name, records, at(arrival), between(span) if span else None)


def played(rules: OracleRules, *acts: Land | Tick | Retract) -> WindowOracle:
    return WindowOracle(READINGS, rules).play(acts)


def built(oracle: WindowOracle) -> list[tuple[int, int, int, frozenset[str]]]:
    """(tick, hours since new year, revision, slices) of every build, in order."""
    return [
        (made.at, (made.start - NEW_YEAR) // HOUR, made.revision, made.slices)
        for done in oracle.rounds
        for made in done.built
    ]


def asked(oracle: WindowOracle, clock: str, now: int) -> OracleWindow:
    return oracle.windows(now)[at(clock)]


# --- golden cases ----------------------------------------------------------------------------------


def test_w1_one_slice_makes_one_window_that_is_built_once() -> None:
    oracle = played(STRICT, landing("a", "10:00-11:00"), Tick(at("12:00")), Tick(at("13:00")))
    assert built(oracle) == [(at("12:00"), 10, 1, {"a"})]
    assert oracle.datasets[at("10:00")].hash == set_hash(["a"])
    assert oracle.datasets[at("10:00")].rows == ()


def test_w2_a_day_of_hourly_slices_is_one_window() -> None:
    hours = [landing(f"h{h:02}", f"{h}:00-{h + 1}:00") for h in range(24)]
    oracle = played(OracleRules(DAY, stc=HOUR), *hours, Tick(NEW_YEAR + 2 * DAY))
    assert built(oracle) == [(NEW_YEAR + 2 * DAY, 0, 1, {f"h{h:02}" for h in range(24)})]


def test_w3_a_slice_of_three_hours_is_in_three_windows_and_the_oldest_is_built_first() -> None:
    oracle = played(STRICT, landing("a", "10:00-13:00"), Tick(at("20:00")))
    assert built(oracle) == [(at("20:00"), hour, 1, {"a"}) for hour in (10, 11, 12)]


def test_w4_a_gap_keeps_its_window_waiting_and_only_its_window() -> None:
    slices = [
        landing("a", "10:00-10:30"), landing("b", "10:45-11:00"), landing("c", "11:00-12:00")
    ]  # fmt: skip
    oracle = played(STRICT, *slices, Tick(at("20:00")))
    assert built(oracle) == [(at("20:00"), 11, 1, {"c"})]
    window = asked(oracle, "10:00", at("20:00"))
    assert (window.used, window.ready, window.reason) == ({"a", "b"}, False, "gap")


def test_w5_a_window_becomes_ready_at_its_cutoff_with_no_new_arrival() -> None:
    ticks = [Tick(at(clock)) for clock in ("11:30", "12:59:59", "13:00", "13:01")]
    oracle = played(OracleRules(HOUR, stc=2 * HOUR), landing("a", "10:00-11:00"), *ticks)
    assert built(oracle) == [(at("13:00"), 10, 1, {"a"})]
    assert asked(oracle, "10:00", at("12:59:59")).reason == "cutoff"


def test_w8_the_missing_edge_arrives_and_overlap_is_fine() -> None:
    oracle = WindowOracle(READINGS, OracleRules(HOUR))
    oracle.play([landing("a", "10:09-10:30"), landing("b", "10:30-11:00"), Tick(at("11:00"))])
    assert built(oracle) == []
    assert asked(oracle, "10:00", at("11:00")).reason == "coverage"
    oracle.play([landing("c", "10:00-10:20", arrival="11:00"), Tick(at("11:30"))])
    assert built(oracle) == [(at("11:30"), 10, 1, {"a", "b", "c"})]


def test_w9_allow_incomplete_builds_at_once_and_again_with_each_change() -> None:
    rules = OracleRules(HOUR, stc=HOUR, allow_incomplete=True)
    first = landing("a", "10:00-10:30", arrival="10:30")
    second = landing("b", "10:40-10:50", arrival="11:00")
    oracle = played(rules, first, Tick(at("10:31")), Tick(at("10:59")), second, Tick(at("11:00")))
    assert built(oracle) == [(at("10:31"), 10, 1, {"a"}), (at("11:00"), 10, 2, {"a", "b"})]
    assert not asked(oracle, "10:00", at("12:00")).final
    assert asked(oracle, "10:00", at("12:00") + 1).final


W11 = [landing("1", "0:30-1:30"), landing("2", "1:45-2:15"), landing("3", "0:15-0:45")]


def test_w11_sets_of_overlapping_slices_strict() -> None:
    oracle = played(STRICT, *W11, Tick(at("20:00")))
    assert built(oracle) == []
    windows = oracle.windows(at("20:00")).values()
    assert [(window.used, window.reason) for window in windows] == [
        ({"1", "3"}, "coverage"),
        ({"1", "2"}, "gap"),
        ({"2"}, "coverage"),
    ]


def test_w11_sets_of_overlapping_slices_allow_incomplete() -> None:
    oracle = played(OracleRules(HOUR, stc=HOUR, allow_incomplete=True), *W11, Tick(at("20:00")))
    assert [(hour, slices) for _, hour, _, slices in built(oracle)] == [
        (0, {"1", "3"}),
        (1, {"1", "2"}),
        (2, {"2"}),
    ]


def test_w12_ready_at_the_microsecond_of_the_cutoff() -> None:
    oracle = played(OracleRules(HOUR, stc=6 * HOUR), landing("a", "13:00-14:00"))
    assert not asked(oracle, "13:00", at("20:00") - 1).ready
    assert asked(oracle, "13:00", at("20:00")).ready


def test_w13_a_slice_after_the_cutoff_of_a_served_window_is_ignored_there() -> None:
    on_time = landing("a", "10:00-11:00", reading("e1", at("10:01")))
    late = landing("b", "10:00-12:00", reading("e2", at("10:02")), arrival="12:01")
    oracle = played(STRICT, on_time, Tick(at("12:00")), late, Tick(at("13:00")))
    assert built(oracle) == [(at("12:00"), 10, 1, {"a"}), (at("13:00"), 11, 1, {"b"})]
    window = asked(oracle, "10:00", at("13:00"))
    assert (window.ignored, window.hash, window.revision) == ({"b"}, set_hash(["a"]), 1)
    assert [row.event_id for row in oracle.gate.raw] == ["e1", "e2"]


def test_w14_windows_are_aligned_to_the_epoch() -> None:
    event = reading("e", parse_instant("2024-01-15T14:23:45Z"))
    oracle = played(OracleRules(7 * HOUR), Land("a", (event,), NEW_YEAR))
    assert list(oracle.windows(0)) == [parse_instant("2024-01-15T09:00:00Z")]


# --- late slices, backfills, seals -----------------------------------------------------------------


def test_a_slice_that_arrives_at_the_cutoff_counts_and_a_microsecond_later_does_not() -> None:
    whole = landing("a", "10:00-11:00")
    for delay, used in ((0, {"a", "b"}), (1, {"a"})):
        other = Land("b", (), at("12:00") + delay, between("10:00-11:00"))
        assert asked(played(STRICT, whole, other), "10:00", at("20:00")).used == used


def test_reemit_admits_late_slices_for_a_while_but_does_not_delay_the_window() -> None:
    rules = OracleRules(HOUR, stc=HOUR, max_lateness=2 * HOUR)
    acts = [
        landing("a", "10:00-11:00"),
        Tick(at("12:00")),
        landing("b", "10:10-10:20", arrival="14:00"),
        Tick(at("14:00")),
        landing("c", "10:10-10:30", arrival="14:01"),
        Tick(at("15:00")),
    ]
    oracle = played(rules, *acts)
    assert built(oracle) == [(at("12:00"), 10, 1, {"a"}), (at("14:00"), 10, 2, {"a", "b"})]
    assert asked(oracle, "10:00", at("15:00")).ignored == {"c"}


def test_a_backfill_takes_everything_until_it_covers_the_window_and_is_sealed() -> None:
    acts = [
        landing("a", "10:00-10:20", arrival="10:20"),
        landing("b", "10:20-10:40", arrival="20:00"),
        Tick(at("20:00")),
        landing("c", "10:40-11:00", arrival="21:00"),
        Tick(at("21:00")),
        landing("d", "10:00-11:00", arrival="22:00"),
        Tick(at("22:00")),
    ]
    oracle = played(STRICT, *acts[:3])
    before = asked(oracle, "10:00", at("20:00"))
    assert (before.used, before.reason, before.sealed, before.final) == ({"a", "b"}, "coverage", None, False)
    oracle.play(acts[3:])
    assert built(oracle) == [(at("21:00"), 10, 1, {"a", "b", "c"})]
    after = asked(oracle, "10:00", at("22:00"))
    assert (after.ignored, after.sealed, after.final) == ({"d"}, 3, True)


def test_an_incomplete_backfill_is_built_but_not_sealed() -> None:
    rules = OracleRules(HOUR, allow_incomplete=True)
    half, rest = (
        landing("a", "10:00-10:30", arrival="20:00"), landing("b", "10:30-11:00", arrival="21:00")
    )  # fmt: skip
    more = landing("c", "10:00-11:00", arrival="22:00")
    oracle = played(rules, half, Tick(at("20:00")))
    assert asked(oracle, "10:00", at("20:00")).sealed is None
    oracle.play([rest, Tick(at("21:00")), more, Tick(at("22:00"))])
    assert [made[2:] for made in built(oracle)] == [(1, {"a"}), (2, {"a", "b"})]
    assert asked(oracle, "10:00", at("22:00")).sealed == 2


def test_a_window_that_nothing_covers_is_not_complete_however_short_it_is() -> None:
    """It lasts a second, as does the tolerance; only a row lies in it, outside of the bounds of its slice."""
    rules = OracleRules(SECOND, gap_tolerance=SECOND)
    stray = Land("a", (reading("e", at("10:01")),), at("10:00"), between("10:00-10:00:01"))
    oracle = played(rules, stray, Tick(at("20:00")))
    assert [(made.start, made.rows) for made in oracle.datasets.values()] == [(at("10:00"), ())]
    assert asked(oracle, "10:01", at("20:00")).reason == "coverage"


def test_a_slice_without_declared_bounds_covers_the_runs_of_its_rows() -> None:
    """Rows that are further apart than the tolerance are two runs, and what lies between is not covered."""
    records = [reading("e1", at("10:00")), reading("e2", at("10:30")), reading("e3", at("11:00") - SECOND)]
    apart = played(OracleRules(HOUR), landing("a", None, *records), Tick(at("11:00")))
    assert built(apart) == []
    near = played(OracleRules(HOUR, gap_tolerance=HOUR // 2), landing("a", None, *records), Tick(at("11:00")))
    assert built(near) == [(at("11:00"), 10, 1, {"a"})]
    nothing = played(OracleRules(HOUR), landing("a", None, b"{"), Tick(at("11:00")))
    assert nothing.windows(at("11:00")) == {}


# --- datasets --------------------------------------------------------------------------------------


def test_rows_are_those_of_the_used_slices_in_order_with_typed_fields() -> None:
    ten = at("10:00")
    first = landing(
        "a",
        "10:00-11:00",
        reading("z", ten + 5, celsius=1.005, samples=2e2, humidity=0.5, calm=True, note="n"),
        reading("b", ten + 7, place={"b": 1, "a": [1.0]}, gusts=[], extra="x"),
        reading("a", ten + 7),
        reading("a", ten + 7, station="r"),
        reading("next", at("11:00")),
    )
    again = landing("b", "10:00-11:00", reading("a", ten + 7), reading("z", ten + 9))
    late = landing("c", "10:00-11:00", reading("late", ten + 6), arrival="13:00")
    oracle = played(STRICT, first, again, late, Tick(at("13:00")))
    rows = oracle.datasets[ten].rows
    assert dataset_columns(READINGS)[:5] == ["event_time", "tenant", "event_id", "reading", "at"]
    assert all(list(row) == dataset_columns(READINGS) for row in rows)
    assert [(row["event_time"], row["event_id"], row["tenant"]) for row in rows] == [
        (ten + 5, "z", "s"),
        (ten + 7, "a", "r"),
        (ten + 7, "a", "s"),
        (ten + 7, "b", "s"),
    ]
    assert list(rows[0].values())[5:] == ["s", Decimal("1.00"), 200, 0.5, True, "n", None, None, None]
    assert [rows[3][name] for name in ("celsius", "place", "gusts", "extra")] == [
        None,
        '{"a":[1],"b":1}',
        "[]",
        '"x"',
    ]


# --- retractions -----------------------------------------------------------------------------------


def test_a_retracted_slice_leaves_its_windows_and_they_are_built_again() -> None:
    e1, e2 = reading("e1", at("10:01")), reading("e2", at("10:02"))
    oracle = played(
        STRICT, landing("a", "10:00-11:00", e1), landing("b", "10:00-11:00", e2), Tick(at("12:00"))
    )
    oracle.play([Retract("a", at("13:00")), Tick(at("13:00"))])
    assert [made[2:] for made in built(oracle)] == [(1, {"a", "b"}), (2, {"b"})]
    assert [row["event_id"] for row in oracle.datasets[at("10:00")].rows] == ["e2"]


def test_what_a_later_slice_repeated_is_now_accepted_from_there_under_another_name() -> None:
    event, own = reading("e", at("10:01")), reading("own", at("11:01"))
    first = landing("a", "10:00-11:00", event)
    second = landing("b", "10:00-12:00", event, own)
    oracle = played(STRICT, first, second, Tick(at("13:00")), Retract("a", at("14:00")), Tick(at("14:00")))
    assert [made[1:] for made in built(oracle)] == [
        (10, 1, {"a", "b"}),
        (11, 1, {"b"}),
        (10, 2, {"b~1"}),
        (11, 2, {"b~1"}),
    ]
    assert [row["event_id"] for row in oracle.datasets[at("10:00")].rows] == ["e"]


def test_a_slice_that_was_not_yet_through_the_gate_keeps_its_name() -> None:
    event = reading("e", at("10:01"))
    first, second = landing("a", "10:00-11:00", event), landing("b", "10:00-11:00", event)
    oracle = played(STRICT, first, second, Retract("a", at("11:00")), Tick(at("12:00")))
    assert built(oracle) == [(at("12:00"), 10, 1, {"b"})]


def test_a_window_that_is_no_longer_ready_is_withdrawn_and_its_revisions_go_on() -> None:
    acts = [landing("a", "10:00-10:30"), landing("b", "10:30-11:00"), Tick(at("12:00"))]
    oracle = played(STRICT, *acts, Retract("b", at("13:00")), Tick(at("13:00")))
    assert oracle.rounds[-1].withdrawn == (at("10:00"),)
    window = asked(oracle, "10:00", at("13:00"))
    assert (window.observed, window.revision, window.reason) == (None, 1, "coverage")
    oracle.play([landing("c", "10:30-11:00", arrival="14:00"), Tick(at("14:00"))])
    assert [made[2:] for made in built(oracle)] == [(1, {"a", "b"}), (2, {"a", "c"})]


def test_a_window_without_slices_is_forgotten_unless_it_had_a_dataset() -> None:
    acts = [landing("a", "10:00-11:00"), Tick(at("11:00")), Retract("a", at("11:30")), Tick(at("12:00"))]
    assert played(STRICT, *acts).windows(at("12:00")) == {}
    acts.insert(2, Tick(at("12:00")))
    oracle = played(STRICT, *acts)
    window = asked(oracle, "10:00", at("12:00"))
    assert (window.reason, window.members, window.revision) == ("empty", frozenset(), 1)
    assert oracle.datasets == {}


def test_a_retraction_unseals_its_windows() -> None:
    acts = [
        landing("a", "10:00-11:00", arrival="20:00"),
        landing("b", "10:00-10:30", arrival="20:00"),
        Tick(at("20:00")),
        landing("c", "10:30-11:00", arrival="21:00"),
        Tick(at("21:00")),
        Retract("a", at("22:00")),
        Tick(at("22:00")),
    ]
    oracle = played(STRICT, *acts)
    assert [made[2:] for made in built(oracle)] == [(1, {"a", "b"}), (2, {"b", "c"})]
    assert asked(oracle, "10:00", at("22:00")).sealed == 3


def test_a_slice_that_landed_before_changes_nothing_even_when_it_was_retracted() -> None:
    first = landing("a", "10:00-11:00")
    again = first._replace(at=at("12:30"))
    assert built(played(STRICT, first, Tick(at("12:00")), again, Tick(at("13:00")))) == [
        (at("12:00"), 10, 1, {"a"})
    ]
    assert played(STRICT, first, Retract("a", at("11:00")), again).windows(at("13:00")) == {}


def test_what_never_landed_cannot_be_retracted() -> None:
    with pytest.raises(InputError, match="never landed"):
        played(STRICT, Retract("a", at("11:00")))


# --- generated scripts -----------------------------------------------------------------------------


@pytest.mark.variety
def test_every_situation_turns_up_in_generated_scripts() -> None:
    seen: Counter[str] = Counter()

    def collect(script: WindowScript) -> None:
        oracle = WindowOracle(READINGS, script.rules)
        for act in script.acts:
            oracle.play([act])
            if not isinstance(act, Tick):
                continue
            for window in oracle.windows(act.at).values():
                reason = window.reason or "ready"
                seen[reason] += 1
                seen["ignored"] += bool(window.ignored)
                seen["sealed"] += window.sealed is not None
                seen["final"] += window.final
                seen["rebuilt"] += window.revision > 1
            seen["withdrawn"] += bool(oracle.rounds[-1].withdrawn)
            seen["rows"] += any(made.rows for made in oracle.rounds[-1].built)
            seen["no rows"] += any(not made.rows for made in oracle.rounds[-1].built)
            seen["renamed"] += any("~" in name for made in oracle.datasets.values() for name in made.slices)
        seen.update(turns(oracle, script.acts))

    wanted = ["cutoff", "coverage", "gap", "empty", "ready", "ignored", "sealed", "final", "rebuilt"]
    wanted += ["withdrawn", "renamed", "again", "rows", "no rows", "outside", "undeclared"]
    wanted += ["covered but empty", "duplicate", "conflict", "rejected", "retracted"]
    for number in range(10):  # what is generated also depends on which modules are loaded
        once = examples(225)(given(window_scripts())(collect))
        seed(number)(once)()
        if all(seen[what] for what in wanted):
            break
    assert all(seen[what] for what in wanted), {what: seen[what] for what in wanted}


def turns(oracle: WindowOracle, acts: Iterable[Land | Tick | Retract]) -> Counter[str]:
    seen: Counter[str] = Counter()
    landings = [act for act in acts if isinstance(act, Land)]
    bounds = {act.slice: act.declared for act in landings}
    seen["again"] = len(landings) - len(bounds)
    for act in landings:
        seen["covered but empty"] += act.declared is not None and not act.records
        seen["undeclared"] += act.declared is None and bool(act.records)
    for row in oracle.gate.raw:
        declared = bounds[row.slice]
        seen["outside"] += declared is not None and not declared.holds(row.ts)
    total = oracle.gate.total()
    seen.update(duplicate=total.duplicate, conflict=total.conflict, rejected=total.rejected)
    seen["retracted"] = sum(isinstance(act, Retract) for act in acts)
    return seen


@quick
@given(window_scripts(around=(FIRST_ARRIVAL, 0)))
def test_scripts_go_forward_in_time_end_with_a_tick_and_stay_among_a_few_windows(
    script: WindowScript,
) -> None:
    assert all(before.at <= after.at for before, after in pairwise(script.acts))
    assert isinstance(script.acts[-1], Tick)
    windows = WindowOracle(READINGS, script.rules).play(script.acts).windows(script.acts[-1].at)
    assert len(windows) <= 40
    assert all(start == align(start, script.rules.span) for start in windows)


@quick
@given(window_scripts())
def test_revisions_count_up_and_every_build_has_the_hash_of_its_slices(script: WindowScript) -> None:
    oracle = WindowOracle(READINGS, script.rules).play(script.acts)
    revisions: Counter[int] = Counter()
    for done in oracle.rounds:
        assert [made.start for made in done.built] == sorted({made.start for made in done.built})
        for made in done.built:
            revisions[made.start] += 1
            assert (made.revision, made.at) == (revisions[made.start], done.at)
            assert made.hash == set_hash(made.slices)
            assert made.slices


@quick
@given(window_scripts())
def test_every_row_of_raw_is_in_the_current_dataset_of_its_window_or_accounted_for(
    script: WindowScript,
) -> None:
    oracle = WindowOracle(READINGS, script.rules).play(script.acts)
    windows = oracle.windows(script.acts[-1].at)
    for start, window in windows.items():
        names = {member.slice: member.name for member in oracle.members(start)}
        rows = [row for row in oracle.gate.raw if window.interval.holds(row.ts)]
        assert {row.slice for row in rows} <= set(names)
        used = sorted((row.ts, row.event_id, row.tenant) for row in rows if names[row.slice] in window.used)
        if window.observed == window.hash:
            found = [
                (row["event_time"], row["event_id"], row["tenant"]) for row in oracle.datasets[start].rows
            ]
            assert found == used
        else:
            assert not window.ready
    assert sum(1 for row in oracle.gate.raw if align(row.ts, script.rules.span) in windows) == len(
        oracle.gate.raw
    )


@quick
@given(window_scripts(retractions=False), st.data())
def test_a_retraction_leaves_what_there_would_be_without_the_slice(
    script: WindowScript, data: st.DataObject
) -> None:
    """As to members; with windows that were never sealed, as to everything but names and revisions."""
    end = script.acts[-1].at
    gone = data.draw(st.sampled_from(sorted({act.slice for act in script.acts if isinstance(act, Land)})))
    oracle = WindowOracle(READINGS, script.rules).play([*script.acts, Retract(gone, end), Tick(end)])
    without = [act for act in script.acts if not (isinstance(act, Land) and act.slice == gone)]
    expected = WindowOracle(READINGS, script.rules).play(without)

    def ids(names: Iterable[str]) -> set[str]:
        return {name.split("~")[0] for name in names}

    found = oracle.windows(end)
    assert {start for start, window in found.items() if window.members} == set(expected.windows(end))
    for start, window in expected.windows(end).items():
        assert ids(found[start].members) == ids(window.members)
        if window.sealed is None and found[start].sealed is None:
            assert ids(found[start].used) == ids(window.used)
            assert (found[start].reason, found[start].final) == (window.reason, window.final)
            rows = [one.datasets[start].rows if start in one.datasets else None for one in (oracle, expected)]
            assert rows[0] == rows[1]


@quick
@given(window_rules())
def test_generated_rules_are_usable(rules: OracleRules) -> None:
    assert rules.span > 0
    assert min(rules.stc, rules.gap_tolerance, rules.max_lateness) >= 0
