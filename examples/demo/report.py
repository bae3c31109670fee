"""The report: one HTML file that needs nothing else, with a table beside every chart.

Its scripts, the chart library and what draws with it, are in the file, and the policy names them by their
hashes: no other script runs, and nothing is loaded from anywhere. Whatever comes from data is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.demo.charts import clock
from examples.demo.facts import ON_TIME, Cell, Facts
from examples.demo.plots import text

from examples.demo import charts
from tidemill.model.time import HOUR, format_instant
from tidemill.server.console.routes import chart_files

_DRAW: Final = Path(__file__).parent / "report.js"

_STYLE: Final = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5b6776; --rule: #e1e5ea; --accent: #1f6fd0;
  --accepted: #2a78d6; --behind: #8ab8ee; --duplicate: #1baf7a; --conflict: #e0a100; --rejected: #dd4444;
  --late: #e8682c; --mark: #6b7685; --idle: #c9d3df; --shade: #e8682c; --after: #2a78d6;
  --good: #127a52; --bad: #c22f2f; }
@media (prefers-color-scheme: dark) { :root {
  --page: #10151c; --card: #18202a; --ink: #e8edf3; --soft: #9aa7b6; --rule: #2a3542; --accent: #6cabf5;
  --accepted: #4a93ec; --behind: #2f5f99; --duplicate: #23b181; --conflict: #d3a32a; --rejected: #e86a6a;
  --late: #ec7d48; --mark: #a3b0bf; --idle: #35424f; --shade: #ec7d48; --after: #4a93ec;
  --good: #4cc38a; --bad: #f07878; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 0 0 .35rem; }
p { margin: .35rem 0 .9rem; max-width: 46rem; }
.lead { color: var(--soft); font-size: 1.05rem; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 1.35rem
  1.5rem; margin-top: 1.25rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem;
  margin-top: 1.5rem; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.45rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
div.card > span { color: var(--soft); font-size: .86rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-weight: 600; }
.chart { overflow-x: auto; margin: .5rem 0; }
.plot { min-width: 34rem; min-height: 6rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.pair .plot { min-width: 18rem; }
h3 { font-size: 1rem; margin: 1rem 0 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .84rem; color: var(--soft); }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  margin-right: .4em; background: var(--dot); }
COLOURS
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: .86rem; padding-bottom: .35rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
th.words, td.words, tbody th { text-align: left; color: var(--ink); font-weight: 400; }
thead th.words { color: var(--soft); font-weight: 600; }
.wide { overflow-x: auto; }
details { margin-top: .6rem; } summary { cursor: pointer; color: var(--accent); font-size: .92rem; }
details[open] summary { margin-bottom: .5rem; }
code, pre { font: .88rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--page); border: 1px solid var(--rule); border-radius: 8px; padding: .7rem .9rem;
  overflow-x: auto; }
@media print { body { background: none; } section { break-inside: avoid; } }
"""
_COLOURS: Final = (
    "accepted", "behind", "duplicate", "conflict", "rejected", "late", "mark", "idle", "shade", "after",
)  # fmt: skip


def write_report(path: Path, facts: Facts, *, warehouse: str, commands: Sequence[str]) -> None:
    path.write_text(render(facts, warehouse=warehouse, commands=commands), encoding="utf-8")


def render(facts: Facts, *, warehouse: str, commands: Sequence[str]) -> str:
    """The whole page."""
    body = "\n".join(
        (
            _head(facts),
            _feed(facts),
            _gate(facts),
            _lateness(facts),
            _late_slice(facts),
            _tiles(facts),
            _datasets(facts),
            _proof(facts),
        )
    )
    run = scripts()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{text(policy(run))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Tidemill: report of the demo</title>\n<style>{_style()}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n{_next(warehouse, commands)}\n</main>\n"
        f"{''.join(f'<script>{one}</script>' for one in run)}\n</body>\n</html>\n"
    )


def _style() -> str:
    keys = [f".key-{name} {{ --dot: var(--{name}); }}" for name in _COLOURS]
    return _STYLE.replace("COLOURS", "\n".join(keys))


def scripts() -> list[str]:
    """What the page runs: the chart library, where it is installed, and what draws with it."""
    library = [path.read_text(encoding="utf-8") for path in chart_files().values() if path.is_file()]
    # A text in a script must not look like its end, or like a comment, to a browser.
    return [
        script.replace("</script", r"<\/script").replace("<!--", r"<\!--")
        for script in (*library, _DRAW.read_text(encoding="utf-8"))
    ]


def policy(of: Sequence[str]) -> str:
    """Only these scripts run, and nothing is loaded, whatever the data says."""
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in of]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"


def _head(facts: Facts) -> str:
    total, again = facts.total, facts.datasets.again
    verdict = (
        '<span class="good">equal</span>' if facts.proof.ok else '<span class="bad">differences found</span>'
    )
    cards = [
        (f"{total.records:,}", f"records in {len(facts.judged)} slices"),
        (f"{total.accepted:,}", "accepted"),
        (f"{total.late:,}", "of them late, none lost"),
        (f"{total.duplicate:,}", "duplicates, without effect"),
        (f"{total.conflict:,}", "conflicts, in quarantine"),
        (f"{total.rejected:,}", "rejected, in quarantine"),
        (f"{len(facts.changes)} of {len(facts.after.tiles)}", "tiles were rebuilt"),
        (f"{len(again)} of {len(facts.datasets.after.newest)}", "datasets came out again"),
    ]
    shown = "".join(
        f'<div class="card"><b>{text(n)}</b><span>{text(words)}</span></div>' for n, words in cards
    )
    return (
        "<header><h1>A day of web requests, late and out of order</h1>"
        '<p class="lead">Every input is an immutable slice. Every output is a pure function of a set of '
        "slices. The hash of that set says whether the output is current.</p></header>"
        f'<div class="cards">{shown}'
        f'<div class="card"><b>{verdict}</b><span>to its recomputation</span></div></div>'
    )


def _feed(facts: Facts) -> str:
    rows = []
    for hour in facts.span.windows(HOUR):
        counts = [count for at, count in facts.every_5s.items() if hour <= at < hour + HOUR]
        if counts:
            mean = f"{sum(counts) / len(counts):.2f}"
            rows.append((clock(hour), f"{sum(counts):,}", mean, f"{min(counts)}", f"{max(counts)}"))
    table = _table(
        "Buckets of 5 s, hour by hour", ("hour", "events", "mean per 5 s", "least", "most"), rows, words=1
    )
    return _section(
        "Events per 5 s",
        "Read from the finest rollup after everything had arrived. The shaded hours are those that the late "
        "slice filled up.",
        _chart(charts.events_per_5s(facts)),
        _details("The numbers, hour by hour", table),
    )


def _gate(facts: Facts) -> str:
    rows = []
    for place, one in enumerate(facts.judged, start=1):
        c = one.counts
        numbers = (c.records, c.accepted, c.late, c.duplicate, c.conflict, c.rejected)
        rows.append(
            (str(place), one.name, one.covers, *(f"{n:,}" for n in numbers), "equal" if one.ok else "differs")
        )
    head = (
        "", "slice", "covers", "records", "accepted", "late", "duplicate", "conflict", "rejected", "truth",
    )  # fmt: skip
    right = all(one.ok for one in facts.judged)
    total = facts.total
    kinds = [("accepted", total.accepted), ("duplicate", total.duplicate), ("conflict", total.conflict)]
    kinds += [(f"rejected: {reason}", count) for reason, count in total.rejects.items()]
    totals = _table("All slices", ("outcome", "records"), [(k, f"{n:,}") for k, n in kinds], words=1)
    return _section(
        "What the gate decided",
        "Each record gets one outcome, once. The same event again is a duplicate, whatever its key order or "
        "spacing. Another content under the same id is a conflict. What breaks a rule is rejected with a "
        "reason. Conflicts and rejections are in quarantine, byte for byte.",
        f'<div class="pair"><div><h3>By outcome</h3>{_chart(charts.outcomes(facts))}</div>'
        f"<div><h3>Rejected, by reason</h3>{_chart(charts.reasons(facts))}</div></div>",
        "<h3>Not accepted, slice by slice</h3>",
        _chart(charts.not_accepted(facts)),
        _verdict(right, "Every number of every slice equals what the feed knows.", "Some slices differ."),
        _details("Outcomes in total", totals),
        _details("Outcomes slice by slice", _table("In the order of landing", head, rows, words=3)),
    )  # fmt: skip


def _lateness(facts: Facts) -> str:
    rows = [
        (
            "on time" if behind == ON_TIME else f"{behind} to {behind + 1} h",
            f"{feed:,}", f"{late:,}", f"{feed + late:,}",
        )
        for behind, (feed, late) in sorted(facts.lateness.items())
    ]  # fmt: skip
    table = _table(
        "Accepted events by how far they were behind the watermark",
        ("behind", "feed", "late slice", "together"), rows, words=1,
    )  # fmt: skip
    return _section(
        "Out of order, and late",
        "Slices land in a shuffled order. The watermark follows the newest event seen, less 2 s, and never "
        "goes back: what lies at or below it is late. Each row of raw keeps the watermark that it met, so "
        "lateness is a fact on record.",
        "<h3>What each slice covers, in the order of landing</h3>",
        _chart(charts.landing_order(facts)),
        "<h3>How late accepted events were</h3>",
        _chart(charts.lateness(facts)),
        _details("The numbers", table),
    )


def _late_slice(facts: Facts) -> str:
    rows = []
    for hour in range(facts.late_span.start - HOUR, facts.late_span.end + HOUR, HOUR):
        before, after = facts.before.hours.get(hour, Cell()), facts.after.hours.get(hour, Cell())
        rows.append(
            (
                clock(hour), f"{before.count:,}", f"{after.count:,}", f"{after.count - before.count:+,}",
                f"{before.latency_ms:,}", f"{after.latency_ms:,}",
            )
        )  # fmt: skip
    head = ("hour", "count before", "count after", "more", "sum(latency_ms) before", "sum(latency_ms) after")
    right = facts.before_true and facts.after_true
    return _section(
        "Before and after the late slice",
        f"A gateway was cut off from {clock(facts.late_span.start)} to {clock(facts.late_span.end)} and "
        f"delivered its {facts.late.counts.records:,} events two days later. The same query gave the grey "
        "line before and the orange line after.",
        _chart(charts.before_after(facts)),
        _table("From the 1h level; sums are exact decimals", head, rows, words=1),
        _verdict(
            right,
            "Count and sum of every hour equal the feed's truth, before and after.",
            "Some hours differ from the feed's truth.",
        ),
    )


def _tiles(facts: Facts) -> str:
    rows = [
        (
            change.key.level, format_instant(change.key.start), f"r{change.revision}", change.reason,
            f"{(change.hash_before or 'none')[:12]} → {(change.hash_after or 'none')[:12]}",
            f"{change.rows:,}",
        )
        for change in facts.changes
    ]  # fmt: skip
    return _section(
        "Which tiles were rebuilt, and why",
        "A tile is committed with the hash of what it was made of. The late slice changed the sets behind "
        f"{len(facts.changes)} tiles, so their hashes no longer fitted. The other {facts.left_alone} are "
        "of the same revision and hash as before.",
        _chart(charts.tile_map(facts)),
        _table(
            "Rebuilt tiles",
            ("level", "tile from", "revision", "why", "hash before → after", "rows"),
            rows,
            words=5,
        ),
    )


def _datasets(facts: Facts) -> str:
    found = facts.datasets
    names = {one.entry.id: one.name for one in facts.judged}
    reissued = {one.after.hour for one in found.again}
    rows = [
        (
            clock(one.after.hour), f"r{one.after.revision}",
            ", ".join(sorted(names.get(each, each[:12]) for each in one.added)),
            f"{one.before.rows if one.before else 0:,}", f"{one.after.rows:,}",
        )
        for one in found.again
    ]  # fmt: skip
    every = [
        (
            clock(at), f"r{edition.revision}", "came out again" if at in reissued else "as it was",
            found.after.files.get(edition.file, "none")[:12], f"{len(edition.slices)}", f"{edition.rows:,}",
        )
        for at, edition in sorted(found.after.newest.items())
    ]  # fmt: skip
    return _section(
        "Which datasets came out again",
        "Each hour is handed on as an Arrow file, once slices cover it and it has been over for a day. "
        "What comes later makes the hours it has events of come out again, beside what was handed on before: "
        "no file is ever changed.",
        _chart(charts.dataset_rows(facts)),
        _table(
            "Came out again", ("window from", "revision", "because of", "rows before", "rows after"), rows,
            words=3,
        ),
        _verdict(
            found.only_the_late,
            f"These are the hours of the late slice: {len(rows)} of {len(every)}.",
            "These are not the hours of the late slice.",
        ),
        _verdict(
            found.files_kept,
            f"All {len(found.before.files)} files that stood before it have the same sha256 as then.",
            f"{found.untouched} of the {len(found.before.files)} files that stood before it are as they "
            f"were; {len(found.new_files)} are new.",
        ),
        _verdict(
            facts.all_in_datasets,
            f"The {found.after.rows:,} rows of the datasets are the accepted records, each in its hour. "
            "Their sums of latency_ms equal the feed's truth, to the last digit.",
            "The rows of the datasets are not the accepted records.",
        ),
        _details(
            "Every dataset",
            _table(
                "The newest of each hour",
                ("window from", "revision", "now", "sha256", "slices", "rows"), every, words=4,
            ),
        ),
    )  # fmt: skip


def _proof(facts: Facts) -> str:
    proof = facts.proof
    rows = [
        ("slices, hashed again", f"{proof.slices:,}"),
        ("raw rows, counted again", f"{proof.raw_rows:,}"),
        ("tiles, built again from raw", f"{proof.tiles:,}"),
        ("datasets, built again from raw", f"{proof.datasets:,}"),
        ("differences", f"{len(proof.findings):,}"),
    ]
    found = "".join(f"<li>{text(finding)}</li>" for finding in proof.findings[:100])
    return _section(
        "The proof",
        "verify believes nothing that was derived: it recomputes from the slices and from raw, on Spark, and "
        "compares bit for bit.",
        _table("What was recomputed", ("what", "how many"), rows, words=1),
        _verdict(
            proof.ok, "Everything equals its recomputation.", "Something differs from its recomputation."
        ),
        f"<ul>{found}</ul>" if found else "",
    )


def _next(warehouse: str, commands: Sequence[str]) -> str:
    words = (
        f"The warehouse is in {warehouse}: Delta tables and Arrow files that other tools open as they are."
    )
    return _section("Try next", words, "<pre>" + text("\n".join(commands)) + "</pre>")


# -- pieces; words are escaped here, blocks are HTML already


def _section(title: str, words: str, *blocks: str) -> str:
    return f"<section><h2>{text(title)}</h2><p>{text(words)}</p>{''.join(blocks)}</section>"


def _chart(drawn: str) -> str:
    return f'<div class="chart">{drawn}</div>'


def _details(summary: str, block: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{block}</details>"


def _verdict(good: bool, yes: str, no: str) -> str:
    return f'<p class="verdict {"good" if good else "bad"}">{text(yes if good else no)}</p>'


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> str:
    """The first `words` columns are text, the first of them names its row; the others are numbers."""
    style = ['class="words"' if place < words else "" for place in range(len(head))]
    top = "".join(f'<th scope="col" {style[i]}>{text(name)}</th>' for i, name in enumerate(head))
    lines = []
    for row in rows:
        cells = "".join(f"<td {style[i]}>{text(cell)}</td>" for i, cell in enumerate(row) if i)
        lines.append(f'<tr><th scope="row">{text(row[0])}</th>{cells}</tr>')
    return (
        f'<div class="wide"><table><caption>{text(caption)}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
