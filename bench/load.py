"""`python -m bench.load`: posts bodies over loopback from a process of its own and says how long each took.

A bare HTTP/1.1 client on asyncio: the machine's cores are for the server. What it is told comes on standard
input as JSON (`Load`), what it found goes to standard output. Every loop is bounded by the bodies it has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Load:
    """Events of an NDJSON file in bodies of `batch`, up to `posts` of them, over several connections."""

    host: str
    port: int
    path: str
    content_type: str
    file: str
    batch: int
    posts: int
    connections: int
    timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it. A post that was told to come again is sent again, and counts once."""

    seconds: float
    posts: int
    events: int
    bytes: int
    again: int
    latencies: list[float]  # milliseconds, of each post from its first try to the acknowledgement

    def at(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def bodies(load: Load) -> Iterator[bytes]:
    with open(load.file, "rb") as file:  # noqa: PTH123 - read line by line
        for _ in range(load.posts):
            lines = [line for _, line in zip(range(load.batch), file, strict=False)]
            if len(lines) < load.batch:
                return
            yield b"".join(lines)


async def _answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    await reader.readexactly(length)
    return status


async def _connection(load: Load, ready: list[bytes], found: list[float]) -> int:
    reader, writer = await asyncio.open_connection(load.host, load.port)
    again = 0
    while ready:
        request = ready.pop()
        began = time.perf_counter()
        while True:
            writer.write(request)
            await writer.drain()
            status = await _answer(reader)
            if status < 300:
                break
            if status not in (429, 503):
                raise RuntimeError(f"the server answered {status}")
            again += 1
            await asyncio.sleep(0.05)
        found.append((time.perf_counter() - began) * 1000)
    writer.close()
    return again


async def run(load: Load) -> Sent:
    made = list(bodies(load))
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: {load.host}:{load.port}\r\nContent-Type: {load.content_type}\r\n"
    )
    ready = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in reversed(made)]
    found: list[float] = []
    began = time.perf_counter()
    async with asyncio.timeout(load.timeout):
        again = await asyncio.gather(*(_connection(load, ready, found) for _ in range(load.connections)))
    took = time.perf_counter() - began
    return Sent(took, len(made), len(made) * load.batch, sum(map(len, made)), sum(again), found)


def main() -> int:
    told: dict[str, Any] = json.loads(sys.stdin.read())
    print(json.dumps(asdict(asyncio.run(run(Load(**told))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
