"""Makes `client/sync.py` from `client/aio.py`, so that the calls of the two clients are written once.

The blocking client has the same methods without `async` and `await`; what else differs is listed below.
`--check` writes nothing and fails if the file is not up to date.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "src" / "tidemill" / "client"
HEADER = '''"""The blocking client: each call returns when the server has answered, or raises at last.

Requests and responses are made and read by the pure modules beside it. This file is made from aio.py by
scripts/sync_client.py: edit that one.
"""'''
CLASS = '''class Client:
    """A client of the server at `url`. Use it as a context manager, or call `close`; threads can share it.
'''
REPLACED = (  # in this order; each must occur
    ("import asyncio\n", ""),
    ("AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable,", "Callable, Iterable, Iterator,"),
    (" | AsyncIterable[Event]", ""),
    ("Callable[[float], Awaitable[None]] = asyncio.sleep", "Callable[[float], None] = time.sleep"),
    ("httpx.AsyncBaseTransport", "httpx.BaseTransport"),
    ("httpx.AsyncClient(", "httpx.Client("),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("aclose()", "close()"),
    ("aread()", "read()"),
    ("aiter_text()", "iter_text()"),
    ("AsyncIterator[", "Iterator["),
    ("_one_by_one(events)", "events"),
    ("[one async for one in each]", "list(each)"),
    ("async for ", "for "),
    ("async def ", "def "),
    ("await ", ""),
    ("for row in rows:\n                yield row", "yield from rows"),
    (
        "for event in lines.read(text):\n                                yield event",
        "yield from lines.read(text)",
    ),
)


def blocking(text: str) -> str:
    """The source of the blocking client."""
    text = HEADER + text.split('"""', 2)[2]
    start, end = text.index("class AsyncClient:"), text.index("\n    An event without a value")
    text = text[:start] + CLASS + text[end:]
    text = text[: text.index("\n\n\nasync def _one_by_one")] + "\n"
    for old, new in REPLACED:
        if old not in text:
            raise SystemExit(f"scripts/sync_client.py: {old!r} is not in client/aio.py any more")
        text = text.replace(old, new)
    command = ["ruff", "format", "--stdin-filename", str(CLIENT / "sync.py"), "-"]
    return subprocess.run(
        [sys.executable, "-m", *command], input=text, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    made = blocking((CLIENT / "aio.py").read_text(encoding="utf-8"))
    target = CLIENT / "sync.py"
    if "--check" not in sys.argv[1:]:
        target.write_text(made, encoding="utf-8")
    elif target.read_text(encoding="utf-8") != made:
        print("client/sync.py is not what client/aio.py gives: run python scripts/sync_client.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
