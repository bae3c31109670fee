"""Puts the signatures and docstrings of the public Python API into docs/python.md, between its two comments.

Run it after a change of a signature or a docstring. Names without a docstring are an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from tidemill import AsyncClient, Client, Mill, client, recover
from tidemill.ingest.feeds import Sources
from tidemill.ingest.landing import Landed, LandedMany
from tidemill.model.completeness import Completeness
from tidemill.model.slices import SliceEntry
from tidemill.outputs.datasets.builder import BuildOutcome
from tidemill.outputs.datasets.changes import RevisionChanges
from tidemill.outputs.datasets.reader import RebuildStep, WindowReader, WindowStory, WindowView
from tidemill.outputs.datasets.timeline import Timeline
from tidemill.outputs.vectors.chain_view import ChainView
from tidemill.outputs.vectors.chainer import Chainer
from tidemill.outputs.windows.refresh import WindowRefresh
from tidemill.pipeline.metrics import Meter
from tidemill.pipeline.overview import StreamOverview
from tidemill.pipeline.rebuild import Rebuilder
from tidemill.pipeline.recover import Recovered
from tidemill.pipeline.reports import StreamStatus, TickReport
from tidemill.pipeline.retention import Retention
from tidemill.pipeline.trace import EventTrace
from tidemill.pipeline.verify import Audit
from tidemill.query import Answer, Explanation
from tidemill.query.as_of import Change
from tidemill.query.catalog import StreamFacts
from tidemill.query.cell import Cell
from tidemill.query.plain_sql.service import SqlAnswer
from tidemill.query.search.search import SearchPage, SearchPlan
from tidemill.raw.compaction.packer import Packed, Packer
from tidemill.raw.retract import RetractionPlan

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "python.md"
BEGIN: Final = "<!-- api:begin -->\n"
END: Final = "<!-- api:end -->\n"
WIDTH: Final = 100
# Of the objects that a property of `Mill` gives, the methods that are meant for programs.
PARTS: Final[Mapping[str, tuple[type, tuple[str, ...]]]] = {
    "windows": (
        WindowReader,
        ("windows", "window", "datasets", "dataset", "outdated", "touched", "plan_rebuild", "retry"),
    ),
    "remake": (Rebuilder, ("plan", "rollups", "index", "results")),
    "sources": (Sources, ("land",)),
    "packer": (Packer, ("plan", "waiting", "manifest", "wait")),
    "meter": (Meter, ("text", "served", "tick", "builds")),
    "retention": (Retention, ("plan", "expire")),
    "chains": (Chainer, ("plan", "compact_now", "windows", "batches")),
}
# What methods return, other than Arrow tables and plain values.
OF_A_MILL: Final[tuple[type, ...]] = (
    Landed, LandedMany, SliceEntry, TickReport, StreamStatus, StreamOverview, WindowRefresh, WindowView,
    WindowStory, Timeline, RevisionChanges, RebuildStep, BuildOutcome, Packed, RetractionPlan, Answer,
    Completeness, Explanation, SearchPage, SearchPlan, SqlAnswer, StreamFacts, Cell, Change, EventTrace,
    ChainView, Audit, Recovered,
)  # fmt: skip
OF_A_CLIENT: Final = (client.Sent, client.Outcome, client.Ingestion, client.DatasetEvent)


def members(owner: type) -> Iterator[tuple[str, str]]:
    """Each public method and property in the order of the source, with the `# -- heading` above it."""
    heading = ""
    found = re.finditer(
        r"^    (?:# -- (?P<heading>.+)|(?:async )?def (?P<name>[a-z]\w*)\()",
        inspect.getsource(owner),
        re.MULTILINE,
    )
    for one in found:
        if one["heading"]:
            heading = one["heading"]
        else:
            yield heading, one["name"]


def text_of(name: str, documented: object) -> str:
    """The docstring, one line for each paragraph."""
    text = inspect.getdoc(documented)
    if not text:
        raise ValueError(f"{name} has no docstring")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    wrapped = [
        textwrap.fill(paragraph, 118, break_long_words=False, break_on_hyphens=False)
        for paragraph in paragraphs
    ]
    return "\n\n".join(wrapped) + "\n"


def default_of(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if callable(value):
        name = getattr(value, "__name__", "")
        return name if name.isidentifier() else "…"
    return repr(value)


def parameter_of(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(default=inspect.Parameter.empty, annotation=inspect.Parameter.empty))
    text += f": {parameter.annotation}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {default_of(parameter.default)}"
    return text


def signature_of(name: str, function: Callable[..., object]) -> str:
    """On one line if it fits, else with a line for each parameter."""
    signature = inspect.signature(function)
    words: list[str] = []
    is_keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            words.append("*")
        words.append(parameter_of(parameter))
    start = "async " if inspect.iscoroutinefunction(function) else ""
    end = (
        "" if signature.return_annotation is inspect.Signature.empty else f" -> {signature.return_annotation}"
    )
    whole = f"{start}{name}({', '.join(words)}){end}"
    if len(whole) <= WIDTH:
        return whole
    return "\n".join([f"{start}{name}(", *(f"    {word}," for word in words), f"){end}"])


def entry(name: str, documented: object, signature: str) -> str:
    return f"```py\n{signature}\n```\n{text_of(name, documented)}\n"


def member(owner: type, name: str, prefix: str) -> str:
    """A method or property of a class, as programs write it after `prefix`."""
    full = f"{owner.__name__}.{name}"
    found = inspect.getattr_static(owner, name)
    if isinstance(found, classmethod):
        return entry(full, found, signature_of(full, found.__func__))
    if isinstance(found, property | cached_property):
        getter = found.fget if isinstance(found, property) else found.func
        kind = inspect.signature(getter).return_annotation if getter is not None else ""
        return entry(full, getter, f"{prefix}.{name}: {kind}")
    return entry(full, found, signature_of(f"{prefix}.{name}", found))


def section(owner: type, prefix: str) -> str:
    """A class: how it is made, then its members by heading."""
    constructor = signature_of(owner.__name__, owner).removesuffix(" -> None")
    text = f"### {owner.__name__}\n{entry(owner.__name__, owner, constructor)}"
    known = ""
    for heading, name in members(owner):
        if heading != known:
            known = heading
            text += f"#### {heading.capitalize()}\n"
        text += member(owner, name, prefix)
    return text


def parts() -> str:
    """The objects that properties of `Mill` give."""
    text = "### Parts of a mill\n"
    for name, (owner, methods) in PARTS.items():
        text += f"#### `mill.{name}`\n{text_of(f'Mill.{name}', inspect.getattr_static(Mill, name))}\n"
        text += "".join(member(owner, method, f"mill.{name}") for method in methods)
    return text


def results(whose: str, returned: Sequence[type]) -> str:
    """What the objects that methods return hold."""
    text = f"### What {whose} returns\n| type | attributes |\n|---|---|\n"
    for one in returned:
        fields = [each.name for each in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else []
        names = [name for name in fields or one.__annotations__ if not name.startswith("_")]
        names += [name for name, value in vars(one).items() if isinstance(value, property | cached_property)]
        text += f"| `{one.__name__}` | {', '.join(f'`{name}`' for name in names)} |\n"
    return text + "\n"


def rendered() -> str:
    sections = [
        section(Mill, "mill"),
        parts(),
        results("a mill", OF_A_MILL),
        "### recover\n" + entry("recover", recover, signature_of("recover", recover)),
        section(Client, "client"),
        section(AsyncClient, "client"),
        results("a client", OF_A_CLIENT),
    ]
    return "".join(sections)


def filled(page: str, reference: str) -> str:
    """The page with `reference` in place of what was between the comments."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}{reference}{end}{after}"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(page, rendered()), encoding="utf-8")
    print(f"the reference in {PAGE.relative_to(ROOT)} is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
