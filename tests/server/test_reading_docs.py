"""The page on reading says what the server does: its addresses, their parameters, and the metrics."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
OF_ALL = {"limit", "cursor", "tenant", "q", "last-event-id"}  # said once, for all of them


def rows(heading: str) -> list[list[str]]:
    """The table of a section, without its head."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, heading
    lines = re.findall(r"^\|.*$", found.group(1), re.MULTILINE)[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def code(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_every_address_of_reading_is_told_with_its_parameters(still):
    document = {one: code(row[1]) for row in rows("Addresses") for one in code(row[0])}
    taken: dict[str, set[str]] = {}
    for path, item in still.http.get("/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            if "reading" in operation["tags"] or path == "/metrics":
                asked = {one["name"] for one in operation.get("parameters", []) if one["in"] != "path"}
                taken[f"{method.upper()} {path}"] = asked - OF_ALL
    assert document.keys() == taken.keys()
    for address, parameters in taken.items():
        assert parameters <= document[address], address


def test_every_metric_of_the_gateway_is_told_with_its_labels(still):
    still.send("requests", still.request("measured"))
    still.settle()
    still.send(
        "requests", still.request("gathered")
    )  # a feed that nothing comes from for a while is forgotten
    shown = {}
    for family in text_string_to_metric_families(still.http.get("/metrics").text):
        if family.name.startswith(("tidemill_gateway", "tidemill_clock")):
            shown[family.name + ("_total" if family.type == "counter" else "")] = {
                label for sample in family.samples for label in sample.labels
            }
    assert {name: code(row[1]) for row in rows("Metrics") for name in code(row[0])} == shown
