"""Puts the numbers of bench/results.json into docs/performance.md, between its two comments.

It measures nothing and rounds only for display.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results.json"
PAGE: Final = ROOT / "docs" / "performance.md"
BEGIN: Final = "<!-- bench:begin -->\n"
END: Final = "<!-- bench:end -->\n"


def number(value: object) -> str:
    """Three significant digits are what a run repeats to."""
    if not isinstance(value, int | float):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(result: Mapping[str, object]) -> str:
    unit = f" {result['unit']}"
    ours, peer = number(result["ours"]), number(result.get("peer"))
    target = number(result.get("target"))
    cells = (
        f"`{result['case']}`",
        ours + unit,
        peer + unit if peer else "",
        number(result.get("ratio")),
        f"{result.get('sense', '')} {target}".strip() if target else "",
        ("yes" if result["ok"] else "no") if target else "",
        str(result.get("note", "")).replace("|", "/"),
    )
    return f"| {' | '.join(cells)} |"


def rendered(results: Sequence[Mapping[str, object]]) -> str:
    head = "| case | ours | peer | ratio | target | met | note |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(row(result) + "\n" for result in results)


def filled(page: str, table: str) -> str:
    """The page with `table` in place of what stood between the comments."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}{table}{end}{after}"


def main() -> int:
    if not RESULTS.is_file():
        print(f"{RESULTS.relative_to(ROOT)} is not there: run `make bench` first", file=sys.stderr)
        return 1
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rendered(results)), encoding="utf-8")
    print(f"{len(results)} results are in {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
