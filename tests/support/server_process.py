"""A server as a process of its own, and clients that are processes of their own, for tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.patience import PATIENCE

PROJECT = """
version: 1
{settings}
streams:
  requests:
    schema:
      event_id: {{type: string, required: true}}
      ts: {{type: integer, required: true}}
      tenant: {{type: string, required: true}}
      amount: {{type: decimal, scale: 2}}
      text: string
    event_time: {{column: ts, type: unixtimestamp_ms}}
    identity: event_id
    tenant: {{column: tenant}}
    metrics:
      requests: {{kind: counter, measures: [amount]}}
"""
START = 1_700_000_000_000

# Posts its events until each was acknowledged, and writes the id of each that was to its own file.
CLIENT = textwrap.dedent(
    """
    import http.client, json, random, sys, time
    port, number, events, size, path, deadline, text = json.loads(sys.argv[1])
    source = random.Random(number)
    start = 1700000000000
    made = [
        {"event_id": f"{number}-{n}", "ts": start + n, "tenant": f"t{number % 2}", "amount": n % 100 + 0.25,
         "text": "x" * text}
        for n in range(events)
    ]
    acknowledged = open(path, "w")
    until = time.time() + deadline
    tries = slowed = 0
    link = None
    while made and time.time() < until:
        batch = made[: source.randint(1, size)]
        body = "".join(json.dumps(event) + "\\n" for event in batch)
        tries += 1
        try:
            if link is None:
                link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            kind = {"Content-Type": "application/x-ndjson"}
            link.request("POST", "/v1/streams/requests/events", body, kind)
            answer = link.getresponse()
            answer.read()
        except OSError:
            link = None
            time.sleep(0.02)
            continue
        except http.client.HTTPException:
            link = None
            continue
        if answer.status in (429, 503):
            slowed += 1
            time.sleep(0.02)
            continue
        assert answer.status == 202, answer.status
        acknowledged.writelines(event["event_id"] + "\\n" for event in batch)
        acknowledged.flush()
        del made[: len(batch)]
    print(json.dumps({"left": len(made), "tries": tries, "slowed": slowed}))
    """
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ended(process: subprocess.Popen[bytes], within: float) -> bool:
    """Whether it ends in the next moments, in seconds."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


class Server:
    """`tidemill serve` on a folder. It may be killed, and started again at the same port."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tidemill.yaml").write_text(PROJECT.format(settings=settings))
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tidemill.cli.main", "serve", "--port", str(self.port)]
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(
            [*command, "-p", str(self.folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert not ended(self.process, 0.02), (self.folder / "server.log").read_text()[-3000:]
                assert time.monotonic() < until, "the server does not answer"

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """It stands still, as a machine does that swaps or moves."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def resident(self) -> int:
        """Bytes of memory that the process has now."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the process is gone")


class Clients:
    def __init__(
        self,
        server: Server,
        count: int,
        events: int,
        batch: int,
        *,
        deadline: float = PATIENCE,
        text: int = 40,
        first: int = 0,
    ) -> None:
        """The ids of their events begin with their numbers, from `first`."""
        self.files = [server.folder / f"acknowledged-{first + number}" for number in range(count)]
        self._running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    CLIENT,
                    json.dumps([server.port, number, events, batch, str(file), deadline, text]),
                ],
                stdout=subprocess.PIPE,
            )
            for number, file in enumerate(self.files, first)
        ]

    def ended(self, within: float) -> bool:
        """Whether all of them end in the next moments, in seconds."""
        until = time.monotonic() + within
        return all(ended(one, max(0.0, until - time.monotonic())) for one in self._running)

    def done(self) -> Sequence[dict[str, int]]:
        """What each says of itself, once all have ended."""
        found = []
        for one in self._running:
            out, _ = one.communicate(timeout=PATIENCE)
            assert one.returncode == 0
            found.append(json.loads(out))
        return found

    def acknowledged(self) -> list[str]:
        return [line for file in self.files for line in file.read_text().splitlines()]
