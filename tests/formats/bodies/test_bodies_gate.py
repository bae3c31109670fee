"""What the gate makes of a body is what was said of it: as many records, and none of another tenant."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config import Limits, Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies import read_body
from tidemill.formats.decide import DecidedRecord, decide
from tidemill.formats.read_plan import ReadPlan, plan_for
from tidemill.formats.split import split_lines
from tidemill.model.errors import ForbiddenError, TidemillError
from tidemill.model.gateway import Submission

DECLARED = {
    "name": "s",
    "schema": {"id": "string", "tenant": "string", "r.tenant": "string"},
    "identity": "id",
}
LINES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b" ", b"\r", b"\t\r", b"{}", b"\x0b", b"\x00", b'{"a":\r1}', b"\xef\xbb\xbf", b"\xc2\x85"]
    ),
)
VALUES = st.one_of(
    st.sampled_from(["acme", "other", "", None, 5, ["other"], {"tenant": "other"}]), st.text(max_size=3)
)
NUMBERS = st.sampled_from(["1", "-0", "1e999", "9" * 30, "0.1", "1E-999", "NaN", "01"])


def stream(column: str) -> Stream:
    return Stream.model_validate({**DECLARED, "tenant": {"column": column}})


def plan(declared: Stream) -> ReadPlan:
    return plan_for(declared, Limits())


@given(st.lists(LINES, max_size=8), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans())
@example([b"{}", b"", b"{}"], b"\n", False)
def test_the_gate_finds_as_many_lines(lines: list[bytes], end: bytes, last: bool) -> None:
    body = end.join(lines) + (end if last else b"")
    try:
        taken = read_body(body, "application/x-ndjson", stream("tenant"), Requests(), None, "http")
    except TidemillError:
        return
    starts, _ = split_lines(np.frombuffer(bytearray(taken.content), np.uint8), 0, len(taken.content))
    assert starts.size == taken.records
    assert taken.content.endswith(b"\n")


def test_each_element_of_an_array_is_one_line_to_the_gate() -> None:
    body = b'[ {"a":\n[1,\r\n2]} ,\n\n"\\n", 3 ]'
    taken = read_body(body, "application/json", stream("tenant"), Requests(), None, "http")
    starts, _ = split_lines(np.frombuffer(bytearray(taken.content), np.uint8), 0, len(taken.content))
    assert starts.size == taken.records == 3


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """A record that says whose it is, in one of the ways that it can be said, or spoiled."""
    members = [f'"id":"{draw(st.integers(0, 9))}"', f'"n":{draw(NUMBERS)}']
    for key in draw(st.lists(st.sampled_from(["tenant", "r.tenant", "ten\\u0061nt", "Tenant"]), max_size=3)):
        members.append(f'"{key}":{json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans()))}')
    if draw(st.booleans()):
        members.append(f'"r":{json.dumps({"tenant": draw(VALUES)})}')
    text = "{" + ",".join(draw(st.permutations(members))) + "}"
    spoiled = draw(st.sampled_from(["", "", "", " ", "}", "\ufeff"]))
    return (text + spoiled).encode()


@examples(300)
@given(st.lists(records(), min_size=1, max_size=3), st.sampled_from(["tenant", "r.tenant"]))
def test_no_event_that_the_gate_accepts_is_of_another_tenant(lines: list[bytes], column: str) -> None:
    declared = stream(column)
    decided = [decide(line, plan(declared), 0) for line in lines]
    others = [
        verdict for verdict in decided if isinstance(verdict, DecidedRecord) and verdict.tenant != "acme"
    ]

    def read() -> Submission:
        return read_body(b"\n".join(lines), "application/x-ndjson", declared, Requests(), "acme", "http")

    if others:
        with pytest.raises(ForbiddenError):
            read()
        return
    try:
        taken = read()
    except ForbiddenError:
        return  # of a record that the gate would refuse for another reason
    accepted = {place for place, verdict in enumerate(decided) if isinstance(verdict, DecidedRecord)}
    assert not accepted & set(taken.unnamed)  # those that it accepts have named their tenant
