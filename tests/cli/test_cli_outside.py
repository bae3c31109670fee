"""Names and payloads from outside: never markup, never control characters; JSON that loses nothing."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from tidemill.cli.terminal import escaped
from tidemill.cli.views.layout import cell, lag_words, size
from tidemill.cli.views.status import quarantine_table
from tidemill.model.time import DAY, MINUTE, SECOND
from tidemill.pipeline.documents.shapes import dumps, quarantined
from tidemill.raw.tables import QUARANTINE

RECORD = '{"event_id":"1","event_type":"request","ts":1,"tenant":"acme"}\n'


def test_markup_in_a_name_is_shown_as_it_is(cli, project):
    (project / "[bold red]x.ndjson").write_text(RECORD)
    landed = cli("ingest", "requests", "[bold red]x.ndjson", "--source", "[link=http://x]y[/link]")
    assert "[bold red]x.ndjson" in landed.out
    assert "[bold red]x.ndjson" in cli("ledger").out
    id_ = cli("ledger", "--output", "json").json["slices"][0]["id"]
    assert "[link=http://x]y[/link]" in cli("slice", id_[:8]).out


def test_markup_in_an_error_is_shown_as_it_is(cli, project):
    assert "'[red]nope[/red]'" in cli("ingest", "[red]nope[/red]", "x").err
    assert "SELECT [bold]" in cli("query", "SELECT [bold] FROM requests").err


def test_control_characters_never_reach_the_terminal(cli, project):
    (project / "\x1b[31mred\u202e.ndjson").write_text(RECORD)
    assert cli("ingest", "requests", project / "\x1b[31mred\u202e.ndjson").code == 0
    for output in (cli("ledger").out, cli("ingest", "requests", "\x1b[31mnope").err):
        assert "\x1b" not in output
        assert "\\x1b[31m" in output
    assert cli("ledger", "--output", "json").json["slices"][0]["name"] == "\x1b[31mred\u202e.ndjson"


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("a\x1b[1mb\x00c", "a\\x1b[1mb\\x00c"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("left\u202eright", "left\\u202eright"),
        ("lone\udc80", "lone\\udc80"),
    ],
)
def test_shown(text, visible):
    assert escaped(text) == visible


def test_shown_keeps_lines_where_there_may_be_some():
    assert escaped("a\nb\tc", lines=True) == "a\nb\\tc"


def test_json_keeps_every_digit():
    exact = Decimal("12345678901234567890.123456789")
    assert dumps({"sum": exact, "n": 2**63 - 1, "none": None, "list": [True, "ü"]}) == (
        '{"sum":12345678901234567890.123456789,"n":9223372036854775807,"none":null,"list":[true,"\\u00fc"]}'
    )
    assert dumps(Decimal("1E+3")) == "1000"
    assert json.loads(dumps(exact), parse_float=Decimal) == exact
    assert dumps([float("inf"), float("-inf"), float("nan"), 0.5]) == '["Infinity","-Infinity","NaN",0.5]'


def row(payload):
    said = {"slice": "ab" * 32, "line": 7, "arrival": 0, "outcome": "rejected", "reason": "encoding"}
    values = dict.fromkeys(QUARANTINE.names) | said | {"payload": payload}
    return pa.Table.from_pylist([values], schema=QUARANTINE)


def test_a_payload_that_is_not_utf8_loses_nothing_in_json():
    (good,) = quarantined(row("ü".encode()))
    (bad,) = quarantined(row(b"\xff\x00"))
    assert (good["payload"], good["payload_base64"]) == ("ü", None)
    assert (bad["payload"], bad["payload_base64"]) == (None, "/wA=")
    assert json.loads(dumps(bad))["arrival"] == "1970-01-01T00:00:00Z"


def test_a_long_payload_is_cut_in_text():
    def cells(payload):
        return [str(text) for text in quarantine_table(row(payload)).columns[-1].cells]

    assert cells(b"x" * 100) == ["x" * 100]
    assert cells(b"x" * 101) == ["x" * 100 + "…"]
    assert cells(b"\xff[bold]") == ["\\xff[bold]"]


def test_sizes_lags_and_values_for_people():
    assert [size(n) for n in (0, 1023, 1024, 1536, 10 * 2**20, 2**30 - 1, 3 * 2**40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10.0 MiB", "1024.0 MiB", "3.0 TiB",
    ]  # fmt: skip
    assert lag_words(2 * DAY + 3 * MINUTE + 7, 0) == "2d3m"
    assert lag_words(0, 5 * SECOND) == "-5s"
    assert [cell(v) for v in (None, True, Decimal("1E+2"), [1, None], "[b]")] == [
        "-", "true", "100", "[1, -]", "[b]",
    ]  # fmt: skip
