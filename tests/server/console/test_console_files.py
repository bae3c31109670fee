"""The files of the console, as they are served: complete, locked down, without an import of charts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from scripts.screenshots import DEMO, IMAGES, ROOT, STORY

from tidemill.server.console.routes import POLICY, STATIC

OWN = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())


def test_the_console_is_at_the_root_for_everybody(still):
    still.token("read")  # from now on one is needed for data, and none for the page
    answer = still.http.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == POLICY
    assert still.http.get("/v1/streams").status_code == 401
    assert "console" not in still.http.get("/openapi.json").text


def test_scripts_come_from_the_server_alone_and_none_is_inline():
    policy = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert "unsafe" not in policy["script-src"]
    for name in OWN:
        text = (STATIC / name).read_text(encoding="utf-8")
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", text), name
        assert not re.search(
            r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text.replace("//www.w3.org/2000/svg", "")
        ), name


@pytest.mark.parametrize("name", [*OWN, "bokeh.min.js", "bokeh-api.min.js"])
def test_every_file_is_served_and_only_once(still, name):
    first = still.http.get(f"/console/{name}")
    assert first.status_code == 200
    assert first.headers["x-content-type-options"] == "nosniff"
    tag = {"If-None-Match": first.headers["etag"]}
    assert still.http.get(f"/console/{name}", headers=tag).status_code == 304
    plain = still.http.get(f"/console/{name}", headers={"Accept-Encoding": "identity"})
    assert plain.content == first.content
    assert "content-encoding" not in plain.headers


def test_a_page_names_files_that_can_be_kept_for_ever(still):
    index = still.http.get("/")
    assert index.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="([^"]+)"', index.text)
    shared = {name for name in OWN if name.startswith("lib/")}
    assert {name.split("/", 3)[3] for name in named} > {*shared, "app.js", "icon.svg", "style.css"}
    for name in named:
        answer = still.http.get(name)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        other = "/console/v-0000/" + name.split("/", 3)[3]
        assert still.http.get(other).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name",
    [
        "../routes.py",
        "%2e%2e/routes.py",
        "..%2froutes.py",
        "/etc/passwd",
        "x.js",
        "",
        "v-1/../routes.py",
        "v-1/",
    ],
)
def test_no_name_leads_out_of_the_console(still, name):
    answer = still.http.get(f"/console/{name}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_each_page_has_a_picture_in_the_docs_and_in_the_readme():
    shots = {name: route.split("?")[0].split("/")[0] for name, route, *_ in (*DEMO, *STORY)}
    pages = re.findall(r'\{ page: "(\w+)"', (STATIC / "app.js").read_text(encoding="utf-8"))
    assert len(pages) == 8
    linked = {
        place: set(re.findall(r"images/([\w-]+)\.png\)", (ROOT / place).read_text(encoding="utf-8")))
        for place in ("docs/console.md", "README.md")
    }
    assert linked["docs/console.md"] == set(shots)
    assert {shots[name] for name in linked["README.md"]} == set(pages)
    assert {path.stem for path in IMAGES.glob("*.png")} == set(shots)


def test_nothing_imports_the_chart_library():
    code = (
        "import sys, tidemill.server.console.routes as s; s.chart_files(); sys.exit('bokeh' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_console_itself_may_ask_a_server_without_tokens(served):
    body = {"query": "SELECT count FROM requests"}
    own = {"Origin": served.url, "Host": served.url.removeprefix("http://")}
    assert served.http.post("/v1/query", json=body, headers=own).status_code == 200
    for origin in (
        "http://127.0.0.1:1",
        "https://evil.example",
        "null",
        served.url.replace("http:", "https:"),
    ):
        refused = served.http.post("/v1/query", json=body, headers={"Origin": origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), origin
