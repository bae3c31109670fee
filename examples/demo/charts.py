"""The charts of the report, each from the facts of the demo. Values in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from examples.demo.facts import ON_TIME, Facts
from examples.demo.plots import Chart, Tick, row_bars, ticks

from tidemill.model.levels import BY_NAME, LEVELS
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, align, format_duration, format_instant

COLUMNS: Final = 360  # of the day in the chart of 5s buckets: one for every 4 minutes


def clock(at: int) -> str:
    return format_instant(at)[11:16]


def hour_ticks(span: Interval, every: int) -> list[Tick]:
    """Marks at whole multiples of `every`; the end of a day is 24:00."""
    first = align(span.start + every - 1, every)
    return [
        (at, "24:00" if at == span.end and at % DAY == 0 else clock(at))
        for at in range(first, span.end + 1, every)
    ]


def events_per_5s(facts: Facts) -> str:
    """The day in columns: the mean of their 5s buckets as a line, the least and the most as a band."""
    width = max(5 * SECOND, (facts.span.end - facts.span.start) // COLUMNS)
    columns: dict[int, list[int]] = {}
    for at, count in facts.every_5s.items():
        columns.setdefault(facts.span.start + (at - facts.span.start) // width * width, []).append(count)
    most = max((max(counts) for counts in columns.values()), default=0)
    marks = ticks(most)
    chart = Chart(
        "Events per 5 s over the day",
        f"{len(facts.every_5s):,} buckets of 5 s with up to {most} events each; more in the late hours.",
        x=(facts.span.start, facts.span.end),
        y=(0, marks[-1][0]),
    )
    chart.bar((facts.late_span.start, facts.late_span.end), (0, marks[-1][0]), "shade")
    chart.y_axis(marks, "events per 5 s")
    chart.x_axis(hour_ticks(facts.span, 3 * HOUR), "event time, UTC")
    chart.band([(at + width / 2, min(c), max(c)) for at, c in sorted(columns.items())], "after")
    chart.line([(at + width / 2, sum(c) / len(c)) for at, c in sorted(columns.items())], "after")
    for at, counts in sorted(columns.items()):
        mean = sum(counts) / len(counts)
        tip = (
            f"{clock(at)} + {format_duration(width)}: {min(counts)} to {max(counts)} per 5 s, mean {mean:.1f}"
        )
        chart.hover((at, at + width), tip)
    chart.legend([("after", "mean, least and most"), ("shade", "the late hours")])
    return chart.html()


def landing_order(facts: Facts) -> str:
    """What each slice covers, in the order of landing, against the watermark that it met."""
    count = len(facts.judged)
    chart = Chart(
        "What each slice covers, in the order of landing",
        "Each bar is a slice; bars below the line of the watermark hold late events.",
        x=(0, count),
        y=(facts.span.start, facts.span.end),
        height=320,
    )
    chart.y_axis(hour_ticks(facts.span, 4 * HOUR), "event time, UTC")
    chart.x_axis([(i + 0.5, str(i + 1)) for i in range(count)], "order of landing")
    for place, judged in enumerate(facts.judged):
        observed = judged.entry.observed
        if observed is None:
            continue
        colour = "late" if judged is facts.late else "accepted"
        met = judged.entry.watermark
        tip = (
            f"{judged.name}: {clock(observed.start)} to {clock(observed.end)}, "
            f"{judged.counts.late:,} of {judged.counts.accepted:,} late, "
            f"watermark {format_instant(met) if met is not None else 'none yet'}"
        )
        low = min(observed.start, observed.end - 8 * MINUTE)
        chart.bar((place + 0.14, place + 0.86), (low, observed.end), colour, tip)
    marks = [(float(i), judged.entry.watermark) for i, judged in enumerate(facts.judged)]
    known = [(x, float(mark)) for x, mark in marks if mark is not None]
    if known:
        chart.steps([*known, (float(count), known[-1][1])], "mark", dashed=True)
    chart.legend([("accepted", "slice"), ("late", "the late slice"), ("mark", "watermark")])
    return chart.html()


def lateness(facts: Facts) -> str:
    """Accepted events by how many whole hours they were behind the watermark."""
    bins = sorted(facts.lateness)
    last = max(bins, default=0)
    most = max((feed + late for feed, late in facts.lateness.values()), default=0)
    marks = ticks(most)
    chart = Chart(
        "How late accepted events were",
        "Bars by whole hours behind the watermark; the first bar is on time.",
        x=(ON_TIME, last + 1),
        y=(0, marks[-1][0]),
    )
    chart.y_axis(marks, "events")
    hours: list[Tick] = [(h, f"{h}h") for h in range(2, last + 2, 2 if last > 12 else 1)]
    chart.x_axis([(ON_TIME + 0.5, "on time"), *hours], "behind the watermark")
    for behind in bins:
        feed, late = facts.lateness[behind]
        sort = "accepted" if behind == ON_TIME else "behind"
        words = "on time" if behind == ON_TIME else f"{behind} to {behind + 1} h late"
        x = (behind + 0.1, behind + 0.9)
        chart.bar(x, (0, feed), sort, f"{words}: {feed:,} events of the feed")
        chart.bar(x, (feed, feed + late), "late", f"{words}: {late:,} events of the late slice")
    chart.legend([("accepted", "on time"), ("behind", "late, in the feed"), ("late", "the late slice")])
    return chart.html()


def outcomes(facts: Facts) -> str:
    total = facts.total
    rows = [
        ("accepted", total.accepted, "accepted"),
        ("duplicate", total.duplicate, "duplicate"),
        ("conflict", total.conflict, "conflict"),
        ("rejected", total.rejected, "rejected"),
    ]
    words = ", ".join(f"{value:,} {name}" for name, value, _ in rows)
    return row_bars("Records by outcome", f"{words}.", rows, log=True, label="records, logarithmic")


def reasons(facts: Facts) -> str:
    rows = [(reason, count, "rejected") for reason, count in _by_count(facts)]
    return row_bars(
        "Rejected records by reason",
        ", ".join(f"{n} {r}" for r, n, _ in rows),
        rows,
        label="records",
    )


def _by_count(facts: Facts) -> Sequence[tuple[str, int]]:
    return sorted(facts.total.rejects.items(), key=lambda item: (-item[1], item[0]))


def not_accepted(facts: Facts) -> str:
    """Duplicates, conflicts and rejections of each slice, in the order of landing."""
    counts = [judged.counts for judged in facts.judged]
    most = max((c.duplicate + c.conflict + c.rejected for c in counts), default=0)
    marks = ticks(most)
    chart = Chart(
        "Records that were not accepted, slice by slice",
        "Stacked bars of duplicates, conflicts and rejected records in the order of landing.",
        x=(0, len(counts)),
        y=(0, marks[-1][0]),
        height=240,
    )
    chart.y_axis(marks, "records")
    chart.x_axis([(i + 0.5, str(i + 1)) for i in range(len(counts))], "order of landing")
    for place, judged in enumerate(facts.judged):
        base = 0
        for name in ("duplicate", "conflict", "rejected"):
            value: int = getattr(judged.counts, name)
            x = (place + 0.14, place + 0.86)
            chart.bar(x, (base, base + value), name, f"{judged.name}: {value:,} {name}")
            base += value
    chart.legend([(name, name) for name in ("duplicate", "conflict", "rejected")])
    return chart.html()


def before_after(facts: Facts) -> str:
    """Events per minute around the late hours, before and after the late slice."""
    span = Interval(facts.late_span.start - HOUR, facts.late_span.end + HOUR)
    minutes = list(span.windows(MINUTE))
    before = [facts.before.minutes.get(at, 0) for at in minutes]
    after = [facts.after.minutes.get(at, 0) for at in minutes]
    marks = ticks(max([*before, *after, 1]))
    chart = Chart(
        "Events per minute, before and after the late slice",
        "Two lines that are the same outside the late hours; inside them the second is higher.",
        x=(span.start, span.end),
        y=(0, marks[-1][0]),
    )
    chart.bar((facts.late_span.start, facts.late_span.end), (0, marks[-1][0]), "shade")
    chart.y_axis(marks, "events per minute")
    chart.x_axis(hour_ticks(span, HOUR // 2), "event time, UTC")
    middles = [at + MINUTE / 2 for at in minutes]
    chart.band([(x, b, a) for x, b, a in zip(middles, before, after, strict=True)], "late")
    chart.line(list(zip(middles, after, strict=True)), "late")
    chart.line(list(zip(middles, before, strict=True)), "mark")
    for at, b, a in zip(minutes, before, after, strict=True):
        chart.hover((at, at + MINUTE), f"{clock(at)}: {b} before, {a} after")
    chart.legend([("mark", "before"), ("late", "after")])
    return chart.html()


def tile_map(facts: Facts) -> str:
    """Every tile of every level over the day; those that the late slice had rebuilt stand out."""
    changed = {change.key: change for change in facts.changes}
    chart = Chart(
        "Which tiles were rebuilt",
        f"{len(changed)} of {len(facts.after.tiles)} tiles, on five levels over the day.",
        x=(facts.span.start, facts.span.end),
        y=(0, len(LEVELS)),
        height=250,
    )
    chart.x_axis(hour_ticks(facts.span, 3 * HOUR), "event time, UTC")
    chart.y_axis([(place + 0.5, level.name) for place, level in enumerate(LEVELS)])
    for key in sorted(facts.after.tiles):
        level = BY_NAME[key.level]
        place = LEVELS.index(level)
        change = changed.get(key)
        tip = f"{key.level} tile from {format_instant(key.start)}, {format_duration(level.tile)}: " + (
            f"rebuilt as r{change.revision}, {change.reason}" if change else "left alone"
        )
        x = (max(key.start, facts.span.start), min(key.start + level.tile, facts.span.end))
        chart.bar(x, (place + 0.12, place + 0.88), "late" if change else "idle", tip, gap=True)
    chart.legend([("late", "rebuilt"), ("idle", "left alone")])
    return chart.html()


def dataset_rows(facts: Facts) -> str:
    """The dataset of each hour with its rows; what a second revision added stands out."""
    found = facts.datasets
    again = {one.after.hour: one for one in found.again}
    marks = ticks(max((edition.rows for edition in found.after.newest.values()), default=0))
    chart = Chart(
        "Rows of the dataset of each hour",
        f"{len(found.after.newest)} bars over the day; {len(again)} of them grew when they came out again.",
        x=(facts.span.start, facts.span.end),
        y=(0, marks[-1][0]),
        height=240,
    )
    chart.y_axis(marks, "rows")
    chart.x_axis(hour_ticks(facts.span, 3 * HOUR), "window, UTC")
    for at, edition in sorted(found.after.newest.items()):
        one = again.get(at)
        first = edition.rows if one is None else one.before.rows if one.before else 0
        x = (at + 0.1 * HOUR, at + 0.9 * HOUR)
        name = f"{clock(at)} r{edition.revision}: {edition.rows:,} rows"
        chart.bar(x, (0, first), "accepted", name if one is None else f"{clock(at)}: {first:,} rows before")
        chart.bar(x, (first, edition.rows), "late", f"{name}, {edition.rows - first:,} more")
    chart.legend([("accepted", "before the late slice"), ("late", "added by the next revision")])
    return chart.html()
