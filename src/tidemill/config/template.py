"""The `tidemill.yaml` files that commands write where there is none, as package data in `templates/`.

Each must load as it is; tests prove it, and that what the comments of `requests` call a default is one.
"""

from __future__ import annotations

from typing import Literal

# requests: what `tidemill init` writes, a whole, commented stream of web requests.
# events: what `tidemill up` writes, events, logs and traces over HTTP.
Name = Literal["requests", "events"]


def read_template(name: Name) -> str:
    from importlib.resources import files  # here: it would slow down every command, and two need it

    return (files("tidemill.config") / "templates" / f"{name}.yaml").read_text(encoding="utf-8")
