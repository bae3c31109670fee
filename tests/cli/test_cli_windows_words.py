"""How windows, builds, rebuilds, retractions and events are spelled, in JSON and for people."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tidemill.cli import views
from tidemill.cli.settings import span_of
from tidemill.cli.views.layout import Note
from tidemill.cli.views.status import status_table
from tidemill.model.errors import InputError
from tidemill.model.slices import Codec, Format, NewSlice, SliceEntry
from tidemill.model.time import DAY, HOUR, MAX_INSTANT, MIN_INSTANT, MINUTE, SECOND, Interval, parse_instant
from tidemill.model.windows import Dataset, Member, Phase, Window, WindowKey, WindowStatus
from tidemill.outputs.datasets.builder import BuildOutcome
from tidemill.outputs.datasets.coordinator import Coordinated
from tidemill.outputs.datasets.damage import damage_of
from tidemill.outputs.datasets.reader import RebuildStep, WindowStory, WindowView
from tidemill.outputs.datasets.rules import WindowRules
from tidemill.outputs.datasets.window_status import remedy
from tidemill.pipeline.documents import operations as plain_operations
from tidemill.pipeline.documents import windows as plain_windows
from tidemill.pipeline.reports import StreamStatus, StreamTick, TickReport
from tidemill.raw.retract import DecideAgain, RecordRetracted, RetractionPlan, Undo

START = parse_instant("2024-01-15T13:00:00Z")
KEY = WindowKey("weather", START, HOUR)
CUTOFF = START + 7 * HOUR
FILE = "datasets/weather/aggregation/20240115T130000Z_1h/r2.arrow"
DATASET = Dataset(KEY, 2, "b" * 64, ["1" * 64, "2" * 64], 120, 4096, FILE)
WINDOW = Window(
    KEY, 7, Phase.BUILT, desired="b" * 64, observed="b" * 64, revision=2, file=FILE, rows=120, bytes=4096,
    built_at=CUTOFF, ready=True, trigger="cutoff",
)  # fmt: skip
RULES = WindowRules(HOUR, 6 * HOUR)
BUILT = BuildOutcome(KEY, 1, 0.0351, DATASET, trigger="cutoff")
FAILED = BuildOutcome(KEY, 3, 1.5, error="no [bold]space[/bold]\x1b left", trigger="cutoff")
LOST = BuildOutcome(KEY, 1, 0.5, DATASET, lost=True, trigger="cutoff")


def view(window=WINDOW, standing=WindowStatus.FINAL, reason=None, detail=None, counts=(2, 2, 1, 0), age=DAY):
    return WindowView(window, standing, reason, detail, *counts, age)


def member(letter="1", *, arrival=CUTOFF, name=None, **marks):
    bounds = Interval(START, START + HOUR)
    return Member(letter * 64, int(letter), name or letter * 64, arrival, bounds, **marks)


def text_of(*blocks):
    """What goes to stdout."""
    console = Console(file=io.StringIO(), width=400, markup=False, highlight=False)
    for one in blocks:
        if not isinstance(one, Note):
            console.print(one)
    return console.file.getvalue()


def words(view):
    (line,) = view
    return line.plain


# -- the list


def test_a_window_in_json_has_its_span_state_reason_slices_and_age():
    waits = Window(KEY, 1, Phase.WAITING, reason="gap", detail="gap 13:30-13:45")
    assert plain_windows.view(
        view(waits, WindowStatus.WAITING, "gap", "gap 13:30-13:45", (2, 0, 0, 4), 90 * MINUTE)
    ) == {
        "stream": "weather",
        "start": "2024-01-15T13:00:00Z",
        "end": "2024-01-15T14:00:00Z",
        "window_id": "807186f78297085ea9a852e3",
        "state": "waiting",
        "reason": "gap",
        "detail": "gap 13:30-13:45",
        "remedy": remedy("gap", KEY),
        "slices": {"desired": 2, "observed": 0, "ignored": 0},
        "rejected": 4,
        "current": False,
        "revision": 0,
        "rows": None,
        "bytes": None,
        "built_at": None,
        "age": "1h30m",
    }


def test_the_table_of_windows_says_why_one_waits():
    waits = Window(KEY, 1, Phase.WAITING, reason="coverage", detail="coverage missing before 13:09")
    shown = text_of(
        *views.windows.listed(
            [view(waits, WindowStatus.WAITING, "coverage", waits.detail, (3, 0, 0, 0)), view()], more=False
        )
    )
    first, second = (line.split() for line in shown.splitlines() if line.startswith(" weather"))
    assert first[1:4] == ["2024-01-15T13:00:00Z", "2024-01-15T14:00:00Z", "waiting"]
    assert first[4:9] == ["coverage", "missing", "before", "13:09", "3"]
    assert second[3:] == ["final", "2", "2", "1", "2", "120", "1d"]


@pytest.mark.parametrize(
    ("us", "reported"),
    [
        (SECOND // 2, "500ms"),
        (59 * MINUTE + 3 * SECOND + 7, "59m3s"),
        (3 * HOUR + MINUTE + SECOND, "3h1m"),
        (2 * DAY + 3 * HOUR + MINUTE, "2d3h"),
    ],
)
def test_an_age_for_people_is_as_fine_as_it_is_short(us, reported):
    assert views.windows.about(us) == reported


# -- one window


def story(window=WINDOW, members=(), revisions=(DATASET,), rules=RULES, **more):
    last = START + HOUR + rules.stc + rules.max_lateness
    return WindowStory(view(window, **more), rules, last, members, revisions)


def test_the_story_in_json_has_rules_cutoff_members_and_revisions():
    document = plain_windows.details(
        story(members=[member(desired=True, observed=True), member("9", arrival=CUTOFF + 1, ignored="late")])
    )
    assert document["rules"] == {
        "aggregation_span": "1h",
        "subject_to_change_window": "6h",
        "allow_incomplete_windows": False,
        "gap_tolerance": "1s",
        "max_lateness": "0s",
    }
    assert (document["cutoff"], document["last_arrival"]) == ("2024-01-15T20:00:00Z", "2024-01-15T20:00:00Z")
    assert [(one["seq"], one["used"], one["observed"], one["ignored"]) for one in document["members"]] == [
        (1, True, True, None), (9, False, False, "late"),
    ]  # fmt: skip
    assert document["members"][0]["covers"] == {
        "start": "2024-01-15T13:00:00Z",
        "end": "2024-01-15T14:00:00Z",
    }
    (revision,) = document["revisions"]
    assert (revision["revision"], revision["current"], revision["file"]) == (2, True, FILE)
    assert document["lease"] is None


def test_max_lateness_moves_the_last_arrival_and_not_the_cutoff():
    document = plain_windows.details(story(rules=WindowRules(HOUR, 6 * HOUR, max_lateness=DAY)))
    assert (document["cutoff"], document["last_arrival"]) == ("2024-01-15T20:00:00Z", "2024-01-16T20:00:00Z")


def test_a_window_under_lease_says_who_builds_it_until_when():
    held = Window(
        KEY, 9, Phase.BUILDING, owner="host-1-ab", lease_until=CUTOFF + MINUTE, attempts=2, error="disk full"
    )
    document = plain_windows.details(story(held, revisions=(), standing=WindowStatus.BUILDING))
    assert document["lease"] == {"owner": "host-1-ab", "until": "2024-01-15T20:01:00Z"}
    shown = text_of(*views.windows.details(story(held, revisions=(), standing=WindowStatus.BUILDING)))
    assert "host-1-ab, its lease runs until 2024-01-15T20:01:00Z" in shown
    assert "disk full" in shown


@pytest.mark.parametrize(
    ("given", "counts", "why"),
    [
        (member(desired=True), "used", "came by the cutoff"),
        (
            member(arrival=CUTOFF + HOUR, desired=True),
            "used",
            "came 1h after the cutoff, but the window was still open for it",
        ),
        (member(arrival=CUTOFF + HOUR, ignored="late"), "ignored", "late: it came 1h after the cutoff"),
        (member(), "open", "not evaluated yet; the next round does"),
    ],
)
def test_each_slice_of_a_window_says_whether_it_counts_and_why(given, counts, why):
    assert views.windows.member_words(given, CUTOFF) == (counts, why)


def test_a_slice_that_a_retraction_changed_has_its_number():
    assert views.windows.short_name(member(name="1" * 64 + "~2")) == "1" * 12 + "~2"


def test_a_withdrawn_dataset_is_no_revision_with_no_rows():
    gone = Window(
        KEY, 9, Phase.WAITING, reason="empty", detail="no slice is left", desired="c" * 64, revision=2
    )
    shown = text_of(*views.windows.details(story(gone, standing=WindowStatus.WAITING)))
    assert "2, withdrawn" in shown
    assert not plain_windows.details(story(gone))["revisions"][0]["current"]


# -- datasets


def listed(warehouse, *windows):
    found = [(window, damage_of(warehouse, window)) for window in windows]
    return views.datasets.datasets(warehouse, found, more=False)


def test_a_dataset_is_current_or_being_rebuilt(tmp_path):
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(b"ARROW1".ljust(4090, b".") + b"ARROW1")
    stale = Window(KEY, 8, Phase.QUEUED, desired="c" * 64, observed="b" * 64, revision=2, file=FILE, rows=120)
    assert plain_windows.newest(WINDOW, None)["current"] is True
    assert plain_windows.newest(stale, None)["current"] is False
    shown = text_of(*listed(tmp_path, WINDOW, stale)).splitlines()
    assert any("  current  " in line and str(file) in line for line in shown)
    assert any("being rebuilt" in line for line in shown)


def test_a_damaged_dataset_says_what_is_wrong_and_what_mends_it(tmp_path):
    remedy = "tidemill rebuild weather --window 2024-01-15T13:00:00Z"
    document = plain_windows.newest(WINDOW, "the file is not an Arrow file any more")
    assert (document["damage"], document["remedy"]) == ("the file is not an Arrow file any more", remedy)
    assert plain_windows.newest(WINDOW, None)["remedy"] is None
    shown = text_of(*listed(tmp_path, WINDOW))
    assert f"damaged: the file cannot be read: No such file or directory; {remedy}" in shown


# -- building


def test_the_outcome_of_a_try_in_json():
    document = plain_windows.outcome(BUILT)
    shown = [document[key] for key in ("outcome", "revision", "rows", "slices", "took")]
    assert shown == ["built", 2, 120, 2, "35ms"]
    assert plain_windows.outcome(LOST)["outcome"] == "lost"
    failed = plain_windows.outcome(FAILED)
    assert (failed["outcome"], failed["attempt"], failed["revision"]) == ("failed", 3, None)
    assert failed["error"] == FAILED.error


def test_the_outcome_of_a_try_in_a_line():
    at = "weather [2024-01-15T13:00:00Z, 2024-01-15T14:00:00Z)"
    assert words(views.windows.built(BUILT)) == f"{at}  revision 2, 120 rows of 2 slices: cutoff; 35ms"
    assert words(views.windows.built(FAILED)) == (
        f"{at}  try 3 failed: no [bold]space[/bold]\\x1b left; 1s500ms"
    )
    assert words(views.windows.built(LOST)) == f"{at}  built, but another builder was faster; 500ms"


def test_a_rebuild_prints_the_plan_and_then_the_same_plan_with_outcomes():
    waits = WindowKey("weather", START + HOUR, HOUR)
    steps = [
        RebuildStep(KEY, "build", 1, 2, 3, "b" * 64, "rebuild", late=1),
        RebuildStep(waits, "wait", 0, 0, 1, None, "coverage missing after 14:30"),
    ]
    plan = plain_windows.rebuild_plan("weather", steps)["steps"]
    ran = plain_windows.rebuilt("weather", steps, [BUILT])["steps"]
    assert [{**step, "outcome": one["outcome"]} for step, one in zip(plan, ran, strict=True)] == ran
    assert [one["outcome"] and one["outcome"]["revision"] for one in ran] == [2, None]
    shown = text_of(*views.windows.rebuild_plan("weather", steps))
    assert "1 -> 2" in shown
    assert "3 (1 late)" in shown
    assert "coverage missing after 14:30" in shown
    assert "outcome" not in shown
    assert "revision 2, 120 rows" in text_of(*views.windows.rebuilt("weather", steps, [BUILT]))
    assert "left in the queue" in text_of(*views.windows.rebuilt("weather", steps, []))
    assert "try 3 failed" in text_of(*views.windows.rebuilt("weather", steps, [FAILED]))


# -- rounds


def tick(windows=None, builds=(), **more):
    return TickReport(CUTOFF, [StreamTick("weather", windows=windows, **more)], 1.25, builds)


def test_a_round_tells_of_windows_queued_built_and_failed():
    report = tick(Coordinated(assigned=1, evaluated=3, queued=2), [BUILT, FAILED])
    line = views.ingest.tick(report, details=False)
    assert words(line) == "2024-01-15T20:00:00Z weather: 2 windows queued, 1 built, 1 failed; 1s250ms"
    listed = [line.plain for line in views.ingest.tick(report, details=True)]
    assert any("revision 2, 120 rows of 2 slices: cutoff" in line for line in listed[1:])


def test_a_round_in_json_counts_windows_and_lists_builds_when_asked():
    report = tick(Coordinated(assigned=1, queued=2, ignored=1, withdrawn=1), [BUILT, FAILED])
    (stream,) = plain_operations.tick(report, details=False)["streams"]
    assert stream["windows"] == {
        "queued": 2, "built": 1, "failed": 1, "lost": 0, "waiting": {}, "ignored_slices": 1, "withdrawn": 1,
        "damaged": 0,
    }  # fmt: skip
    assert "builds" not in stream
    (stream,) = plain_operations.tick(report, details=True)["streams"]
    assert [one["outcome"] for one in stream["builds"]] == ["built", "failed"]
    assert plain_operations.tick(tick(), details=False)["streams"] == []


def test_a_round_that_only_built_is_told():
    (stream,) = plain_operations.tick(tick(Coordinated(), [BUILT]), details=False)["streams"]
    assert (stream["batch"], stream["windows"]["built"]) == (None, 1)
    line = views.ingest.tick(tick(Coordinated(), [BUILT]), details=False)
    assert words(line) == "2024-01-15T20:00:00Z weather: 1 window built; 1s250ms"


def test_a_round_that_only_found_windows_that_wait_says_so():
    found = Coordinated(assigned=2)
    found.waiting.update({"cutoff": 2})
    line = views.ingest.tick(tick(found), details=False)
    assert words(line) == "2024-01-15T20:00:00Z weather: 2 windows waiting; 1s250ms"


def test_status_shows_windows_by_phase_and_the_queue():
    totals = dict.fromkeys(
        ["pending_slices", "accepted_slices", "failed_slices", "retracted_slices", "landings", "bytes",
         "records", "accepted", "duplicate", "conflict", "rejected", "late"], 0,
    )  # fmt: skip
    of = StreamStatus(
        "weather", totals, [], None, 0, 0, 0, 0, windows={"waiting": 3, "queued": 2, "built": 1_000}
    )
    shown = text_of(status_table(CUTOFF, of))
    assert "3 waiting, 2 queued, 1,000 built" in shown
    assert "2 windows to build" in shown


# -- retractions and events


def test_a_retraction_prints_its_steps_in_order():
    new = NewSlice("1" * 64, "weather", "file", "a\x1b.ndjson", Format.NDJSON, Codec.NONE, "p", 1, CUTOFF)
    entry = SliceEntry(1, new)
    steps = [
        RecordRetracted(new.id, new.name, "sent twice", 3),
        Undo("b1", [new.id, "2" * 64], 5),
        DecideAgain("2" * 64, "b.ndjson", 2),
    ]
    plan = RetractionPlan(entry, "sent twice", CUTOFF, "only its batch", steps)
    document = plain_operations.retraction(plan, None)
    assert [step["step"] for step in document["steps"]] == ["retract", "undo_batch", "judge_again"]
    assert (document["reason"], document["why"], document["retracted"]) == (
        "sent twice",
        "only its batch",
        None,
    )
    lines = [line.plain for line in views.ingest.retraction(plan, None)]
    assert lines[0] == f"weather {'1' * 12}: only its batch"
    assert len(lines) == 4
    assert "a\\x1b.ndjson" in lines[1]
    *_, done, note = views.ingest.retraction(plan, entry)
    assert done.plain.startswith("retracted 111111111111")
    assert isinstance(note, Note)


def test_an_event_for_people_is_a_line():
    event = {
        "type": "tidemill.dataset.available",
        "time": "2024-01-15T20:00:01.5Z",
        "data": {"stream": "weather", "start": "S", "end": "E", "revision": 2, "supersedes": 1, "rows": 120,
                 "trigger": "slices", "location": "r2\x1b.arrow"},
    }  # fmt: skip
    assert words(views.datasets.event(7, event)) == (
        "     7 2024-01-15T20:00:01Z dataset.available  weather [S, E)  revision 2 in place of 1, 120 rows"
        ": slices  r2\\x1b.arrow"
    )


def test_one_side_of_a_span_may_be_open():
    assert span_of(None, None) is None
    assert span_of("2024-01-15T13:00:00Z", None) == Interval(START, MAX_INSTANT)
    assert span_of(None, "2024-01-15T13:00:00Z") == Interval(MIN_INSTANT, START)
    with pytest.raises(InputError, match="before it starts"):
        span_of("2024-01-15T13:00:00Z", "2024-01-15T12:00:00Z")
