"""The report: one file that stands alone, says what the facts say, and lets no data out of its place."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest
from examples.demo.datasets import Datasets, Edition, Shelf
from examples.demo.facts import Cell, Facts, Judged, Proof, TileChange, View
from examples.demo.report import policy, render, scripts

from tidemill.model.levels import TileKey, TileState
from tidemill.model.slices import Codec, Counts, Format, NewSlice, SliceEntry, SliceStatus
from tidemill.model.time import DAY, HOUR, MINUTE, Interval, parse_instant
from tidemill.testing.feed import Manifest, SliceTruth

START = parse_instant("2024-01-01T00:00:00Z")
HOUR_3, HOUR_4 = START + 3 * HOUR, START + 4 * HOUR
FIRST, LATE, OTHER = f"{1:064x}", f"{2:064x}", f"{9:064x}"  # slices
EVIL = "<script>alert(1)</script>\"'&"


def judged(seq: int, counts: Counts, file: str, watermark: int | None) -> Judged:
    new = NewSlice(
        f"{seq:064x}", "requests", "file", file, Format.NDJSON, Codec.NONE, f"slices/{file}", 1, START + DAY
    )
    observed = Interval(START + 3 * HOUR, START + 4 * HOUR)
    entry = SliceEntry(seq, new, SliceStatus.ACCEPTED, counts, observed, watermark, "batch")
    return Judged(entry, SliceTruth(file, START + DAY, counts, watermark))


def edition(hour: int, revision: int, slices: set[str], rows: int) -> Edition:
    return Edition(hour, revision, f"{hour}/r{revision}.arrow", frozenset(slices), rows, Decimal("10.500"))


@pytest.fixture
def datasets() -> Datasets:
    old, again = edition(HOUR_3, 1, {FIRST}, 900), edition(HOUR_3, 2, {FIRST, LATE}, 956)
    same = edition(HOUR_4, 1, {FIRST}, 300)
    stood = {old.file: "d" * 64, same.file: "e" * 64}
    return Datasets(
        before=Shelf({HOUR_3: old, HOUR_4: same}, stood),
        after=Shelf({HOUR_3: again, HOUR_4: same}, {**stood, again.file: "f" * 64}),
        late=LATE,
        late_hours=frozenset({HOUR_3}),
        before_true=True,
        after_true=True,
    )


@pytest.fixture
def facts(datasets: Datasets) -> Facts:
    first = Counts(1_234, 1_200, 20, 4, 10, 0, {"malformed": 7, "skew": 3})
    late = Counts(56, 56, 0, 0, 0, 56)
    tile, other = TileKey("5s", START + 3 * HOUR), TileKey("5s", START + 9 * HOUR)
    before, after = TileState(tile, "a" * 64, 1, "p", 3), TileState(tile, "b" * 64, 2, "q", 4)
    same = TileState(other, "c" * 64, 1, "p", 5)
    moved = same._replace(part="q")  # to another file, which does not make it another tile
    hour = START + 3 * HOUR
    return Facts(
        span=Interval(START, START + DAY),
        late_span=Interval(hour, hour + 2 * HOUR),
        judged=[
            judged(1, first, "slice-00000.ndjson", None),
            judged(2, late, "late-00001.ndjson", START + DAY),
        ],
        before=View({hour: Cell(1_200, Decimal("10.500"))}, {hour: 20}, {tile: before, other: same}),
        after=View({hour: Cell(1_256, Decimal("12345.678"))}, {hour: 21}, {tile: after, other: moved}),
        before_true=True,
        after_true=True,
        changes=[TileChange(tile, 2, 4, "late: a reason", "a" * 64, "b" * 64)],
        lateness={-1: (1_200, 0), 20: (0, 56)},
        every_5s={hour + second: 3 for second in range(0, MINUTE, 5_000_000)},
        datasets=datasets,
        proof=Proof(2, 1_256, 2, 2, []),
    )


class Page(HTMLParser):
    """Collects tags and checks that they close in order."""

    VOID = frozenset({"meta", "rect", "line", "polyline", "polygon"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_says_the_numbers(facts: Facts) -> None:
    html = render(facts, warehouse="demo/warehouse", commands=["tidemill -p demo status"])
    page = Page(html)
    names = [tag for tag, _ in page.tags]
    assert sum(attributes.get("class") == "plot" for _, attributes in page.tags) == 9
    assert names.count("script") == 3  # the chart library, its plotting API, and what draws with it
    for words in (
        "1,290",
        "1,256",
        "1 of 2",
        "12,345.678",
        "+56",
        "aaaaaaaaaaaa → bbbbbbbbbbbb",
        "late: a reason",
        "came out again",
        "These are the hours of the late slice: 1 of 2.",
        "All 2 files that stood before it have the same sha256 as then.",
        "The 1,256 rows of the datasets are the accepted records",
        "f" * 12,
    ):
        assert words in html
    assert "Everything equals its recomputation." in html
    assert "tidemill -p demo status" in html


def without_scripts(html: str) -> str:
    """The page without what it runs, which must be there as it is."""
    for script in scripts():
        assert html.count(f"<script>{script}</script>") == 1
        html = html.replace(f"<script>{script}</script>", "")
    return html


def test_the_page_needs_and_runs_nothing_from_anywhere(facts: Facts) -> None:
    html = without_scripts(render(facts, warehouse="w", commands=[]))
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & {tag for tag, _ in page.tags}
    loading = {"src", "href", "xlink:href", "srcset", "style", "action"}
    assert not [name for _, attributes in page.tags for name in attributes if name in loading]
    assert not re.search(r"https?:|url\(|@import", html)
    said = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert said == [policy(scripts())]
    rules = dict(part.strip().split(" ", 1) for part in said[0].split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"('sha256-[A-Za-z0-9+/]{43}=' ?){3}", rules["script-src"])
    assert "prefers-color-scheme: dark" in html


def test_data_cannot_become_markup(facts: Facts) -> None:
    evil_edition = replace(facts.datasets.after.newest[HOUR_3], slices=frozenset({EVIL}))
    evil = replace(
        facts,
        judged=[judged(1, Counts(1, 0, rejected=1, rejects={EVIL: 1}), EVIL, None), facts.late],
        changes=[replace(facts.changes[0], reason=EVIL, hash_before=EVIL, hash_after=EVIL)],
        datasets=replace(facts.datasets, after=Shelf({HOUR_3: evil_edition}, {evil_edition.file: EVIL})),
        proof=replace(facts.proof, findings=[EVIL]),
    )
    html = without_scripts(render(evil, warehouse=EVIL, commands=[EVIL]))
    assert "script" not in {tag for tag, _ in Page(html).tags}
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") >= 6


def test_what_is_wrong_is_said(facts: Facts) -> None:
    truth = replace(facts.judged[0].truth, counts=Counts())
    wrong = replace(
        facts,
        judged=[replace(facts.judged[0], truth=truth), facts.late],
        after_true=False,
        datasets=replace(
            facts.datasets,
            after=replace(facts.datasets.after, files={}),
            after_true=False,
            late_hours=frozenset(),
        ),
        proof=replace(facts.proof, findings=["tile 5s: sum differs"]),
    )
    html = render(wrong, warehouse="w", commands=[])
    for words in (
        "Some slices differ.",
        "Some hours differ",
        "These are not the hours of the late slice.",
        "0 of the 2 files that stood before it are as they were; 0 are new.",
        "The rows of the datasets are not the accepted records.",
        "Something differs",
        "tile 5s: sum differs",
    ):
        assert words in html
    assert facts.ok
    assert not wrong.ok


@pytest.mark.parametrize(
    "change",
    [
        {"before_true": False},
        {"after_true": False},
        {"changes": []},  # a tile changed that no tick told of
        {"proof": Proof(2, 1_256, 2, 2, ["x"])},
    ],
)
def test_one_wrong_fact_makes_the_demo_wrong(facts: Facts, change: dict[str, object]) -> None:
    assert not replace(facts, **change).ok  # type: ignore[arg-type]


def with_newest(datasets: Datasets, changed: Edition) -> Datasets:
    """As if this one had come out in the end."""
    after = datasets.after
    files = {**after.files, changed.file: after.files.get(changed.file, "0" * 64)}
    return replace(datasets, after=Shelf({**after.newest, changed.hour: changed}, files))


@pytest.mark.parametrize(
    "changed",
    [
        edition(HOUR_3, 3, {FIRST, LATE}, 956),  # not the next revision
        edition(HOUR_3, 2, {FIRST, LATE, OTHER}, 956),  # because of another slice, too
        edition(HOUR_3, 2, {FIRST}, 956),  # for no reason
        edition(HOUR_4, 2, {FIRST, LATE}, 300),  # an hour that it has nothing of
        edition(HOUR_4 + HOUR, 1, {LATE}, 0),  # one that there was not
    ],
)
def test_only_the_hours_of_the_late_slice_may_come_out_again(facts: Facts, changed: Edition) -> None:
    wrong = with_newest(facts.datasets, changed)
    assert facts.datasets.only_the_late
    assert not wrong.only_the_late
    assert not replace(facts, datasets=wrong).ok


@pytest.mark.parametrize(
    "files",
    [
        {f"{HOUR_3}/r1.arrow": "0" * 64},  # a first revision was written to
        {f"{HOUR_4}/r1.arrow": "0" * 64},  # one that did not come out again was
        {f"{HOUR_4}/r2.arrow": "0" * 64},  # a file that nobody knows
    ],
)
def test_one_file_that_is_not_as_it_was_makes_the_demo_wrong(facts: Facts, files: dict[str, str]) -> None:
    after = facts.datasets.after
    wrong = replace(facts.datasets, after=replace(after, files={**after.files, **files}))
    assert facts.datasets.files_kept
    assert not wrong.files_kept
    assert not replace(facts, datasets=wrong).ok


def test_a_file_that_is_gone_makes_the_demo_wrong(facts: Facts) -> None:
    after = facts.datasets.after
    files = {file: digest for file, digest in after.files.items() if not file.endswith("r1.arrow")}
    wrong = replace(facts.datasets, after=replace(after, files=files))
    assert not replace(facts, datasets=wrong).ok


@pytest.mark.parametrize("missing", [-1, 1])
def test_rows_of_datasets_are_the_accepted_records(facts: Facts, missing: int) -> None:
    again = facts.datasets.after.newest[HOUR_3]
    wrong = with_newest(facts.datasets, replace(again, rows=again.rows + missing))
    assert facts.all_in_datasets
    assert not replace(facts, datasets=wrong).ok
    assert not replace(facts, datasets=replace(facts.datasets, after_true=False)).ok
    assert not replace(facts, datasets=replace(facts.datasets, before_true=False)).ok


def test_a_shelf_is_held_against_the_truth_of_each_hour(datasets: Datasets) -> None:
    truth = Manifest(1, hours={str(HOUR_3): (900, 10_500), str(HOUR_4): (300, 10_500)})
    assert datasets.before.equals(truth)
    assert datasets.before.rows == 1_200
    assert not datasets.after.equals(truth)
    assert not datasets.before.equals(replace(truth, hours={**truth.hours, str(HOUR_4): (300, 10_501)}))
    assert not datasets.before.equals(replace(truth, hours={str(HOUR_3): (900, 10_500)}))


def test_what_a_slice_covers_is_told_to_the_minute(facts: Facts) -> None:
    first = facts.judged[0]
    bounds = Interval(START + 23 * HOUR - 1_500_000, START + DAY - 2_000_000)
    assert replace(first, entry=replace(first.entry, observed=bounds)).covers == "23:00-24:00"
    assert replace(first, entry=replace(first.entry, observed=None)).covers == "-"
