"""The record of several messages that the page on event time shows happens when the page says."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill import eventtime
from tidemill.config import parse_project
from tidemill.formats.decide import DecidedRecord, decide
from tidemill.formats.read_plan import plan_for
from tidemill.model.time import parse_instant

PAGE = Path(__file__).parents[2] / "docs" / "event-time.md"


def test_the_record_that_is_shown_happens_when_its_second_message_does() -> None:
    text = PAGE.read_text().partition("## Records of several messages")[2]
    declared, record = (
        re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0] for kind in ("yaml", "json")
    )
    project = parse_project(declared, PAGE, eventtime.registered(), {})
    arrival = parse_instant("2024-01-15T14:24:00Z")
    verdict = decide(record.encode(), plan_for(project.stream("bundles"), project.limits), arrival)
    assert isinstance(verdict, DecidedRecord)
    assert verdict.time == parse_instant("2024-01-15T14:23:45Z")
